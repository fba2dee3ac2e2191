"""What a client has done since it was made, as plain numbers: the answers of `statistics()`. Values, no behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass

from aerobee.terms.routes import MessageQueue

__all__ = ["ClientStatistics", "ConsumerStatistics", "ProducerStatistics", "ReaderStatistics"]


@dataclass(slots=True, frozen=True)
class ProducerStatistics:
    """One producer, since it was made.

    sent_count        messages that a broker has stored; of one-way messages none is counted
    failed_count      messages that ended with an error
    retried_count     tries that failed, whatever became of their messages
    pending_count     messages that wait for their answer now
    pending_bytes     and their size
    latency_ms_mean   from the call to the answer, of the oldest message of each batch
    latency_ms_max    the longest of these
    """

    group: str
    sent_count: int
    failed_count: int
    retried_count: int
    pending_count: int
    pending_bytes: int
    latency_ms_mean: float
    latency_ms_max: float


@dataclass(slots=True, frozen=True)
class ConsumerStatistics:
    """One member of a group, since it was made.

    acked_count       messages that are done; those that were sent back are not among them
    failed_count      messages that are to come again, or went to the dead letters
    waiting_count     messages that were pulled and are not done
    lags              for each own queue the messages that are not done, by what its broker said last
    """

    group: str
    acked_count: int
    failed_count: int
    waiting_count: int
    lags: Mapping[MessageQueue, int]

    @property
    def lag(self) -> int:
        """Messages of all own queues that are not done."""
        return sum(self.lags.values())


@dataclass(slots=True, frozen=True)
class ReaderStatistics:
    """One reader or pull consumer, since it was made.

    group             of a pull consumer; empty for a reader
    read_count        messages that were handed out; those of a batch when the batch was
    retried_count     pulls that failed and were tried again
    waiting_bytes     what was pulled and not handed out
    lags              for each queue the messages that were not handed out, up to its end, by what its broker said last;
                      with a filter also those that it leaves out
    """

    group: str
    topic: str
    read_count: int
    retried_count: int
    waiting_bytes: int
    lags: Mapping[MessageQueue, int]

    @property
    def lag(self) -> int:
        """Messages of all queues that were not handed out."""
        return sum(self.lags.values())


@dataclass(slots=True, frozen=True)
class ClientStatistics:
    """A client, its open producers, group consumers, readers and pull consumers.

    connection_count  connections that are open now
    reconnect_count   connections that were lost and made again
    """

    client_id: str
    connection_count: int
    reconnect_count: int
    producers: tuple[ProducerStatistics, ...]
    consumers: tuple[ConsumerStatistics, ...]
    readers: tuple[ReaderStatistics, ...] = ()
