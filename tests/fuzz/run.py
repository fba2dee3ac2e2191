"""Run targets, guided by coverage: `python tests/fuzz/run.py [TARGET ...] [--seconds S] [--runs N] [--keep]`.

Without a target all of them are run, each in a process of its own. Inputs begin with those of corpus/TARGET.txt (one a
line, base64) and the seeds of the target; `--keep` writes those that reached new code into that file, as many as fit.
What one seed (`--seed`) makes up is the same again, as long as the code is.

What is found is said with a line that runs just that input again (`--bytes`); the bytes lie in `fuzz-findings/` of the
current folder, too. Every run counts in ledger.json, which belongs to what is committed: runs and seconds of each
target so far, and the day of the last. `./dev fuzz` is the same.

Needs atheris, which is there for Linux on x86-64.
"""

import argparse
import base64
import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

HERE: Final = Path(__file__).resolve().parent
CORPUS: Final = HERE / "corpus"
LEDGER: Final = HERE / "ledger.json"
INPUT_TIME_MAX_S: Final = (
    20  # of one input, by the clock: it hangs; targets have a stricter bound of their own
)
KEPT_SIZE_MAX: Final = 12_288  # bytes of a corpus file
KEPT_INPUT_SIZE_MAX: Final = 600
SAID_SIZE_MAX: Final = 6000
NATIVE: Final = "aerobee_native"
WRITTEN: Final = (
    "Test unit written to"  # as libFuzzer says it of an input that hangs or takes too much memory
)
# Of what the targets call, those modules that read bytes: each line of them costs time when its coverage is measured.
INSTRUMENTED: Final = [
    "aerobee_proto", "aerobee_access", "aerobee_store.index", "aerobee_store.log", "aerobee_store.queues",
    "aerobee_store.records", "aerobee_store.recovery", "aerobee_store.timer", "aerobee_store.walking",
    "aerobee_broker.settings.config_files",
    "aerobee_broker.catalog", "aerobee_broker.messages.recall_handles", "aerobee_broker.members.filters",
    "aerobee_broker.pop", "aerobee_broker.schedule.delay_offsets", "aerobee_nameserver.kv_config",
    "aerobee_service.settings.settings", "aerobee_service.tls.validity", "aerobee_service.operators.http_responder",
    "aerobee.consuming.pulls", "aerobee.consuming.local_offsets", "aerobee.messages", "aerobee.net.offsets",
    "aerobee.net.answers", "aerobee.producing.replies", "aerobee.session.trace", "aerobee.terms.routes",
    "aerobee_broker.remoting_api.native_sends", "aerobee_broker.remoting_api.send", "engine_pair",
    "aerobee_broker.messages.intake", "aerobee_broker.messages.publish", "aerobee_broker.messages.publish_batches",
    "aerobee_broker.messages.stored_properties",
]  # fmt: skip


@dataclass(slots=True, frozen=True)
class Ran:
    """What one process did."""

    runs: int  # as the fuzzer has counted them
    seconds: float  # of the processor
    finding: str  # empty, or what was said, with the line that runs it again


def corpus_of(target: str) -> list[bytes]:
    """The inputs that are kept of a target."""
    path = CORPUS / f"{target}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.exists() else []


def fuzz(target: str, *, runs: int, seconds: int, seed: int, findings: Path, keep: bool = False) -> Ran:
    """Run a target in a fork of this process, until so many runs, or seconds, or a finding. After `load`.

    `runs` -1: as many as there is time for; `seconds` 0: without end.
    """
    from fuzz.targets import TARGETS

    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="aerobee-fuzz-") as folder:
        inputs, said = Path(folder) / "inputs", Path(folder) / "said"
        inputs.mkdir()
        begin = []
        for number, data in enumerate((*corpus_of(target), *TARGETS[target].seeds())):
            begin.append(inputs / f"begin-{number}")
            begin[-1].write_bytes(data)
        child = os.fork()
        if not child:
            options = [
                f"-runs={runs}", f"-max_total_time={seconds}", f"-max_len={TARGETS[target].size_max}", f"-seed={seed}",
                f"-timeout={INPUT_TIME_MAX_S}", f"-artifact_prefix={findings}/{target}-", "-rss_limit_mb=2048",
                "-print_final_stats=1", "-reload=0",
            ]  # fmt: skip
            if keep:
                options.append(str(inputs))
            else:  # nothing that is made up is written
                listed = Path(folder) / "listed"
                listed.write_text(",".join(map(str, begin)))
                options.append(f"-seed_inputs=@{listed}")
            _inside(target, said, findings, options)
        _, status, used = os.wait4(child, 0)
        text = said.read_text(errors="replace")
        counted = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
        if keep and not status:
            _keep(target, inputs)
        return Ran(
            int(counted[1]) if counted else 0,
            used.ru_utime + used.ru_stime,
            _finding(target, text, seed) if status else "",
        )


