"""`python -m aerobee_console`: the `aerobee` command."""

import sys

from aerobee_console.main import main

sys.exit(main())
