"""`aerobee access certificates`: made, shown, renewed, refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aerobee_console.terminal.failures import NOT_FOUND, USAGE
from aerobee_service.tls.authority import Authority
from console.support import Runner

COMMAND = ("access", "certificates")


def test_the_first_call_makes_the_authority_and_later_ones_add_to_it(aerobee: Runner, tmp_path: Path) -> None:
    folder = str(tmp_path / "ca")
    first = aerobee(
        *COMMAND, folder, "broker-a=127.0.0.1,broker-a.example", "--client", "alice", "-o", "json"
    )
    assert first.code == 0
    found = {one["name"]: one for one in first.json["certificates"]}
    assert {name: (one["kind"], one["change"]) for name, one in found.items()} == {
        "authority": ("authority", "made"),
        "broker-a": ("server", "made"),
        "alice": ("client", "made"),
    }
    assert found["broker-a"]["addresses"] == ["127.0.0.1", "broker-a.example"]
    again = aerobee(*COMMAND, folder, "broker-b=127.0.0.1")
    assert [line.split()[0] for line in again.lines if line.endswith("made")] == ["broker-b"]
    assert "127.0.0.1, broker-a.example" in again.out
    assert aerobee(*COMMAND, folder).code == 0  # a look


def test_renewals_are_for_what_ends_soon_or_is_named(aerobee: Runner, tmp_path: Path) -> None:
    long_ago = datetime.now(UTC).replace(microsecond=0) - timedelta(days=300)
    authority = Authority(tmp_path, long_ago)
    authority.make()
    authority.issue("old", ["127.0.0.1"], 365)
    authority.issue("new", [], 800)

    def renewed(*words: str) -> list[str]:
        done = aerobee(*COMMAND, str(tmp_path), *words, "-o", "json")
        assert done.code == 0, done.err
        return [one["name"] for one in done.json["certificates"] if one["change"] == "renewed"]

    assert renewed("--renew") == ["old"]
    assert renewed("--renew") == []
    assert renewed("--renew", "--client", "new") == ["new"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["broker-a"], "NAME=ADDRESS"),
        (["broker-a="], "NAME=ADDRESS"),
        (["../a=127.0.0.1"], "no name for a certificate"),
        (["a=not an address"], "neither an IP address"),
        (["a=127.0.0.1", "a=127.0.0.2"], "twice"),
        (["a=127.0.0.1", "--client", "a"], "twice"),
        (["--days", "9999"], "825"),
    ],
)
def test_nothing_is_made_of_what_is_wrong(
    aerobee: Runner, tmp_path: Path, words: list[str], said: str
) -> None:
    refused = aerobee(*COMMAND, str(tmp_path / "ca"), *words)
    assert refused.code == USAGE
    assert said in refused.err
    assert not (tmp_path / "ca").exists()


def test_what_is_there_is_not_written_over(aerobee: Runner, tmp_path: Path) -> None:
    assert aerobee(*COMMAND, str(tmp_path), "broker-a=127.0.0.1").code == 0
    before = (tmp_path / "broker-a.key").read_bytes()
    refused = aerobee(*COMMAND, str(tmp_path), "broker-a=127.0.0.1")
    assert (refused.code, "--renew" in refused.err) == (USAGE, True)
    assert (tmp_path / "broker-a.key").read_bytes() == before


def test_what_is_not_there_is_not_renewed(aerobee: Runner, tmp_path: Path) -> None:
    assert aerobee(*COMMAND, str(tmp_path / "ca"), "--renew").code == NOT_FOUND
    assert aerobee(*COMMAND, str(tmp_path)).code == 0
    refused = aerobee(*COMMAND, str(tmp_path), "--renew", "--client", "alice")
    assert (refused.code, "alice" in refused.err) == (NOT_FOUND, True)
