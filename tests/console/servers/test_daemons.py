"""Starting the servers from the command line."""

import json
import re
from pathlib import Path

import pytest

import ours
from aerobee_console.servers.daemons import parse_settings
from aerobee_console.terminal.failures import Failure
from console.support import Runner, environment
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


@pytest.mark.parametrize(
    ("server", "settings", "ready"),
    [
        (
            "broker",
            ["sendMessageThreadPoolNums=4", "listenPort=0", "metricsPromExporterPort=0"],
            "broker.ready",
        ),
        ("nameserver", ["serverWorkerThreads=4", "listenPort=0"], "nameserver.ready"),
    ],
)
def test_into_a_pipe_every_line_of_a_server_is_json_from_the_first_on(
    server: str, settings: list[str], ready: str, tmp_path: Path
) -> None:
    """Warnings about settings came before the logs were set up, as text for people: log shippers broke on them."""
    settings += ["bindAddress=127.0.0.1"]
    settings += (
        [f"storePathRootDir={tmp_path}/store", "mappedFileSizeCommitLog=65536"] if server == "broker" else []
    )
    words = [word for setting in settings for word in ("--set", setting)]
    env = environment(HOME=str(tmp_path), AEROBEE_BROKER_FOO="1", AEROBEE_NAMESERVER_FOO="1")
    with Server(server, [*ours.command(), server, *words], "", re.escape(ready), env=env) as running:
        assert running.stop() == 0
    logged = [json.loads(line)["event"] for line in running.output.splitlines()]
    assert logged[:2] == ["settings.variable_ignored", "settings.key_ignored"]
    assert ready in logged


def test_what_is_said_of_settings_stays_out_of_the_output_of_a_command(
    aerobee: Runner, tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"sendMessageThreadPoolNums=4\nstorePathRootDir={tmp_path}/store\nlistenPort=0\n")
    checked = aerobee("doctor", "-c", str(file), "-o", "json", "-n", f"127.0.0.1:{free_port()}")
    assert {one["check"] for one in checked.json["checks"]} >= {"settings", "store folder"}
    assert "sendMessageThreadPoolNums" in checked.err
