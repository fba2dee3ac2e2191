"""What a broker tells about its present state: the table that `clusterList` and dashboards read.

Some keys are read by official tools without a check, so every one of them is always there; those about thread
pools, which this broker does not have, are zero.
"""

from collections.abc import Callable
from typing import Final

from aerobee_broker.services import Services
from aerobee_proto.codes import VERSION
from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_proto.records import scan_header
from aerobee_remoting.release import VERSION_OF_AEROBEE

__all__ = ["earliest_ms", "runtime_table"]

VERSION_TEXT: Final = "V5_3_3"  # on the wire, where clients decide by it what they may ask for
POOLS: Final = {"send": 10_000, "pull": 100_000, "litePull": 100_000, "query": 20_000, "ack": 100_000}
SPANS_S: Final = (10, 60, 600)
GIB: Final = 1 << 30


def runtime_table(services: Services, disk: tuple[int, int]) -> dict[str, str]:
    """All keys of GET_BROKER_RUNTIME_INFO. `disk`: (total, free) bytes of the store's file system."""
    return {
        **_identity(services),
        **_puts(services),
        **_gets(services),
        **_store(services, disk),
        **_delays(services),
        **_pools(),
        **_timer(services),
        **{name: str(total) for name, total in services.stats.mornings.items()},
    }


def _identity(services: Services) -> dict[str, str]:
    started_ms = services.stats.started_ms
    return {
        "brokerVersionDesc": VERSION_TEXT,
        "brokerVersion": str(VERSION),
        "aerobeeVersion": VERSION_OF_AEROBEE,
        "brokerActive": "true",
        "bootTimestamp": str(started_ms),
        "runtime": _duration(services.clock() - started_ms),
        "startAcceptSendRequestTimeStamp": "0",
    }


def _duration(span_ms: int) -> str:
    seconds = max(0, span_ms) // 1000
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _rates(rate: Callable[[int], float]) -> str:
    """Rates of the last 10 s, minute and 10 minutes, separated by blanks."""
    return " ".join(str(float(rate(span))) for span in SPANS_S)


def _puts(services: Services) -> dict[str, str]:
    stats = services.stats
    count, size = stats.put_count.value, stats.put_bytes.value
    return {
        "putTps": _rates(stats.put_count.last_seconds),
        "putMessageTimesTotal": str(count),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / count if count else 0.0),
        "putMessageFailedTimes": str(stats.put_failed),
        "putMessageEntireTimeMax": str(stats.put_took_ms_max),
        "putMessageDistributeTime": stats.put_distribution(),
        "putLatency99": f"{stats.put_took_quantile_ms(0.99):.2f}",
        "putLatency999": f"{stats.put_took_quantile_ms(0.999):.2f}",
        "pageCacheLockTimeMills": "0",
    }


def _gets(services: Services) -> dict[str, str]:
    stats = services.stats
    found, missed = stats.pulls_found, stats.pulls_missed
    transferred = _rates(stats.get_count.last_seconds)
    return {
        "getTransferredTps": transferred,
        "getTransferedTps": transferred,  # spelt so by 4.9
        "getFoundTps": _rates(found.last_seconds),
        "getMissTps": _rates(missed.last_seconds),
        "getTotalTps": _rates(lambda span: found.last_seconds(span) + missed.last_seconds(span)),
        "getMessageEntireTimeMax": "0",
    }


def _store(services: Services, disk: tuple[int, int]) -> dict[str, str]:
    store, config = services.store, services.config
    facts = store.statistics()
    total, free = disk
    ratio = f"{(total - free) / total if total else 0.0:.2f}"
    folder = config.store_path_commit_log or str(config.store_path_root_dir / "commitlog")
    return {
        "commitLogMinOffset": str(facts["min_physical_offset"]),
        "commitLogMaxOffset": str(facts["end_offset"]),
        "dispatchBehindBytes": str(facts["dispatch_behind_bytes"]),
        "dispatchMaxBuffer": "0",
        "remainHowManyDataToFlush": f"{facts['end_offset'] - facts['flushed_offset']} B",
        "remainTransientStoreBufferNumbs": "2147483647",
        "earliestMessageTimeStamp": str(earliest_ms(services)),
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{folder}": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {total / GIB:.1f} GiB, Free : {free / GIB:.1f} GiB.",
    }


def _delays(services: Services) -> dict[str, str]:
    """`delivered,stored` of each delay level of which something was delivered, as RocketMQ tells it."""
    offsets, store = services.delay_offsets, services.store
    return {
        f"scheduleMessageOffset_{level}": f"{offsets.get(level)},{store.max_offset(SCHEDULE_TOPIC, level - 1)}"
        for level in offsets.levels
    }


def earliest_ms(services: Services) -> int:
    """Store time of the oldest record that is kept, ms; -1 without one."""
    oldest = services.store.message_at(services.store.min_physical_offset)
    if oldest is None:
        return -1
    return int(scan_header(oldest, 0).store_timestamp)


def _timer(services: Services) -> dict[str, str]:
    timers, counts = services.timers, services.timer_counts
    return {
        "timerReadBehind": str(timers.late_ms // 1000 if timers else 0),
        "timerOffsetBehind": str(timers.offset_behind if timers else 0),
        "timerCongestNum": str(timers.waiting_count if timers else 0),
        "timerEnqueueTps": str(float(counts.enqueued.last_seconds(10))),
        "timerDequeueTps": str(float(counts.dequeued.last_seconds(10))),
    }


def _pools() -> dict[str, str]:
    table = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "100000"}
    for pool, capacity in POOLS.items():
        table[f"{pool}ThreadPoolQueueSize"] = "0"
        table[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return table
