"""What a broker tells about its present state: the table that `clusterList` and dashboards read.

Some keys are read by official tools without a check, so every one of them is always there; those about thread
pools, which this broker does not have, are zero.
"""

from collections.abc import Callable
from typing import Final

from aerobee_broker.metrics.observed import Observed, ScheduleFigures
from aerobee_broker.stats import BrokerStats
from aerobee_proto.codes import VERSION
from aerobee_service.program.release import VERSION_OF_AEROBEE

__all__ = ["runtime_table"]

VERSION_TEXT: Final = "V5_3_3"  # on the wire, where clients decide by it what they may ask for
POOLS: Final = {"send": 10_000, "pull": 100_000, "litePull": 100_000, "query": 20_000, "ack": 100_000}
SPANS_S: Final = (10, 60, 600)
GIB: Final = 1 << 30


def runtime_table(observed: Observed, disk: tuple[int, int]) -> dict[str, str]:
    """All keys of GET_BROKER_RUNTIME_INFO. `disk`: (total, free) bytes of the store's file system."""
    return {
        **_identity(observed),
        **_puts(observed.stats),
        **_gets(observed.stats),
        **_store(observed, disk),
        **_levels(observed.schedule),
        **_pools(),
        **_timers(observed.schedule),
        **_days(observed.stats),
    }


def _identity(observed: Observed) -> dict[str, str]:
    started_ms = observed.stats.started_ms
    return {
        "brokerVersionDesc": VERSION_TEXT,
        "brokerVersion": str(VERSION),
        "aerobeeVersion": VERSION_OF_AEROBEE,
        **({"aerobeeWorker": observed.identity.worker} if observed.identity.worker else {}),
        "aerobeeSendEngine": observed.engine(),
        "brokerActive": "false" if observed.identity.broker_id else "true",
        "bootTimestamp": str(started_ms),
        "runtime": _duration(observed.clock() - started_ms),
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


def _puts(stats: BrokerStats) -> dict[str, str]:
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


def _gets(stats: BrokerStats) -> dict[str, str]:
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


def _store(observed: Observed, disk: tuple[int, int]) -> dict[str, str]:
    store, config = observed.store, observed.live.value
    facts = store.statistics()
    total, free = disk
    ratio = f"{(total - free) / total if total else 0.0:.2f}"
    folder = config.store_path_commit_log or str(config.store_path_root_dir / "commitlog")
    return {
        "commitLogMinOffset": str(facts.min_physical_offset),
        "commitLogMaxOffset": str(facts.end_offset),
        "dispatchBehindBytes": str(facts.dispatch_behind_bytes),
        "dispatchMaxBuffer": "0",
        "remainHowManyDataToFlush": f"{facts.end_offset - facts.flushed_offset} B",
        "remainTransientStoreBufferNumbs": "2147483647",
        "earliestMessageTimeStamp": str(store.reading.oldest_time()),
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{folder}": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {total / GIB:.1f} GiB, Free : {free / GIB:.1f} GiB.",
    }


def _levels(schedule: ScheduleFigures) -> dict[str, str]:
    return {
        f"scheduleMessageOffset_{one.level}": f"{one.delivered},{one.stored}" for one in schedule.levels()
    }


def _timers(schedule: ScheduleFigures) -> dict[str, str]:
    timers = schedule.timers()
    return {
        "timerReadBehind": str(timers.late_ms // 1000),
        "timerOffsetBehind": str(timers.offset_behind),
        "timerCongestNum": str(timers.waiting),
        "timerEnqueueTps": str(timers.enqueued_per_second),
        "timerDequeueTps": str(timers.dequeued_per_second),
    }


def _days(stats: BrokerStats) -> dict[str, str]:
    """Totals under the names that dashboards chart."""
    put, got = stats.put_days, stats.get_days
    return {
        "msgPutTotalYesterdayMorning": str(put.yesterday_morning),
        "msgPutTotalTodayMorning": str(put.today_morning),
        "msgPutTotalTodayNow": str(put.now),
        "msgGetTotalYesterdayMorning": str(got.yesterday_morning),
        "msgGetTotalTodayMorning": str(got.today_morning),
        "msgGetTotalTodayNow": str(got.now),
    }


def _pools() -> dict[str, str]:
    table = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "100000"}
    for pool, capacity in POOLS.items():
        table[f"{pool}ThreadPoolQueueSize"] = "0"
        table[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return table
