"""Numbers on the command line: every option that takes one takes it with one of these bounds.

Touches  nothing.

A number outside is refused with the option and the bound (exit code 2) before anything is asked or changed.
"""

from typing import Final

from cyclopts.validators import Number

__all__ = ["COUNT", "COUNT_OR_ZERO", "OFFSET", "PORT", "QUEUE_ID", "REPLICAS", "SECONDS", "WORKERS"]

INT_MAX: Final = 2**31 - 1  # the wire's int
LONG_MAX: Final = 2**63 - 1  # the wire's long

COUNT: Final = Number(gte=1, lte=INT_MAX)
COUNT_OR_ZERO: Final = Number(gte=0, lte=INT_MAX)
QUEUE_ID: Final = Number(gte=0, lte=INT_MAX)
OFFSET: Final = Number(gte=0, lte=LONG_MAX)
PORT: Final = Number(gte=1, lte=65535)
SECONDS: Final = Number(gt=0, lte=86_400)
REPLICAS: Final = Number(gte=1, lte=9)
WORKERS: Final = Number(gte=1, lte=64)  # as the setting
