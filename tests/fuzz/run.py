"""Run one target, guided by coverage: `python tests/fuzz/run.py TARGET [--runs N] [--seconds S] [--keep]`.

Without a target all of them are run, each in a process of its own. Inputs begin with those of corpus/TARGET.txt (one a
line, base64) and the seeds of the target; `--keep` writes those that reached new code into that file, as many as fit.
What is found lies in `fuzz-findings/` of the current folder, as bytes; `--input FILE` runs the target on one. Every run
counts in ledger.json, which belongs to what is committed. `./dev fuzz` is the same.

Needs atheris, which is there for Linux on x86-64.
"""

import argparse
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

HERE: Final = Path(__file__).resolve().parent
CORPUS: Final = HERE / "corpus"
LEDGER: Final = HERE / "ledger.json"
INPUT_SIZE_MAX: Final = 4096
INPUT_TIME_MAX_S: Final = 10  # of one input: more is a finding
KEPT_SIZE_MAX: Final = 12_288  # bytes of a corpus file
KEPT_INPUT_SIZE_MAX: Final = 600
INSTRUMENTED: Final = [
    "aerobee_proto", "aerobee_store", "aerobee_broker.settings", "aerobee_broker.catalog", "aerobee_broker.messages",
    "aerobee_broker.pop", "aerobee_broker.remoting_api.native_sends", "aerobee_broker.remoting_api.send",
    "aerobee_service.settings", "aerobee_service.tls", "engine_pair",
]  # fmt: skip


@dataclass(slots=True, frozen=True)
class Ran:
    """What one process did."""

    runs: int
    seconds: float
    finding: str  # empty, or what was said, with the place of the input


def corpus_of(target: str) -> list[bytes]:
    """The inputs that are kept of a target."""
    path = CORPUS / f"{target}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.exists() else []


def fuzz(target: str, *, runs: int, seconds: int, findings: Path, keep: bool = False) -> Ran:
    """Run a target in a fork of this process, until so many runs, or seconds, or a finding. After `load`."""
    from fuzz.targets import seeds_of

    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="aerobee-fuzz-") as folder:
        found, said = Path(folder) / "found", Path(folder) / "said"
        found.mkdir()
        for number, data in enumerate((*corpus_of(target), *seeds_of(target))):
            (found / f"begin-{number}").write_bytes(data)
        began = time.monotonic()
        child = os.fork()
        if not child:
            _inside(target, found, said, findings, runs, seconds)
        _, status = os.waitpid(child, 0)
        text = said.read_text(errors="replace")
        counted = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
        if keep and not status:
            _keep(target, found)
        finding = text[-6000:] if status else ""
        return Ran(int(counted[1]) if counted else 0, time.monotonic() - began, finding)


def _inside(target: str, found: Path, said: Path, findings: Path, runs: int, seconds: int) -> NoReturn:
    """In the fork."""
    import atheris

    from fuzz.targets import TARGETS

    try:
        with said.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        options = [
            f"-runs={runs}", f"-max_total_time={seconds}", f"-max_len={INPUT_SIZE_MAX}", f"-timeout={INPUT_TIME_MAX_S}",
            f"-artifact_prefix={findings}/{target}-", "-rss_limit_mb=2048", "-print_final_stats=1",
        ]  # fmt: skip
        atheris.Setup([sys.argv[0], *options, str(found)], TARGETS[target])
        atheris.Fuzz()
    finally:
        sys.stderr.flush()
        os._exit(1)  # it ends by itself, unless it could not begin


def load() -> None:
    """Import what is fuzzed, so that its coverage is seen, and make what is made once."""
    import atheris

    sys.path.insert(0, str(HERE.parent))
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz.targets import TARGETS
    for target in TARGETS.values():
        target(b"")


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
    LEDGER.write_text(json.dumps(ledger, indent=1, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", nargs="?", help="one target; all of them without")
    parser.add_argument(
        "--runs", type=int, default=-1, help="inputs of each target (as many as there is time for)"
    )
    parser.add_argument("--seconds", type=int, default=60, help="time of each target (60); 0 is for ever")
    parser.add_argument(
        "--keep", action="store_true", help="write the inputs that reached new code into the corpus"
    )
    parser.add_argument("--input", type=Path, help="run the target on this file alone")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--uncounted", action="store_true", help="leave the ledger as it is")
    options = parser.parse_args()
    load()
    from fuzz.targets import TARGETS

    if options.target is not None and options.target not in TARGETS:
        parser.error(f"no target {options.target!r}; there are {', '.join(TARGETS)}")
    if options.input is not None:
        TARGETS[options.target](options.input.read_bytes())
        print("no finding")
        return 0
    failed = False
    for target in [options.target] if options.target else TARGETS:
        ran = fuzz(
            target,
            runs=options.runs,
            seconds=options.seconds,
            findings=options.findings.resolve(),
            keep=options.keep,
        )
        if not options.uncounted:
            count(target, ran)
        print(
            f"{target:16} {ran.runs:>10,} runs in {ran.seconds:.0f} s  {'FOUND' if ran.finding else ''}",
            flush=True,
        )
        if ran.finding:
            failed = True
            print(ran.finding, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
