"""How a program of one's own begins a Spark session: with a Java that Spark can run on, and with this Python.

Touches  JAVA_HOME and PYSPARK_PYTHON of this process; one short run of the Python that Spark would ask.

Spark starts Python by name, `python3` of the PATH, unless PYSPARK_PYTHON says otherwise. A program that runs in an
environment of its own (`.venv/bin/python job.py`) is then served by a Python in which nothing is installed, and Spark
says no more than that there is no data source "aerobee".
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark_aerobee.errors import PipelineError
from pyspark_aerobee.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PythonMismatch", "check_python", "session", "use_python"]

LOOK_S: Final = 60.0


class PythonMismatch(PipelineError):
    """The Python that Spark starts does not have this package."""


def use_python() -> str:
    """Let Spark start the Python that runs this, unless PYSPARK_PYTHON names another; which it is.

    Call it before the first session: Spark's Java program keeps the environment that it was started with.
    """
    return os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def session(
    name: str = "aerobee", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """The open session, or a new one in which `format("aerobee")` works: on this machine unless `master` says where.

    JavaMissing, PythonMismatch: what is to be done is in the text.
    """
    prepared = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit
    if not prepared:
        use_java()
        use_python()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None or not prepared:
        builder = builder.master(master or "local[*]")
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    check_python(spark)
    return spark


def check_python(spark: Any) -> None:
    """PythonMismatch when a session on this machine starts a Python in which this package is missing."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return  # its Python is the server's
    context = spark.sparkContext
    asked = str(context.pythonExec)
    if not str(context.master).startswith("local") or asked == sys.executable:
        return
    found = shutil.which(asked)
    reason = "there is no such program on the PATH" if found is None else _what_is_missing(found)
    if reason:
        raise PythonMismatch(
            f"Spark starts {found or asked!r}, not the Python that runs this ({sys.executable}): {reason}. Set "
            f"PYSPARK_PYTHON={sys.executable}, or begin with pyspark_aerobee.session() or use_python(), before the "
            "first session of the program"
        )


def _what_is_missing(python: str) -> str:
    """Why a Python cannot serve; empty when it can."""
    try:
        done = subprocess.run(  # noqa: S603  # the one that Spark would start
            [python, "-c", "import pyspark, pyspark_aerobee"],
            capture_output=True, text=True, timeout=LOOK_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as failed:
        return f"it does not run: {failed}"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"it ends with code {done.returncode}")
