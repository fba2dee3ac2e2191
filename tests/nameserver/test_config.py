"""Settings of a nameserver."""

import gzip
import json
from base64 import b64decode
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aerobee_access.settings import ACCESS_KEYS
from aerobee_nameserver.config import LIVE_FIELDS, NameserverConfig, load_config
from aerobee_service.settings.settings import SettingsError, dump_settings, read_properties
from nameserver.captures import WIRE


def test_the_defaults_are_the_official_ones() -> None:
    config = load_config(environ={})
    assert (config.listen_port, config.bind_address) == (9876, "0.0.0.0")
    assert config.scan_not_active_broker_interval == 5_000
    assert config.enable_all_topic_list
    assert config.enable_topic_list
    assert config.return_order_topic_config_to_broker
    assert not config.order_message_enable
    assert not config.support_acting_master
    assert not config.need_wait_for_service


def official_config() -> dict[str, str]:
    """What the official nameserver answered when it was asked for its configuration."""
    with gzip.open(WIRE / "JSON" / "mqadmin-getNamesrvConfig.jsonl.gz", "rt", encoding="utf-8") as lines:
        (answer,) = [line for line in map(json.loads, lines) if line.get("request_code") == 319]
    return read_properties(b64decode(answer["frame_b64"])[-answer["body_len"] :].decode())


def test_every_key_of_the_official_nameserver_is_known(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    keys = official_config()
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    with capture_logs() as events:
        config = load_config(file, environ={})
    ignored = {event["key"] for event in events}
    used = dump_settings(config)
    assert len(keys) > 30
    assert ignored | used.keys() >= keys.keys()
    assert not ignored & used.keys()
    same = {key for key in keys.keys() & used.keys() if used[key] == keys[key]}
    assert same == keys.keys() & used.keys()


def test_admin_changes_go_to_the_settings_file_unless_another_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=1\n")
    assert load_config(file, environ={}).config_store_path == file
    named = {"configStorePath": "/x/y.conf"}
    assert load_config(file, named, environ={}).config_store_path == Path("/x/y.conf")
    assert load_config(environ={}).config_store_path is None


def test_the_environment_is_read() -> None:
    assert load_config(environ={"AEROBEE_NAMESERVER_LISTEN_PORT": "19876"}).listen_port == 19876


def test_a_folder_is_no_kv_config(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is a folder; name a file"):
        load_config(overrides={"kvConfigPath": str(tmp_path)}, environ={})


def test_live_fields_are_fields() -> None:
    assert NameserverConfig.model_fields.keys() >= LIVE_FIELDS


def test_the_list_of_forbidden_keys_is_always_on_it() -> None:
    config = load_config(overrides={"configBlackList": "; listenPort ;"}, environ={})
    always = {"configBlackList", "accessFilePath", "accessClusterName"} | ACCESS_KEYS
    assert config.forbidden_keys == always | {"listenPort"}


def test_tls_needs_its_files() -> None:
    with pytest.raises(SettingsError, match="tlsServerMode=enforcing needs tlsServerCertPath"):
        load_config(overrides={"tlsServerMode": "enforcing"}, environ={})
