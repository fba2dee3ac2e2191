import json
import subprocess
import sys

# What only broker, console or tests need; a program that sends a message must not pay for it. (structlog loads
# rich by itself where it is installed.)
HEAVY = (
    "numpy",
    "pydantic",
    "pydantic_settings",
    "cyclopts",
    "prometheus_client",
    "lz4",
    "zstandard",
    "aerobee_store",
    "aerobee_broker",
    "aerobee_nameserver",
    "aerobee_console",
)


def test_importing_the_client_loads_nothing_heavy() -> None:
    code = "import sys, json, aerobee, aerobee.sync; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert "aerobee.sync" in loaded
    assert not loaded & set(HEAVY)


def test_every_public_name_is_there() -> None:
    import aerobee

    assert sorted(aerobee.__all__) == aerobee.__all__
    assert all(hasattr(aerobee, name) for name in aerobee.__all__)
