"""`python -m aerobee_broker`."""

import sys

from aerobee_remoting.interrupts import INTERRUPTED, end_quietly_while_loading

if __name__ == "__main__":
    end_quietly_while_loading()
    from aerobee_broker.main import main

    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)
