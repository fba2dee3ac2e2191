"""Apache Kafka beside us: its Java producer and consumer with its broker, from the published jars, on this machine.

    .venv/bin/python bench/kafka.py [--rounds 3] [--records 1500000] [--size 128] [-o table|json]

A broker in KRaft mode, one log for each of 4 partitions, and Kafka's own `ProducerPerformance` and
`ConsumerPerformance`, as many records a round as are given; the first round warms up and does not count. The producer
runs as it is set up by itself but for acks=1, which is what a broker with asynchronous flush promises: Kafka never
waits for the disk. Beside it stands what our Python client does with our broker (`bench/compare.py --group clients`).
Needs Java 17 and Maven, which fetches 70 MB of jars once. About two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import official  # noqa: E402  # found by the path above
from programs import Server, free_port  # noqa: E402

JARS = Path(__file__).resolve().parent / "kafka_jars"
BUILD_TIMEOUT_S, START_TIMEOUT_S, RUN_TIMEOUT_S = 900.0, 60.0, 300.0
PATIENCE_S = 60.0  # of the consumer: its group begins with a topic that is made first
HEAP = ["-Xms1g", "-Xmx1g", "-XX:+UseG1GC"]  # of Kafka's own start script
TOPIC = "bench"
PRODUCED = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured (3)")
    parser.add_argument("--records", type=int, default=1_500_000, help="records of a round (1,500,000)")
    parser.add_argument("--size", type=int, default=128, help="bytes of a record (128)")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    if reason := official.missing():
        raise SystemExit(reason)
    jars = class_path()
    with tempfile.TemporaryDirectory(prefix="aerobee-kafka-") as folder, start(Path(folder), jars) as broker:
        rounds = [
            (produced(jars, broker.address, options), consumed(jars, broker.address, options))
            for _ in range(options.rounds + 1)
        ][1:]
    found = {"producer": [one for one, _ in rounds], "consumer": [one for _, one in rounds]}
    if options.output == "json":
        print(json.dumps(found))
    else:
        for name, rates in found.items():
            told = ", ".join([f"{rate:,.0f}" for rate in rates])
            print(f"Kafka {name}: {statistics.median(rates):,.0f} records/s of {options.size} bytes ({told})")
    return 0


def class_path() -> str:
    """Kafka's jars, fetched by Maven when they are not there."""
    target = JARS / "target"
    target.mkdir(exist_ok=True)
    listed = target / "classpath.txt"
    if not listed.exists():
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
        done = subprocess.run(
            ["mvn", "-q", "-B", goal, f"-Dmdep.outputFile={listed}"],
            cwd=JARS,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"Maven could not fetch Kafka:\n{done.stdout}{done.stderr}")
    return listed.read_text().strip()


def start(folder: Path, jars: str) -> Server:
    """A broker that is its own controller."""
    port, control = free_port(), free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{control}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": folder / "logs",
        "num.partitions": 4,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    config = folder / "server.properties"
    config.write_text("".join([f"{name}={value}\n" for name, value in settings.items()]))
    words = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(config)]
    run(jars, words)
    command = ["java", *HEAP, *quiet(folder, "INFO"), "-cp", jars, "kafka.Kafka", str(config)]
    return Server("Kafka", command, f"127.0.0.1:{port}", r"Kafka Server started", timeout_s=START_TIMEOUT_S)


def quiet(folder: Path, level: str) -> list[str]:
    """What its logging is told: lines on standard output."""
    file = folder / f"log4j-{level}.properties"
    file.write_text(
        f"log4j.rootLogger={level}, stdout\n"
        "log4j.appender.stdout=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.stdout.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.stdout.layout.ConversionPattern=%p %m%n\n"
    )
    return [f"-Dlog4j.configuration=file:{file}"]


def run(jars: str, words: list[str]) -> str:
    done = subprocess.run(
        ["java", "-Xmx512m", "-cp", jars, *words],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{words[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def produced(jars: str, address: str, options: argparse.Namespace) -> float:
    """Records a second of Kafka's producer, from its first to the last answer."""
    properties = [f"bootstrap.servers={address}", "acks=1"]
    words = ["--topic", TOPIC, "--num-records", str(options.records), "--record-size", str(options.size)]
    text = run(
        jars,
        [
            "org.apache.kafka.tools.ProducerPerformance",
            *words,
            "--throughput",
            "-1",
            "--producer-props",
            *properties,
        ],
    )
    return float(PRODUCED.findall(text)[-1][1])


def consumed(jars: str, address: str, options: argparse.Namespace) -> float:
    """Records a second of Kafka's consumer, without the time to join its group."""
    words = ["--bootstrap-server", address, "--topic", TOPIC, "--messages", str(options.records)]
    words += ["--group", f"bench-{os.urandom(4).hex()}", "--timeout", str(round(1000 * PATIENCE_S))]
    text = run(jars, ["org.apache.kafka.tools.ConsumerPerformance", *words])
    lines = [line for line in text.splitlines() if line.startswith("start.time") or line[:1].isdigit()]
    heads, values = ([cell.strip() for cell in line.split(",")] for line in lines)
    found = dict(zip(heads, values, strict=True))
    if int(found["data.consumed.in.nMsg"]) < options.records:
        raise SystemExit(f"Kafka's consumer had no records for {PATIENCE_S:g} s:\n{text}")
    return float(found["fetch.nMsg.sec"])


if __name__ == "__main__":
    sys.exit(main())
