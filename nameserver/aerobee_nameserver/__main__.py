"""`python -m aerobee_nameserver`."""

import sys

from aerobee_nameserver.main import main

if __name__ == "__main__":
    sys.exit(main())
