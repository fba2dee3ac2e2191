"""Starting the servers from the command line."""

from pathlib import Path

import pytest

import ours
from aerobee_console.daemons import parse_settings
from aerobee_console.failures import Failure
from console.support import Runner
from programs import Server, free_port


def test_the_last_of_a_repeated_setting_counts() -> None:
    assert parse_settings(["a=1", "b=x=y", "a=2", "c="]) == {"a": "2", "b": "x=y", "c": ""}


@pytest.mark.parametrize("pair", ["listenPort", "=1", " =1"])
def test_a_setting_without_key_or_value_is_refused(pair: str) -> None:
    with pytest.raises(Failure, match="write key=value"):
        parse_settings([pair])


@pytest.mark.parametrize("server", ["broker", "nameserver"])
def test_an_unknown_setting_names_the_nearest(server: str, aerobee: Runner) -> None:
    refused = aerobee(server, "--set", "listenPrt=1")
    assert refused.code == 2
    assert "did you mean listenPort?" in refused.err


def test_a_settings_file_that_is_missing_is_told(aerobee: Runner, tmp_path: Path) -> None:
    refused = aerobee("broker", "-c", str(tmp_path / "broker.conf"))
    assert refused.code == 2
    assert f"{tmp_path}/broker.conf" in refused.err


@pytest.mark.parametrize("listen", ["9876", ":9876", "host:", "host:port"])
def test_a_listening_address_needs_host_and_port(listen: str, aerobee: Runner) -> None:
    refused = aerobee("nameserver", "--listen", listen)
    assert refused.code == 2
    assert "HOST:PORT" in refused.err


def test_both_servers_start_with_a_file_and_settings_and_stop_on_sigterm(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "broker.conf"
    file.write_text(f"listenPort=1\nstorePathRootDir={tmp_path}/store\nmetricsPromExporterPort=0\n")
    words = ["--set", f"listenPort={port}", "--set", "bindAddress=127.0.0.1"]
    words += ["--set", "mappedFileSizeCommitLog=65536"]
    ns = [*ours.command(), "nameserver", "--listen", f"127.0.0.1:{free_port()}"]
    broker = [*ours.command(), "broker", "-c", str(file), *words]
    with (
        Server("nameserver", ns, "", r"nameserver\.ready") as nameserver,
        Server("broker", broker, f"127.0.0.1:{port}", rf"broker\.ready.*127\.0\.0\.1:{port}") as started,
    ):
        assert (tmp_path / "store" / "lock").exists()
        assert started.stop() == 0
        assert nameserver.stop() == 0
        assert "broker.stopped" in started.output
