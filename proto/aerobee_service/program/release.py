"""Which Aerobee this is, as logs and metrics say it.

Touches  the metadata of the installed package, once, at import.
"""

from importlib.metadata import version
from typing import Final

__all__ = ["VERSION_OF_AEROBEE"]

VERSION_OF_AEROBEE: Final = version("aerobee")
