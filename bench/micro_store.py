"""How long the store takes per message: append, confirm, indexing, a pull of 32.

    .venv/bin/python bench/micro_store.py [--messages 64000] [--store DIR]

128-byte bodies, 4 queues, a unique key each, whole-record checksum on, no syncs in the figures. Best of
several rounds, so that a busy machine shows least. Budgets: append + confirm under 4 us a message at 64 a
batch, indexing a key under 2 us, a pull of 32 adjacent records under 15 us.
"""

import argparse
import gc
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from aerobee_proto.javahash import tag_hash
from aerobee_service.clock import epoch_ms
from aerobee_store.disk.io import DiskIo
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import NewMessage

BATCHES = (1, 8, 64)
QUEUES = 4
ROUNDS = 7
HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
TAG_HASH = tag_hash("TagA")


def messages(count: int, start: int) -> list[NewMessage]:
    """As a broker builds them from sends of the official client."""
    made = []
    for number in range(start, start + count):
        unique_key = f"7F00000100002A9F{number:016X}"
        properties = (
            f"UNIQ_KEY\x01{unique_key}\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01TagA\x02"
        )
        made.append(
            NewMessage(
                "BenchmarkTopic", number % QUEUES, 0, 0, 1_700_000_000_000, HOST, HOST,
                0, 0, bytes(128), properties.encode(), TAG_HASH, None, unique_key,
            )
        )  # fmt: skip
    return made


def timed(work: Callable[[], object]) -> float:
    """Microseconds."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e6


def one_round(store: MessageStore, size: int, count: int, start: int) -> tuple[float, float, float]:
    """us per message for append and confirm, us per key for the index."""
    append_us = confirm_us = 0.0
    for at in range(start, start + count, size):
        batch = messages(size, at)  # just before they are stored, as in a broker: still in the cache
        append_us += timed(lambda batch=batch: store.append(batch))  # type: ignore[misc]
        confirm_us += timed(lambda: store.confirm(store.end_offset))
    index_us = timed(lambda: store.keys.build(count))
    return append_us / count, confirm_us / count, index_us / count


def pull_us(store: MessageStore) -> float:
    """us for one pull of 32 records of a queue whose records are next to each other."""
    lone = messages(3200, 1 << 40)
    for message in lone:
        message.topic, message.queue_id = "Lone", 0
    store.append(lone)
    store.confirm(store.end_offset)

    def pulls() -> None:
        for offset in range(0, 3200, 32):
            assert store.reading.get_message("g", "Lone", 0, offset, 32, 1 << 27, None).count == 32

    return min(timed(pulls) for _ in range(ROUNDS)) / 100


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=32_000, help="per round")
    parser.add_argument("--store", type=Path, help="folder to work in (removed afterwards)")
    options = parser.parse_args()
    root = options.store or Path(tempfile.mkdtemp(prefix="micro_store"))
    store = MessageStore(StoreConfig(root=root), io=DiskIo(), clock=epoch_ms)
    store.open()
    gc.freeze()
    start = 0
    print(f"{'batch':>6} {'append':>8} {'confirm':>8} {'index':>8}   us per message")
    for size in BATCHES:
        rounds = []
        for _ in range(ROUNDS):
            rounds.append(one_round(store, size, options.messages, start))
            start += options.messages
        best = [min(column) for column in zip(*rounds, strict=True)]
        print(f"{size:>6} {best[0]:>8.2f} {best[1]:>8.2f} {best[2]:>8.2f}")
    print(f"pull of 32 adjacent records: {pull_us(store):.1f} us")
    store.close()
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
