"""The consumer groups of this broker: their settings, and their file `config/subscriptionGroup.json`.

Touches  nothing by itself; `config_files` writes the table.

    {"dataVersion": {...}, "forbiddenTable": {"group": {"topic": bits}}, "subscriptionGroupTable": {"group": {...}}}

Invariants
- A group's name has passed the name rules before it enters the table by a request: `%RETRY%<group>` becomes a
  folder.
- Forbidden bits that are all clear are not kept.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from aerobee_broker.catalog.attributes import alter
from aerobee_broker.settings.config import LiveConfig
from aerobee_broker.settings.config_files import table_of
from aerobee_proto import bodies, names
from aerobee_proto.bodies import DataVersion, SubscriptionGroupConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, LimitReached, RequestError
from aerobee_service.turns.made_maps import MadeMap

__all__ = ["SubscriptionGroups", "unknown_group"]

log = structlog.get_logger()

FORBIDDEN_READ: Final = 1 << 2
RETRY_QUEUES_MAX: Final = 1024


class GroupFile(NamedTuple):
    """What the file of the groups holds."""

    groups: dict[str, SubscriptionGroupConfig]
    forbidden: dict[str, dict[str, int]]  # group -> topic -> a bit for each thing that it may not do
    version: DataVersion


class SubscriptionGroups:
    """Group name -> SubscriptionGroupConfig. All calls from the event loop."""

    file_name = "subscriptionGroup.json"

    def __init__(self, live: LiveConfig, clock: Callable[[], int], *, on_dirty: Callable[[], None]) -> None:
        """`on_dirty` is called after each change: the file is behind."""
        self._live = live
        self._on_dirty = on_dirty
        self._clock = clock
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._created_by_use = 0
        # Of a slave: groups that were made by use here, and that the master does not have. None: this is no slave.
        self._own: set[str] | None = None
        self.version = DataVersion(timestamp=clock())
        self.revision = 0
        self._ensure_system_groups()

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: object) -> bool:
        return group in self._groups

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings, never created."""
        return self._groups.get(group)

    def all(self) -> dict[str, SubscriptionGroupConfig]:
        """A copy of the table, by name."""
        return dict(self._groups)

    def notifies(self, group: str) -> bool:
        """Whether members of the group are told when it changes."""
        found = self._groups.get(group)
        requested = found is None or found.notify_consumer_ids_changed_enable
        return requested and self._live.value.notify_consumer_ids_changed_enable

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings, created with defaults where the settings allow it; None otherwise."""
        found = self._groups.get(group)
        if found is not None or not self._may_create(group):
            return found
        created = SubscriptionGroupConfig(group_name=group)
        self._created_by_use += 1
        self._groups[group] = created
        log.info("broker.group_created", group=group, by="use")
        if self._own is None:
            self._changed()
        else:  # its version is the master's
            self._own.add(group)
            self.revision += 1
            self._on_dirty()
        return created

    def require(self, group: str) -> SubscriptionGroupConfig:
        """`find`, or RequestError SUBSCRIPTION_GROUP_NOT_EXIST."""
        found = self.find(group)
        if found is None:
            raise self._limit_reached() or unknown_group(group)
        return found

    def require_known(self, group: str) -> SubscriptionGroupConfig:
        """As `require`, but nothing is created."""
        found = self._groups.get(group)
        if found is None:
            raise unknown_group(group)
        return found

    def _limit_reached(self, more: int = 1) -> LimitReached | None:
        """The bound that stands against `more` groups made by use, or None."""
        config = self._live.value
        if len(self._groups) + more > config.max_groups:
            what, limit = f"there are {len(self._groups)} groups", "maxGroups"
        elif self._created_by_use + more > config.max_groups_auto_created:
            what, limit = f"{self._created_by_use} groups were created by use", "maxGroupsAutoCreated"
        else:
            return None
        return LimitReached(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"the subscription group does not exist here and was not created: {what} already",
            limit,
        )

    def _may_create(self, group: str) -> bool:
        config = self._live.value
        if not config.auto_create_subscription_group and not group.startswith(names.SYSTEM_GROUP_PREFIX):
            return False
        if self._limit_reached() is not None:
            return False
        try:
            names.check_group(group)
        except RequestError:
            return False
        return True

    def check_update(self, requested: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """The settings that a request to create or update a group would leave. Raises RequestError."""
        group = requested.group_name
        names.check_group(group)
        if not 0 <= requested.retry_queue_nums <= RETRY_QUEUES_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"group {group} cannot have {requested.retry_queue_nums} retry queues;"
                f" allowed: 0 to {RETRY_QUEUES_MAX}",
            )
        known = self._groups.get(group)
        current = {} if known is None else known.attributes
        attributes = alter(current, requested.attributes, creating=known is None, known={})
        return msgspec.structs.replace(requested, attributes=attributes)

    def update(self, requested: Sequence[SubscriptionGroupConfig]) -> list[str]:
        """Put checked settings into the table; the names of the groups that are new or differ."""
        self.check_room(requested)
        changed = [config for config in requested if self._groups.get(config.group_name) != config]
        for config in changed:
            created = config.group_name not in self._groups
            self._groups[config.group_name] = config
            event = "broker.group_created" if created else "broker.group_updated"
            log.info(event, group=config.group_name, by="request")
        if changed:
            self._changed()
        return [config.group_name for config in changed]

    def check_room(self, requested: Sequence[SubscriptionGroupConfig]) -> None:
        """LimitReached when the table cannot take those of them that are new."""
        new_count = sum(config.group_name not in self._groups for config in requested)
        limit = self._live.value.max_groups
        if new_count and len(self._groups) + new_count > limit:
            raise LimitReached(
                ResponseCode.INVALID_PARAMETER,
                f"no group was created: there are {len(self._groups)} already, at most {limit} are allowed",
                "maxGroups",
            )

    def delete(self, group: str) -> bool:
        """Forget a group; False when it was unknown. Its offsets are the caller's to delete."""
        forbidden = self._forbidden.pop(group, None)
        known = self._groups.pop(group, None)
        if known is None and forbidden is None:
            return False
        log.info("broker.group_deleted", group=group)
        self._changed()
        return known is not None

    # --- topics that a group may not read ---------------------------------------------------------------------

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether the group was forbidden to read the topic."""
        topics = self._forbidden.get(group)
        return topics is not None and topics.get(topic, 0) & FORBIDDEN_READ != 0

    def set_forbidden(self, group: str, topic: str, *, forbidden: bool) -> None:
        """Forbid the group to read the topic, or allow it again."""
        if self.is_forbidden(group, topic) is forbidden:
            return
        topics = self._forbidden.setdefault(group, {})
        bits = topics.get(topic, 0) ^ FORBIDDEN_READ
        if bits:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
        if not topics:
            del self._forbidden[group]
        log.info("broker.group_forbidden" if forbidden else "broker.group_allowed", group=group, topic=topic)
        self._changed()

    def _changed(self) -> None:
        self.version = self.version.next(self._clock())
        self.revision += 1
        self._on_dirty()

    # --- of a slave -------------------------------------------------------------------------------------------

    def become_copy(self) -> None:
        """From now on this is a slave's table."""
        self._own = set()

    def follow(self, theirs: GroupFile) -> bool:
        """Become what the master's table is, its version with it; False when it is that already. Groups that were made
        by use here stay: their members may be reading."""
        if theirs.version == self.version:
            return False
        self._own = {group for group in self._own or () if group not in theirs.groups}
        own = {group: self._groups[group] for group in self._own}
        self.take(theirs)
        self._groups |= own
        self.revision += 1
        self._on_dirty()
        return True

    def _ensure_system_groups(self) -> None:
        for group in names.SYSTEM_GROUPS:
            self._groups.setdefault(group, SubscriptionGroupConfig(group_name=group))

    # --- the file ---------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The content of `subscriptionGroup.json`, also the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return {
            "dataVersion": msgspec.to_builtins(self.version),
            "forbiddenTable": MadeMap(dict(self._forbidden), dict),
            "subscriptionGroupTable": dict(self._groups),
        }

    def parse(self, content: Mapping[str, object]) -> GroupFile:
        """A file's content as the table keeps it. FormatError when it is not a group table."""
        table = table_of(content, "subscriptionGroupTable")
        forbidden = content.get("forbiddenTable") or {}
        if not isinstance(forbidden, Mapping):
            raise FormatError("forbiddenTable is not an object")
        groups = {str(name): bodies.convert(value, SubscriptionGroupConfig) for name, value in table.items()}
        bits = {str(group): bodies.convert(topics, dict[str, int]) for group, topics in forbidden.items()}
        return GroupFile(groups, bits, bodies.convert(content.get("dataVersion", {}), DataVersion))

    def take(self, parsed: GroupFile) -> None:
        """Put parsed content in place of the table's own."""
        self._groups, self.version = parsed.groups, parsed.version
        self._forbidden = {group: topics for group, topics in parsed.forbidden.items() if topics}
        self._ensure_system_groups()


def unknown_group(group: str) -> RequestError:
    """The refusal for a group that this broker neither has nor may create."""
    return RequestError(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group {group[:255]} does not exist here and was not created;"
        " see autoCreateSubscriptionGroup, maxGroupsAutoCreated and the rules for group names",
    )
