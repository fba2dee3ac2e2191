"""Which groups consume which topics by POP: the file `config/messageRequestMode.json`.

Touches  nothing by itself; `config_files` writes the table.

    {"messageRequestModeMap": {"topic": {"group": {"consumerGroup", "mode": "POP" or "PULL", "popShareQueueNum",
        "topic"}}}}

Invariants
- At most ENTRIES_MAX settings are kept.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from aerobee_broker.settings.config_files import table_of
from aerobee_proto import bodies
from aerobee_proto.bodies import Int, JsonBody
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_service.turns.made_maps import MadeMap

__all__ = ["POP", "PULL", "RequestMode", "RequestModes"]

POP: Final = "POP"
PULL: Final = "PULL"
ENTRIES_MAX: Final = 100_000


class RequestMode(JsonBody, kw_only=True):
    """How a group consumes a topic, also as SET_MESSAGE_REQUEST_MODE (401) carries it.

    By POP with `pop_share_queue_num` 0 or less every member pops every queue; otherwise its own and those of so
    many members behind it.
    """

    consumer_group: str
    mode: str = PULL
    pop_share_queue_num: Int = 0
    topic: str


class RequestModes:
    """The mode of each group and topic. All calls from the event loop."""

    file_name = "messageRequestMode.json"

    def __init__(self, *, on_dirty: Callable[[], None]) -> None:
        """`on_dirty` is called after each change: the file is behind."""
        self._on_dirty = on_dirty
        self._modes: dict[str, dict[str, RequestMode]] = {}  # topic -> group -> mode, as in the file
        self._count = 0
        self.revision = 0

    def get(self, group: str, topic: str) -> RequestMode | None:
        """What was set for a group, None when nothing was."""
        groups = self._modes.get(topic)
        return None if groups is None else groups.get(group)

    def set(self, mode: RequestMode) -> None:
        """Keep a setting. RequestError INVALID_PARAMETER: it is neither POP nor PULL, or there are too many."""
        if mode.mode not in (POP, PULL):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"mode {mode.mode[:20]!r} is neither {PULL} nor {POP}"
            )
        is_new = self.get(mode.consumer_group, mode.topic) is None
        if is_new and self._count >= ENTRIES_MAX:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"{ENTRIES_MAX} request modes are set already")
        self._count += is_new
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self.revision += 1
        self._on_dirty()

    def follow(self, theirs: dict[str, dict[str, RequestMode]]) -> bool:
        """Become what the master's table is; False when it is that already."""
        if theirs == self._modes:
            return False
        self.take(theirs)
        self.revision += 1
        self._on_dirty()
        return True

    # --- the file ---------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The content of `messageRequestMode.json`, which is also the answer to GET_ALL_MESSAGE_REQUEST_MODE."""
        return {"messageRequestModeMap": MadeMap(dict(self._modes), dict)}

    def parse(self, content: Mapping[str, object]) -> dict[str, dict[str, RequestMode]]:
        """A file's content as the table keeps it. FormatError when it is not a table of request modes."""
        parsed: dict[str, dict[str, RequestMode]] = {}
        for topic, groups in table_of(content, "messageRequestModeMap").items():
            if not isinstance(groups, Mapping):
                raise FormatError(f"request modes of topic {topic} are not an object")
            for group, value in groups.items():
                named = (
                    {"topic": topic, "consumerGroup": group, **value} if isinstance(value, Mapping) else value
                )
                parsed.setdefault(str(topic), {})[str(group)] = bodies.convert(named, RequestMode)
        return parsed

    def take(self, parsed: dict[str, dict[str, RequestMode]]) -> None:
        """Put parsed content in place of the table's own."""
        self._modes = parsed
        self._count = sum(map(len, parsed.values()))
