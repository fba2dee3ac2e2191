"""`python -m aerobee_nameserver`."""

import sys

from aerobee_remoting.interrupts import INTERRUPTED, end_quietly_while_loading

if __name__ == "__main__":
    end_quietly_while_loading()
    from aerobee_nameserver.main import main

    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)
