"""How this command is typed here, so that a line which is printed works when it is typed.

Touches  the PATH, and the folder of the interpreter.
"""

import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["program_name"]


def program_name() -> str:
    """`aerobee` where the PATH leads to this installation, else the way to its script, else the module."""
    script = Path(sys.executable).with_name("aerobee")
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m aerobee"
    found = shutil.which("aerobee")
    if found is not None and Path(found).samefile(script):
        return "aerobee"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))
