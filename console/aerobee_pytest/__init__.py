"""pytest plug-in: a real nameserver and broker inside the test run, for tests of programs that use Aerobee.

pytest finds it by itself. Nothing but this package and `plugin` is loaded before a test asks for a fixture.
What the fixtures are, with examples, is told in docs/testing.md; `Server` is their type.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee_pytest.server import Server

__all__ = ["Server"]


def __getattr__(name: str) -> Any:
    if name == "Server":
        from aerobee_pytest.server import Server

        return Server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
