"""The brokers that are compared: each with a nameserver of its own, frozen while another one is measured.

Touches  subprocesses (signals included), folders that callers pass in.

All sides run from the start to the end, so that each stays warm; SIGSTOP keeps the ones that are not measured from
taking processor time from the one that is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import official
import ours
from aerobee_store.disk.extents import data_extents
from programs import Server, free_port, memory_kib

__all__ = ["Engine", "Flush", "Maker", "Side", "start_side"]

Maker = Literal["ours", "official"]
Engine = Literal["auto", "python", "native"]
Flush = Literal["async", "sync"]

SAMPLE_S = 0.25
READ_SIZE = 1 << 20
MIB = 1024
ENGINE_CODES = {"10", "310", "320", "11", "361", "12"}  # requests that an engine may take
_REQUESTS = re.compile(r"^aerobee_requests_total\{([^}]*)\} (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
GIB_PAGES = (1 << 30) // os.sysconf("SC_PAGE_SIZE")

# Of the official runbroker.sh, apart from the heap's size.
OFFICIAL_JVM = [
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:+AlwaysPreTouch",
    "-XX:MaxDirectMemorySize=15g",
    "-XX:-UseLargePages",
]


def heap_gib() -> int:
    """The official script's 8 GiB, or a sixth of a smaller machine's memory: two official brokers run at once."""
    return max(1, min(8, os.sysconf("SC_PHYS_PAGES") // GIB_PAGES // 6))


class Side:
    """One broker with one nameserver."""

    def __init__(
        self,
        maker: Maker,
        flush: Flush,
        nameserver: Server,
        broker: Server,
        folder: Path,
        metrics_address: str = "",
        label: str = "",
    ) -> None:
        # Fixed for life.
        self.folder = folder  # its stores are in there
        self.metrics_address = metrics_address  # of health and metrics, where there are any
        self.maker = maker
        self.flush = flush
        self.name = f"{label or maker} {flush}"
        self.engine = _engine(metrics_address) if metrics_address else ""  # that takes our sends
        self.nameserver = nameserver
        self.broker = broker
        self.start_s = broker.ready_after_s
        self.idle_mib = memory_kib(broker.pid)["own"] / MIB
        # How many messages its pull topic and keys its query topic hold; set by the warm-up.
        self.pull_messages = 0
        self.query_keys = 0
        # What readers of a topic will read: parts of files, by their first byte and where they end.
        self._stored: dict[str, list[tuple[Path, int, int]]] = {}
        # Anonymous memory only, in KiB; moved by the sampling thread.
        self._peak_kib = 0

    def requests(self) -> Counter[str]:
        """Sends, pulls and queries by key that it has had, by the engine that served them; nothing where it does not
        say so."""
        found: Counter[str] = Counter()
        if self.metrics_address:
            for labels, count in _REQUESTS.findall(_metrics(self.metrics_address)):
                fields = dict(_LABEL.findall(labels))
                if fields["code"] in ENGINE_CODES:
                    found[fields["engine"]] += int(float(count))
        return found

    def freeze(self) -> None:
        """Stop both programs where they are."""
        for server in (self.broker, self.nameserver):
            os.kill(server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let both programs go on."""
        for server in (self.nameserver, self.broker):
            os.kill(server.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Run alone, with memory sampled; what was written before is on disk first."""
        os.sync()
        self.thaw()
        done = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(done,), name=f"memory of {self.name}")
        sampler.start()
        try:
            yield
        finally:
            done.set()
            sampler.join()
            self.freeze()

    @contextlib.contextmanager
    def storing(self, topic: str) -> Iterator[None]:
        """What its files get meanwhile is what readers of this topic will read."""
        before = {path: extents[-1][1] for path, extents in self._extents()}
        yield
        parts = self._stored[topic] = []
        for path, extents in self._extents():
            # An index has its new keys everywhere, all other files at their ends.
            new = 0 if path.parent.name == "index" else max(0, before.get(path, 0) - READ_SIZE)
            parts += [(path, max(begin, new), end) for begin, end in extents if end > new]

    def _extents(self) -> Iterator[tuple[Path, list[tuple[int, int]]]]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    extents = data_extents(file.fileno(), 0, path.stat().st_size)
                if extents:
                    yield path, extents

    def warm_store(self, topic: str) -> None:
        """Bring what readers of this topic will read into memory. A system may take pages from there that nobody has
        asked for lately, and takes those first that nobody maps: a broker that maps its log would be measured warm, and
        others cold."""
        for path, begin, end in self._stored.get(topic, ()):
            with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
                file.seek(begin)
                while begin < end and (piece := file.read(min(READ_SIZE, end - begin))):
                    begin += len(piece)

    def cpu_s(self) -> float:
        """Processor time that the broker has used so far, user and system."""
        words = Path(f"/proc/{self.broker.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def load_mib(self) -> float:
        """Largest memory under load apart from mapped store files, in MiB."""
        not_anonymous = memory_kib(self.broker.pid)["own"] - _anonymous_kib(self.broker.pid)
        return (self._peak_kib + not_anonymous) / MIB

    def _sample(self, done: threading.Event) -> None:
        while not done.wait(SAMPLE_S):
            self._peak_kib = max(self._peak_kib, _anonymous_kib(self.broker.pid))


@contextlib.contextmanager
def start_side(
    maker: Maker,
    flush: Flush,
    folder: Path,
    engine: Engine = "auto",
    label: str = "",
    config: Mapping[str, object] | None = None,
) -> Iterator[Side]:
    """Start both programs with default file sizes and an empty store; frozen when it yields. `engine` is for ours.
    `config` adds to the broker's settings, or overrides them."""
    folder.mkdir(parents=True)
    settings = {
        "flushDiskType": f"{flush.upper()}_FLUSH",
        "mappedFileSizeCommitLog": 1 << 30,
        **(config or {}),
    }
    metrics_address = ""
    with contextlib.ExitStack() as stack:
        if maker == "ours":
            compile_ours()
            nameserver = stack.enter_context(ours.start_nameserver(forked=False))
            metrics_address = f"127.0.0.1:{(port := free_port())}"
            config = {**settings, "metricsPromExporterPort": port}
            if engine != "auto":
                config["sendEngine"] = engine
            broker = stack.enter_context(
                ours.start_broker(folder, nameserver.address, config=config, forked=False)
            )
        else:
            nameserver = stack.enter_context(official.start_nameserver(folder))
            heap = [f"-Xms{heap_gib()}g", f"-Xmx{heap_gib()}g", *OFFICIAL_JVM]
            broker = official.start_broker(
                folder, nameserver.address, config=settings, heap=heap, patient=False
            )
            stack.callback(broker.kill)  # an orderly stop of a frozen JVM takes long and shows nothing
        side = Side(maker, flush, nameserver, broker, folder, metrics_address, label)
        stack.callback(side.thaw)
        side.freeze()
        yield side


@functools.cache  # once is enough
def compile_ours() -> None:
    """Let Python keep the bytecode of our programs, as an installed package has it: else the first start compiles
    all, and where PYTHONDONTWRITEBYTECODE is set each one does."""
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    for program in ("broker", "nameserver"):
        subprocess.run(  # our own
            [sys.executable, "-c", f"import aerobee_console.main, aerobee_{program}.main"],
            env=environment,
            check=True,
        )


def _engine(metrics_address: str) -> str:
    """Which engine takes our sends, as the metrics say it; they say nothing where there is but one."""
    found = re.search(r'aerobee_send_engine\{[^}]*engine="(\w+)"', _metrics(metrics_address))
    return found[1] if found else "python"


def _metrics(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:  # our own port
        text: str = answer.read().decode()
    return text


def _anonymous_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0
