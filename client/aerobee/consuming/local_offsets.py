"""Offsets of a broadcasting group, kept in a file here: every member reads every message, so each counts for itself.

Touches  <folder>/<client>/<group>/offsets.json and offsets.json.bak, the official client's own layout and form:
         {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:17}}

Invariants
- offsets.json is replaced as a whole; the version before it stays as offsets.json.bak.
"""

from pathlib import Path

from aerobee.errors import ClientError, InvalidMessage
from aerobee.terms.routes import MessageQueue
from aerobee_proto.bodies import ResetOffsetBody
from aerobee_proto.errors import FormatError
from aerobee_proto.javajson import MessageQueue as QueueKey
from aerobee_service.logs.event_log import event_logger
from aerobee_service.settings.whole_files import replace_file

__all__ = ["LocalOffsets", "offsets_folder"]

log = event_logger("aerobee.consumer")


def offsets_folder(chosen: Path | None) -> Path:
    """The folder of the settings, or the one where the official client keeps such files.

    InvalidMessage when that is in a home folder that this user does not have.
    """
    folder = Path("~/.rocketmq_offsets") if chosen is None else chosen
    try:
        return folder.expanduser()
    except RuntimeError:
        raise InvalidMessage(
            f"the offsets of a broadcasting consumer are kept in {folder}, and there is no such home folder: "
            "give offsets_folder, a path without ~, or set HOME"
        ) from None


class LocalOffsets:
    """The offsets file of one group and client."""

    def __init__(self, folder: Path, client_name: str, group: str) -> None:
        self.path = folder / client_name / group / "offsets.json"
        self._backup = self.path.with_suffix(".json.bak")
        self._offsets: dict[MessageQueue, int] = {}

    def load(self) -> None:
        """Read the file, or its backup when it is missing or broken; without either there are no offsets.

        ClientError when files are there and none of them can be read.
        """
        faults = []
        for path in (self.path, self._backup):
            try:
                table = ResetOffsetBody.from_bytes(path.read_bytes()).offset_table
            except FileNotFoundError:
                continue
            except (OSError, FormatError) as fault:
                faults.append(f"{path}: {fault}")
                continue
            self._offsets = {
                MessageQueue(key.topic, key.broker_name, key.queue_id): offset
                for key, offset in table.items()
            }
            for reason in faults:
                log.warning("client.offsets_file_broken", reason=reason, used=str(path))
            return
        if faults:
            raise ClientError(
                f"offsets of a broadcasting group cannot be read: {'; '.join(faults)};"
                " repair or remove the files (then reading starts where `start` says)"
            )

    def get(self, queue: MessageQueue) -> int | None:
        """The offset to go on at; None when there is none."""
        return self._offsets.get(queue)

    def set(self, queue: MessageQueue, offset: int) -> None:
        """Remember an offset; save() writes it."""
        self._offsets[queue] = offset

    def save(self) -> None:
        """Write the file. OSError when it cannot be written."""
        table = {
            QueueKey(queue.topic, queue.broker_name, queue.queue_id): at
            for queue, at in self._offsets.items()
        }
        replace_file(self.path, ResetOffsetBody(offset_table=table).to_bytes(), durable=False)
