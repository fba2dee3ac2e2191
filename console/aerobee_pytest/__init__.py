"""pytest plug-in: a real nameserver and broker inside the test run, for tests of programs that use Aerobee.

pytest finds it by itself. Nothing but this package and `plugin` is loaded before a test asks for a fixture.
What the fixtures are, with examples, is told in docs/testing.md; `Server` and `Pair` are their types.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee_pytest.server import Pair, Server

__all__ = ["Pair", "Server"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from aerobee_pytest import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
