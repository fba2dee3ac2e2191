"""`python -m aerobee`: the command `aerobee`, wherever its script is not on the PATH.

The command belongs to another room, so it is found as the script is: by the entry point of the installation.
"""

import sys

from aerobee_service.program.interrupts import end_quietly_while_loading

end_quietly_while_loading()
from importlib.metadata import entry_points  # noqa: E402  # it takes its time

command = next(iter(entry_points(group="console_scripts", name="aerobee")), None)
if command is None:
    sys.exit("aerobee: this copy of the package is not installed: pip install '.[all]' in its folder")
sys.exit(command.load()())