def _inside(name: str, said: Path, findings: Path, options: list[str]) -> NoReturn:
    """In the fork."""
    import atheris

    from fuzz.targets import TARGETS

    target = TARGETS[name]

    def kept_if_found(data: bytes) -> None:
        try:
            target(data)
        except BaseException:  # atheris ends the process without a word about the input
            path = findings / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            print(f"{WRITTEN} {path}", flush=True)
            raise

    try:
        with said.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        atheris.Setup([sys.argv[0], *options], kept_if_found)
        atheris.Fuzz()
    finally:
        sys.stderr.flush()
        os._exit(1)  # it ends by itself, unless it could not begin


def _finding(target: str, said: str, seed: int) -> str:
    """What the fuzzer said at last, and how to see it again."""
    again = f"./dev fuzz {target} --seed {seed}"
    written = re.findall(rf"{WRITTEN} (\S+)", said)
    if written:
        data = Path(written[-1]).read_bytes()
        again = f"./dev fuzz {target} --bytes '{base64.b64encode(data).decode()}'"
    return f"{said[-SAID_SIZE_MAX:]}\nseed {seed}; to run it again:\n{again}\n"


def load() -> None:
    """Import what is fuzzed, so that its coverage is seen, and make what is made once."""
    import atheris

    sys.path.insert(0, str(HERE.parent))
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz.targets import TARGETS
    _be_silent()
    if importlib.util.find_spec(NATIVE) is not None:
        importlib.import_module(NATIVE)  # what it tells of its coverage is known before the first input
    for target in TARGETS.values():
        target(b"")


def _be_silent() -> None:
    """No logs: they would cost more than what is looked for."""
    import structlog

    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _keep(target: str, found: Path) -> None:
    kept: list[bytes] = []
    size = 0
    for path in sorted(found.iterdir(), key=lambda one: (one.stat().st_size, one.name)):
        data = path.read_bytes()
        size += len(base64.b64encode(data)) + 1
        if not data or len(data) > KEPT_INPUT_SIZE_MAX or size > KEPT_SIZE_MAX:
            continue
        kept.append(data)
    text = "".join(f"{base64.b64encode(data).decode()}\n" for data in kept)
    (CORPUS / f"{target}.txt").write_text(text)


def count(target: str, ran: Ran) -> None:
    """Add what was done to the ledger."""
    ledger = json.loads(LEDGER.read_text()) if LEDGER.exists() else {}
    entry = ledger.setdefault(target, {"runs": 0, "seconds": 0})
    entry["runs"] += ran.runs
    entry["seconds"] += round(ran.seconds)
    entry["last"] = datetime.now(UTC).date().isoformat()
    LEDGER.write_text(json.dumps(ledger, indent=1, sort_keys=True) + "\n")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("targets", nargs="*", metavar="TARGET", help="all of them without")
    add("--runs", type=int, default=-1, help="inputs of each target (as many as there is time for)")
    add("--seconds", type=int, default=60, help="time of each target (60); 0 is for ever")
    add("--ci", action="store_true", help="as many runs of each target as CI makes, whatever time they take")
    add("--seed", type=int, default=0, help="of what is made up; another one each time without")
    add("--keep", action="store_true", help="write the inputs that reached new code into the corpus")
    add("--input", type=Path, help="run the target on this file alone")
    add("--bytes", help="run the target on these bytes alone (base64)")
    add("--findings", type=Path, default=Path("fuzz-findings"))
    add(
        "--rust", action="store_true", help="be guided by the native engine's code, too: builds it with cargo"
    )
    add("--uncounted", action="store_true", help="leave the ledger as it is")
    return parser


def main() -> int:
    parser = _options()
    options = parser.parse_args()
    if options.rust:
        sys.path.insert(0, str(HERE.parent))
        from fuzz.rust import begin_again

        begin_again([word for word in sys.argv if word != "--rust"])
    load()
    from fuzz.targets import TARGETS

    for name in options.targets:
        if name not in TARGETS:
            parser.error(f"no target {name!r}; there are {', '.join(TARGETS)}")
    if options.input is not None or options.bytes is not None:
        if len(options.targets) != 1:
            parser.error("one input is for one target: name it")
        data = options.input.read_bytes() if options.input is not None else base64.b64decode(options.bytes)
        TARGETS[options.targets[0]](data)
        print("no finding")
        return 0
    failed = False
    for target in options.targets or TARGETS:
        ran = fuzz(
            target,
            runs=TARGETS[target].runs if options.ci else options.runs,
            seconds=0 if options.ci else options.seconds,
            seed=options.seed or time.time_ns() % (1 << 31),
            findings=options.findings.resolve(),
            keep=options.keep,
        )
        if not options.uncounted:
            count(target, ran)
        rate = f"{ran.runs / max(ran.seconds, 0.001):>8,.0f} a second"
        end = "FOUND" if ran.finding else ""
        print(f"{target:18} {ran.runs:>10,} runs in {ran.seconds:5.1f} s {rate}  {end}", flush=True)
        if ran.finding:
            failed = True
            print(ran.finding, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
