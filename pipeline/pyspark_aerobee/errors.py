"""What a read or write of messages through Spark refuses, with what, where and what to do.

    PipelineError
      OptionError   an option that does not exist, or a value that cannot be used: names option and value
      DataLoss      messages that a job was to read are gone: names topic, queue and offsets
      BatchesInRecords  a topic holds batches that are one record, which are not read: names the topic
      SourceGone    a topic or broker that was there when the job was planned does not answer any more
      WriteFailed   messages that a task was to send were not stored: how many, and the brokers' reasons

Touches  nothing.
"""

__all__ = ["BatchesInRecords", "DataLoss", "OptionError", "PipelineError", "SourceGone", "WriteFailed"]


class PipelineError(Exception):
    """Base of everything that this package raises on purpose."""


class OptionError(PipelineError, ValueError):
    """An option cannot be used as it is."""

    def __init__(self, option: str, value: str, reason: str) -> None:
        super().__init__(option, value, reason)
        self.option = option
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        shown = "(not shown)" if "secret" in self.option.lower() else repr(self.value)
        return f"option {self.option}, value {shown}: {self.reason}"


class DataLoss(PipelineError):
    """Messages in [begin, end) of a queue that were to be read do not exist any more."""

    def __init__(
        self, topic: str, broker_name: str, queue_id: int, begin: int, end: int, reason: str
    ) -> None:
        super().__init__(topic, broker_name, queue_id, begin, end, reason)
        self.topic = topic
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.begin = begin
        self.end = end
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"topic {self.topic}, broker {self.broker_name}, queue {self.queue_id}: offsets {self.begin} to "
            f"{self.end - 1} cannot be read any more: {self.reason}. Set failOnDataLoss=false to go on without them, "
            f"or keep messages longer (fileReservedTime) than jobs may stand still"
        )


class BatchesInRecords(PipelineError):
    """A topic holds whole batches as single records, whose messages this package does not tell apart."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return (
            f"topic {self.topic} holds batches that are one record (queue.type=BatchCQ), which pipelines do not read: "
            "let a consumer copy its messages into a plain topic"
        )


class SourceGone(PipelineError):
    """What was there when the job was planned is not there now."""


class WriteFailed(PipelineError):
    """A task could not send all of its messages. Those that it has sent stay; repeating the task sends them again."""

    def __init__(self, sent: int, failed: int, reasons: list[str]) -> None:
        super().__init__(sent, failed, reasons)
        self.sent = sent
        self.failed = failed
        self.reasons = reasons

    def __str__(self) -> str:
        why = "; ".join(self.reasons)
        return f"{self.failed} messages could not be sent, {self.sent} of this task were stored: {why}"
