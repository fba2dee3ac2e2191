"""Options that may be given several times, each with one value: --set a=1 --set b=2.

Touches  nothing.
"""

from cyclopts import Parameter

__all__ = ["several"]


def several(name: str | list[str], text: str) -> Parameter:
    """An option of this name, or these; `text` is its help. Values are taken as they are written, never as JSON."""
    return Parameter(name=name, negative=(), json_list=False, show_default=False, help=text)
