"""What a consumer tells an operator of itself: queues, subscriptions, rates, and where its threads and tasks stand."""

import asyncio
import sys
import threading
import traceback

from aerobee.consuming.group_consumer import AnyConsumer
from aerobee.messages.owned_queue import OwnedQueue
from aerobee_proto.bodies import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo
from aerobee_proto.javajson import MessageQueue as QueueKey

__all__ = ["running_info", "stacks"]

CLIENT_VERSION = "V5_3_3"  # the protocol's version; tools show and compare it
STACK_DEPTH_MAX = 40
TASKS_MAX = 200


def running_info(
    consumer: AnyConsumer, nameservers: tuple[str, ...], *, with_stacks: bool
) -> ConsumerRunningInfo:
    """Everything about one member, in the form that mqadmin and the dashboard read."""
    member, now, now_ms = consumer.member, asyncio.get_running_loop().time(), consumer.clock_ms()
    return ConsumerRunningInfo(
        jstack=stacks() if with_stacks else None,
        mq_table={
            QueueKey(queue.topic, queue.broker_name, queue.queue_id): _queue_info(owned, now, now_ms)
            for queue, owned in member.owned.items()
        },
        properties={
            "PROP_NAMESERVER_ADDR": ";".join(nameservers),
            "PROP_THREADPOOL_CORE_SIZE": str(consumer.concurrency),
            "PROP_CONSUMEORDERLY": "true" if consumer.orderly else "false",
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CLIENT_VERSION": CLIENT_VERSION,
            "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
            "language": "PYTHON",
            **{name: str(getattr(member.config, name)) for name in member.config.__dataclass_fields__},
        },
        status_table={
            topic: ConsumeStatus(
                consume_ok_tps=ok_tps,
                consume_failed_tps=failed_tps,
                consume_failed_msgs=failed,
                consume_rt=mean_ms,
            )
            for topic, (ok_tps, failed_tps, mean_ms, failed) in consumer.rates().items()
        },
        subscription_set=[one.data for _, one in sorted(member.settings.subscriptions.items())],
    )


def _queue_info(owned: OwnedQueue, now: float, now_ms: int) -> ProcessQueueInfo:
    tracker, taken_at = owned.tracker, owned.last_taken_at
    return ProcessQueueInfo(
        cached_msg_count=owned.count,
        cached_msg_min_offset=tracker.committable if owned.count else 0,
        cached_msg_max_offset=tracker.end - 1 if owned.count else 0,
        cached_msg_size_in_mi_b=owned.size >> 20,
        commit_offset=tracker.committable,
        droped=owned.dropped,
        last_consume_timestamp=0 if taken_at is None else round(now_ms - (now - taken_at) * 1000),
        last_lock_timestamp=owned.joined_ms if owned.lock_until is not None else 0,
        last_pull_timestamp=owned.last_pull_ms,
        locked=owned.lock_until is not None,
    )


def stacks() -> str:
    """Where every thread stands, and every task of this event loop; the Python for jstack."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        lines = "".join(traceback.format_stack(frame, STACK_DEPTH_MAX))
        parts.append(f'"{names.get(ident, "unknown")}" thread {ident}\n{lines}')
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks[:TASKS_MAX]:
        frames = [
            f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}\n'
            for frame in task.get_stack(limit=STACK_DEPTH_MAX)
        ]
        parts.append(f'"{task.get_name()}" task\n{"".join(frames)}')
    if len(tasks) > TASKS_MAX:
        parts.append(f"and {len(tasks) - TASKS_MAX} tasks more\n")
    return "\n".join(parts)
