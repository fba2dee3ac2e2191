"""Where each worker of a service has its name, folder and ports, and which folders are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.settings.config import BrokerConfig
from aerobee_broker.settings.config_files import decode_config
from aerobee_broker.workers.layout import (
    OF_EACH,
    SHARED,
    plan_workers,
    refused_layout,
    seed_tables,
    worker_folders,
)
from aerobee_service.settings.settings import SettingsError

RECORD = b"\x00\x00\x00\x5b" + bytes(87)


def config_of(root: Path, workers: int = 2, **settings: Any) -> BrokerConfig:
    return BrokerConfig(store_path_root_dir=root, workers=workers, **settings)


def log_file(folder: Path, content: bytes = RECORD) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{0:020}"
    path.write_bytes(content)
    return path


def test_each_worker_has_its_own_name_folder_and_ports(tmp_path: Path) -> None:
    plans = plan_workers(config_of(tmp_path, 3, broker_name="orders", ha_listen_port=10913))
    found = [
        (
            plan.name,
            plan.config.store_path_root_dir,
            plan.config.listen_port,
            plan.config.ha_listen_port,
            plan.config.metrics_prom_exporter_port,
            plan.config.metrics_prom_exporter_host,
        )
        for plan in plans
    ]
    assert found == [
        ("orders-1", tmp_path / "worker-1", 10911, 10913, 5567, "127.0.0.1"),
        ("orders-2", tmp_path / "worker-2", 10921, 10923, 5577, "127.0.0.1"),
        ("orders-3", tmp_path / "worker-3", 10931, 10933, 5587, "127.0.0.1"),
    ]
    # The port that official clients take for the fast one, and the one for replicas, are nobody else's.
    taken = [port for plan in plans for port in (plan.config.listen_port, plan.config.listen_port - 2)]
    taken += [plan.config.ha_listen_port for plan in plans]
    assert len(set(taken)) == 9


def test_a_worker_is_the_same_however_many_there_are(tmp_path: Path) -> None:
    few, many = (plan_workers(config_of(tmp_path, count)) for count in (2, 8))
    own = OF_EACH.keys() - {"access_message_in_memory_max_ratio", "workers"}
    for one, other in zip(few, many, strict=False):
        assert [getattr(one.config, name) for name in own] == [getattr(other.config, name) for name in own]


def test_every_path_and_every_port_is_of_each_worker_or_read_by_all() -> None:
    """A path that all of them wrote to would be damaged by the second one."""
    words = {name: set(name.split("_")) for name in BrokerConfig.model_fields}
    paths = {name for name in words if words[name] & {"path", "dir", "folder"}}
    ports = {name for name in words if name.endswith("_port")}
    assert paths >= {"store_path_root_dir", "store_path_commit_log", "tls_server_key_path"}
    assert ports >= {"listen_port", "ha_listen_port", "metrics_prom_exporter_port"}
    assert (paths | ports) - OF_EACH.keys() == SHARED


def test_what_is_a_share_of_the_machine_is_shared_out(tmp_path: Path) -> None:
    plans = plan_workers(config_of(tmp_path, 4, access_message_in_memory_max_ratio=40))
    assert {plan.config.access_message_in_memory_max_ratio for plan in plans} == {10}


def test_log_folders_elsewhere_are_apart_too(tmp_path: Path) -> None:
    plans = plan_workers(config_of(tmp_path, store_path_commit_log=str(tmp_path / "log")))
    assert [plan.config.store_path_commit_log for plan in plans] == [
        f"{tmp_path}/log/worker-1",
        f"{tmp_path}/log/worker-2",
    ]


def test_audit_logs_are_apart_and_stay_off(tmp_path: Path) -> None:
    plans = plan_workers(config_of(tmp_path, access_audit_path=str(tmp_path / "audit.log")))
    assert [Path(plan.config.access_audit_path).name for plan in plans] == [
        "audit-worker-1.log",
        "audit-worker-2.log",
    ]
    for kept in ("off", ""):
        plans = plan_workers(config_of(tmp_path, access_audit_path=kept))
        assert {plan.config.access_audit_path for plan in plans} == {kept}


def test_port_0_stays_a_free_one_for_each_and_none_for_metrics(tmp_path: Path) -> None:
    plans = plan_workers(config_of(tmp_path, 8, listen_port=0, metrics_prom_exporter_port=0))
    assert {(one.config.listen_port, one.config.metrics_prom_exporter_port) for one in plans} == {(0, 0)}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"listen_port": 65530},
            "listenPort = 65540 (of worker 2, by workers = 2): must be an integer from 0",
        ),
        ({"broker_name": "x" * 99}, "a name of 1 to 100"),
        ({"metrics_prom_exporter_port": 10901}, "metricsPromExporterPort of broker-a-1 = 10911"),
        ({"ha_listen_port": 10921}, "haListenPort of broker-a-1 has it too"),
        ({"metrics_prom_exporter_port": 10912}, "haListenPort of broker-a-1 = 10912"),
        ({"ha_master_address": "10.0.0.1:10912", "broker_role": "SLAVE", "broker_id": 1}, "haMasterAddress"),
    ],
)
def test_what_a_worker_cannot_have_is_named(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        plan_workers(config_of(tmp_path, **settings))
    assert said in str(refused.value)


# --- folders ------------------------------------------------------------------------------------------------------


def test_new_folders_and_those_of_the_workers_are_taken(tmp_path: Path) -> None:
    assert refused_layout(config_of(tmp_path / "absent")) is None
    assert refused_layout(config_of(tmp_path)) is None
    for number in (1, 2):
        log_file(tmp_path / f"worker-{number}" / "commitlog")
    assert refused_layout(config_of(tmp_path)) is None
    assert refused_layout(config_of(tmp_path, 9)) is None  # more is fine
    for beside in ("worker-1.key", "worker-1.audit.log", "worker-2.audit.log.1"):  # of access control
        (tmp_path / beside).touch()
    assert refused_layout(config_of(tmp_path)) is None
    assert list(worker_folders(tmp_path)) == [1, 2]


def test_the_store_of_one_broker_says_how_it_becomes_that_of_the_first(tmp_path: Path) -> None:
    root = tmp_path / "store"
    log_file(root / "commitlog")
    (root / "config").mkdir()
    said = refused_layout(config_of(root))
    assert said is not None
    assert "broker-a-1" in said
    assert f"mkdir '{root}/worker-1' && find '{root}'" in said
    assert "access.json" not in said
    (root / "config" / "access.json").touch()
    assert f"mv '{root}/worker-1/config/access.json' '{root}/access.json'" in str(
        refused_layout(config_of(root))
    )


def test_users_are_one_file_of_all_workers(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for plan in plan_workers(config_of(root)):
        assert plan.config.access_file_path == f"{root}/access.json"
        assert plan.config.access_key_path == f"{root}.key"
    elsewhere: dict[str, Any] = {
        "access_file_path": str(tmp_path / "users"),
        "access_key_path": str(tmp_path / "key"),
    }
    for plan in plan_workers(config_of(root, **elsewhere)):
        assert plan.config.access_file_path == str(tmp_path / "users")
        assert plan.config.access_key_path == str(tmp_path / "key")
    log_file(root / "worker-1" / "commitlog")
    for name in ("access.json", "access.json.bak", "access.json.lock"):
        (root / name).touch()
    assert refused_layout(config_of(root)) is None
    assert f"--set accessFilePath='{root}/access.json'" in str(refused_layout(config_of(root, 1)))


def test_users_that_one_worker_alone_has_are_not_left_aside(tmp_path: Path) -> None:
    root = tmp_path / "store"
    log_file(root / "worker-1" / "commitlog")
    (root / "worker-2" / "config").mkdir(parents=True)
    (root / "worker-2" / "config" / "access.json").touch()
    (root / "worker-2.key").touch()
    assert refused_layout(config_of(root)) is None  # access control is off
    said = str(refused_layout(config_of(root, authentication_enabled=True)))
    assert f"mv '{root}/worker-2/config/access.json' '{root}/access.json'" in said
    assert f"mv '{root}/worker-2.key' '{root}.key'" in said
    (root / "access.json").touch()
    assert refused_layout(config_of(root, authentication_enabled=True)) is None


def test_a_folder_of_workers_is_no_place_for_one_broker(tmp_path: Path) -> None:
    log_file(tmp_path / "worker-1" / "commitlog")
    log_file(tmp_path / "worker-3" / "commitlog")
    said = refused_layout(config_of(tmp_path, 1))
    assert said is not None
    assert "--workers 3" in said
    assert f"storePathRootDir='{tmp_path}/worker-1'" in said


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    said = refused_layout(config_of(tmp_path))
    assert said is not None
    assert "it holds pyproject.toml" in said


@pytest.mark.parametrize("elsewhere", [False, True])
def test_fewer_workers_are_refused_while_messages_are_left_aside(tmp_path: Path, elsewhere: bool) -> None:
    settings = {"store_path_commit_log": str(tmp_path / "logs")} if elsewhere else {}
    root = tmp_path / "root"
    for number in (1, 2, 3):
        (root / f"worker-{number}").mkdir(parents=True)
        log_file(
            tmp_path / "logs" / f"worker-{number}" if elsewhere else root / f"worker-{number}" / "commitlog"
        )
    said = refused_layout(config_of(root, 2, **settings))
    assert said is not None
    assert f"there are messages of broker-a-3 in '{root}/worker-3'" in said
    assert "brokerPermission=4" in said
    assert refused_layout(config_of(root, 3, **settings)) is None


def test_a_worker_without_a_message_may_be_left_aside(tmp_path: Path) -> None:
    log_file(tmp_path / "worker-1" / "commitlog")
    log_file(tmp_path / "worker-2" / "commitlog")
    log_file(tmp_path / "worker-3" / "commitlog", bytes(4096))  # made ahead, never written to
    (tmp_path / "worker-4").mkdir()
    with capture_logs() as logs:
        assert refused_layout(config_of(tmp_path, 2)) is None
    assert [entry["path"] for entry in logs] == [f"{tmp_path}/worker-3", f"{tmp_path}/worker-4"]


# --- tables of a new worker ---------------------------------------------------------------------------------------


def test_a_new_worker_gets_the_topics_and_groups_of_one_that_is_there(tmp_path: Path) -> None:
    tables = {
        "topics.json": {
            "dataVersion": {"counter": 7},
            "topicConfigTable": {
                name: {"topicName": name} for name in ("Orders", "broker-a-1", "broker-a", "%RETRY%g")
            },
        },
        "subscriptionGroup.json": {"subscriptionGroupTable": {"g": {"groupName": "g"}}},
    }
    folder = tmp_path / "worker-1" / "config"
    folder.mkdir(parents=True)
    for name, content in tables.items():
        (folder / name).write_text(json.dumps(content))
    config = config_of(tmp_path, 3)
    seed_tables(config, plan_workers(config))
    for number in (2, 3):
        config_folder = tmp_path / f"worker-{number}" / "config"
        topics = decode_config((config_folder / "topics.json").read_bytes())
        assert topics["topicConfigTable"].keys() == {"Orders", "%RETRY%g"}
        assert topics["dataVersion"] == {"counter": 7}
        groups = decode_config((config_folder / "subscriptionGroup.json").read_bytes())
        assert groups == tables["subscriptionGroup.json"]
    assert {path.name: json.loads(path.read_bytes()) for path in folder.iterdir()} == tables


def test_tables_that_are_there_stay_and_broken_ones_are_not_copied(tmp_path: Path) -> None:
    for number, text in ((1, "{"), (2, '{"topicConfigTable":{}}')):
        folder = tmp_path / f"worker-{number}" / "config"
        folder.mkdir(parents=True)
        (folder / "topics.json").write_text(text)
    config = config_of(tmp_path, 3)
    seed_tables(config, plan_workers(config))
    assert (tmp_path / "worker-2" / "config" / "topics.json").read_text() == '{"topicConfigTable":{}}'
    assert not (tmp_path / "worker-3" / "config" / "topics.json").exists()
    fresh = config_of(tmp_path / "fresh")
    seed_tables(fresh, plan_workers(fresh))
    assert not (tmp_path / "fresh").exists()
