"""How this Python was compiled: without profile-guided optimisation (PGO) a broker takes a quarter more time a message.

Touches  what Python remembers of its own compilation.

    configured with                        here
    --enable-optimizations (or the flags)  optimised: images `python:3.x`, python.org, conda, uv
    --prefix=/usr                          of the system: distributions optimise, and do not all write it down
    neither of them                        plain: `pyenv install` and `make` without more
    --with-pydebug                         for debugging
"""

import platform
import re
import sysconfig
from typing import Final, NamedTuple

__all__ = ["InterpreterBuild", "interpreter_build"]

REMEDY: Final = (
    "use an optimised build, a broker serves about a quarter more with it: Debian's python3.11, the image "
    "python:3.11-slim, or PYTHON_CONFIGURE_OPTS='--enable-optimizations --with-lto' pyenv install"
)


class InterpreterBuild(NamedTuple):
    """What is known of it."""

    text: str  # for people: version and kind
    is_slow: bool
    remedy: str  # what to do, empty when it is not slow


def interpreter_build(
    config_args: str | None = None, flags: str | None = None, *, debug: bool | None = None
) -> InterpreterBuild:
    """The interpreter that runs this; what is given takes the place of what Python says of itself: the arguments of its
    `configure`, the flags of its compiler, whether it is built for debugging."""
    if config_args is None:
        config_args = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    if flags is None:
        names = ("PY_CFLAGS", "PY_CFLAGS_NODIST", "PY_CORE_CFLAGS", "PY_LDFLAGS_NODIST")
        flags = " ".join([str(sysconfig.get_config_var(name) or "") for name in names])
    if debug is None:
        debug = bool(sysconfig.get_config_var("Py_DEBUG"))
    name = f"{platform.python_implementation()} {platform.python_version()}"
    if debug:
        return InterpreterBuild(f"{name}, built for debugging", is_slow=True, remedy=REMEDY)
    has_profile = "--enable-optimizations" in config_args or "-fprofile-use" in flags
    has_lto = "--with-lto" in config_args or "-flto" in flags
    if has_profile:
        kind = "optimised (PGO, LTO)" if has_lto else "optimised (PGO)"
        return InterpreterBuild(f"{name}, {kind}", is_slow=False, remedy="")
    if re.search(r"--prefix=/usr(?=['\"\s]|$)", config_args):
        return InterpreterBuild(f"{name}, as the system's packages have it", is_slow=False, remedy="")
    if not config_args:
        return InterpreterBuild(f"{name}, which does not say how it was built", is_slow=False, remedy="")
    return InterpreterBuild(
        f"{name}, built without profile-guided optimisation{'' if has_lto else ' and LTO'}",
        is_slow=True,
        remedy=REMEDY,
    )
