"""The crates of the native engine: each of them by one version, without a lock file."""

import tomllib
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[3] / "native"


def test_every_crate_is_named_with_its_version() -> None:
    """One that is not named is another one tomorrow. Cargo has written down what it took where it was built."""
    lock = NATIVE / "Cargo.lock"
    if not lock.exists():
        pytest.skip("the native engine was not built here: ./dev setup does, where cargo is")
    manifest = tomllib.loads((NATIVE / "Cargo.toml").read_text(encoding="utf-8"))
    named = manifest["dependencies"] | manifest["target"]["cfg(any())"]["dependencies"]
    wanted = {name: said if isinstance(said, str) else said["version"] for name, said in named.items()}
    own = manifest["package"]["name"]
    taken = {
        one["name"]: f"={one['version']}"
        for one in tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
        if one["name"] != own
    }
    assert taken == wanted
