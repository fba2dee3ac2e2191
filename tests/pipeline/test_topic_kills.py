"""Streaming jobs that are killed, and brokers that die under a reader: nothing is lost, nothing comes twice."""

import os
import signal
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from aerobee_pytest import Server
from ours import start_broker, start_nameserver
from programs import Program, ProgramError, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("stream_job.py")
LINE_TIMEOUT_S = 180.0


def fill(nameserver: str, topic: str, numbers: range) -> dict[tuple[int, int], bytes]:
    """Send a body for each number; what is where."""
    from aerobee.sync import Client

    with Client(nameserver) as mq, mq.producer(send_timeout_s=30) as producer:
        sent = [
            (b"%d " % n * (n % 50 + 1), producer.send_nowait(topic, b"%d " % n * (n % 50 + 1)))
            for n in numbers
        ]
        results = [(future.result(), body) for body, future in sent]
    return {(one.queue.queue_id, one.queue_offset): body for one, body in results}


def run_until(server: Server, topic: str, folder: Path, *lines: str) -> None:
    """Run the job until it has said the lines, one behind the other; then kill Python and the JVM at once.

    Spark gives its Python workers ten seconds to start. On a machine that is too busy for that the job fails by itself,
    and is started again, as whoever looks after it would.
    """
    words = [sys.executable, str(JOB), server.nameserver, topic, str(folder), "200"]
    for attempts_left in reversed(range(3)):
        with Program("the streaming job", words) as job:
            try:
                for line in lines:
                    job.wait_line(line, LINE_TIMEOUT_S)
            except ProgramError as ended:
                if not attempts_left or "failed to connect back" not in str(ended):
                    raise
                continue
            os.killpg(job.pid, signal.SIGKILL)
            job.kill()
            return


def test_a_job_that_is_killed_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    topic = server.new_topic("killed")
    sent = fill(server.nameserver, topic, range(900))
    run_until(server, topic, tmp_path, "begin 2")  # in the middle of a batch
    sent |= fill(server.nameserver, topic, range(900, 1300))
    run_until(server, topic, tmp_path, "begin 2", "done 3")  # the same batch again; then between two
    run_until(server, topic, tmp_path, "everything is read")
    rows = pq.read_table(tmp_path / "rows").to_pylist()
    assert len(rows) == len(sent) == 1300
    assert {(row["queueId"], row["queueOffset"]): row["body"] for row in rows} == sent


def test_a_broker_that_is_killed_while_it_is_read(tmp_path: Path) -> None:
    """The reader waits for it, and then has every message once."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from aerobee import TagFilter
    from aerobee.consuming.ranges import QueueRange
    from aerobee.sync import Client
    from pyspark_aerobee.cluster import ClusterSettings
    from pyspark_aerobee.option_names import TOPIC_OPTIONS
    from pyspark_aerobee.options import Options
    from pyspark_aerobee.schema import message_schema
    from pyspark_aerobee.topic_read import ReadSettings, read_ranges

    port = free_port(-2, 1)
    with start_nameserver() as nameserver:
        with start_broker(tmp_path, nameserver.address, port=port) as broker:
            with Client(nameserver.address) as mq:
                mq.admin.create_topic("Torn", queues=1)
                with mq.producer(batch_bytes=2 << 20) as producer:
                    for _ in range(40):
                        producer.send_batch("Torn", [os.urandom(4000) for _ in range(100)])
                (queue,) = mq.queues("Torn")
            options = Options({"nameServer": nameserver.address, "pollTimeoutMs": "2m"}, TOPIC_OPTIONS)
            settings = ReadSettings(
                cluster=ClusterSettings.of(options),
                schema=to_arrow_schema(message_schema(), timezone="UTC"),
                filter=TagFilter(),
                key=None,
                fail_on_data_loss=True,
            )
            batches = read_ranges(settings, [QueueRange(queue, 0, 4000)])
            offsets = next(batches).column("queueOffset").to_pylist()
            assert len(offsets) < 4000
            broker.kill()
        with start_broker(tmp_path, nameserver.address, port=port):
            for batch in batches:
                offsets += batch.column("queueOffset").to_pylist()
    assert offsets == list(range(4000))
