"""`python -m aerobee_broker`."""

import sys

from aerobee_broker.main import main

sys.exit(main())
