import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

# What only broker, console or tests need; a program that sends a message must not pay for it.
HEAVY = (
    "numpy",
    "pydantic",
    "pydantic_settings",
    "cyclopts",
    "prometheus_client",
    "opentelemetry",
    "structlog",
    "rich",
    "crc32c",
    "lz4",
    "zstandard",
    "aerobee_proto.sql92",
    "aerobee_store",
    "aerobee_broker",
    "aerobee_nameserver",
    "aerobee_console",
)
# What a program that only sends leaves alone.
FOR_CONSUMERS = (
    "aerobee.admin.admin",
    "aerobee.consuming.group_consumer",
    "aerobee.session.trace",
    "aerobee.session.telemetry",
)


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, json; {code}; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_importing_the_client_loads_nothing_heavy() -> None:
    loaded = loaded_by("import aerobee, aerobee.sync; aerobee.Client")
    assert "aerobee.sync" in loaded
    assert not loaded & {*HEAVY, *FOR_CONSUMERS}


def test_the_package_alone_loads_nothing_of_ours() -> None:
    assert {name for name in loaded_by("import aerobee") if name.startswith("aerobee")} == {"aerobee"}


def test_every_public_name_is_there() -> None:
    import aerobee

    assert sorted(aerobee.__all__) == aerobee.__all__ == dir(aerobee)
    assert all(hasattr(aerobee, name) for name in aerobee.__all__)


def test_type_checkers_see_the_same_names() -> None:
    import aerobee

    source = ast.parse(Path(str(aerobee.__file__)).read_text(encoding="utf-8"))
    (block,) = [
        one for one in source.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"
    ]
    seen = {
        str(alias.asname): str(one.module)
        for one in block.body
        if isinstance(one, ast.ImportFrom)
        for alias in one.names
    }
    assert sorted(seen) == aerobee.__all__
    assert all(getattr(aerobee, name) is getattr(import_module(home), name) for name, home in seen.items())


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import aerobee

    with pytest.raises(AttributeError, match="no attribute 'Consumer'"):
        _ = aerobee.Consumer  # type: ignore[attr-defined]
