"""The native engine, built so that the fuzzer sees its coverage too, and a run that uses it.

Touches  native/target/, where cargo builds; then this process becomes the run.

rustc writes the same counters as clang does for libFuzzer. atheris has the functions that take them in a library that
is loaded before Python: only so the engine, a library itself, finds them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

__all__ = ["begin_again"]

NATIVE: Final = Path(__file__).resolve().parents[2] / "native"
BUILT: Final = NATIVE / "target" / "fuzz"
FLAGS: Final = (
    "-Cpasses=sancov-module",
    *(
        f"-Cllvm-args=-sanitizer-coverage-{name}"
        for name in ("level=3", "inline-8bit-counters", "pc-table", "trace-compares")
    ),
)


def begin_again(words: list[str]) -> NoReturn:
    """Build the engine and run the fuzzer with it, with these words. SystemExit: it cannot be built."""
    import atheris

    if shutil.which("cargo") is None:
        raise SystemExit("--rust builds the native engine: it needs cargo")
    # Its own crate alone is seen; link-time optimisation would lose the counters.
    build = ["cargo", "rustc", "--release", "--lib", "--config", "profile.release.lto=false", "--target-dir"]
    subprocess.run([*build, str(BUILT), "--", *FLAGS], cwd=NATIVE, check=True)
    (BUILT / "engine").mkdir(exist_ok=True)
    shutil.copyfile(BUILT / "release" / "libaerobee_native.so", BUILT / "engine" / "aerobee_native.abi3.so")
    environ = {
        **os.environ,
        "LD_PRELOAD": str(Path(atheris.path()) / "ubsan_with_fuzzer.so"),
        "PYTHONPATH": os.pathsep.join([str(BUILT / "engine"), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *words], environ)  # this very program
