"""How the brokers of one service share one set of settings: name, folder and ports of each, worked out here alone.

    broker-a with workers=2, storePathRootDir=/data, listenPort=10911, metricsPromExporterPort=5557

    broker-a-1   /data/worker-1   10911   10912   5567 on 127.0.0.1
    broker-a-2   /data/worker-2   10921   10922   5577 on 127.0.0.1
    the service                                   5557, where metricsPromExporterHost says

Ten ports apart there is room for what official clients take for granted: the fast port two below that for clients, the
one for replicas one above it.

Touches  the store folder: names, the first bytes of log files, and tables of a worker that is new.

Invariants
- Every setting of a path or a port is either in `OF_EACH` or the same file for all, in `SHARED`; a test compares.
- Worker n has the same name, folder and ports however many there are. Worker 1 has the ports that the settings name.
- A folder in which messages are is never left aside in silence.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from aerobee_access.table import ACCESS_FILE
from aerobee_broker.process.store_folder import foreign_folder, store_signs
from aerobee_broker.settings.config import BrokerConfig
from aerobee_broker.settings.config_files import decode_config, encode_config, table_of
from aerobee_proto import names as topic_names
from aerobee_proto.errors import FormatError
from aerobee_service.settings.settings import SettingsError, SettingsProblem, apply_changes
from aerobee_service.settings.whole_files import replace_file

__all__ = [
    "OF_EACH",
    "SHARED",
    "WorkerPlan",
    "plan_workers",
    "refused_layout",
    "seed_tables",
    "worker_folders",
]

log = structlog.get_logger()

STRIDE: Final = 10  # ports from one worker to the next
INNER_HOST: Final = "127.0.0.1"  # where workers tell the supervisor their figures
SERVICE_METRICS: Final = "the metrics of the service"
_FOLDER: Final = re.compile(r"worker-([1-9][0-9]{0,3})")
_BESIDE: Final = re.compile(_FOLDER.pattern + r"(\..+)?|" + re.escape(ACCESS_FILE) + r"(\..+)?")
# Tables that a new worker gets from one that is there, and the part that names what is in them.
TABLES: Final = {"topics.json": "topicConfigTable", "subscriptionGroup.json": "subscriptionGroupTable"}
_TABLE_SIZE_MAX: Final = 256 << 20


@dataclass(slots=True, frozen=True)
class WorkerPlan:
    """One worker of a service: its number from 1 on, what it has of its own (outside names), all its settings."""

    number: int
    count: int
    changes: Mapping[str, str]
    config: BrokerConfig

    @property
    def name(self) -> str:
        """Its broker name."""
        return self.config.broker_name


def _folder(root: Path, number: int) -> Path:
    return root / f"worker-{number}"


def _port(first: int, number: int) -> int:
    """The port of a worker where the first has `first`; 0 is any free one, or none, for all."""
    return first + STRIDE * (number - 1) if first else 0


def _commit_log(config: BrokerConfig, number: int) -> str:
    root = config.store_path_commit_log
    return str(_folder(Path(root), number)) if root else ""


def _audit_log(config: BrokerConfig, number: int) -> str:
    written = config.access_audit_path
    if written in ("", "off"):
        return written
    path = Path(written)
    return str(path.with_name(f"{path.stem}-worker-{number}{path.suffix}"))


def access_file(config: BrokerConfig) -> Path:
    """Where the users and policies are that all workers share: who changes one of them changes all."""
    written = config.access_file_path
    return Path(written) if written else config.store_path_root_dir / ACCESS_FILE


def access_key(config: BrokerConfig) -> Path:
    """The key that seals their secrets, beside the folder of the service."""
    root = config.store_path_root_dir
    return Path(config.access_key_path) if config.access_key_path else root.with_name(f"{root.name}.key")


# Field -> what worker n has there.
OF_EACH: Final[Mapping[str, Callable[[BrokerConfig, int], object]]] = {
    "broker_name": lambda config, number: f"{config.broker_name}-{number}",
    "store_path_root_dir": lambda config, number: _folder(config.store_path_root_dir, number),
    "store_path_commit_log": _commit_log,
    "access_audit_path": _audit_log,
    "access_file_path": lambda config, _number: access_file(config),
    "access_key_path": lambda config, _number: access_key(config),
    "listen_port": lambda config, number: _port(config.listen_port, number),
    "ha_listen_port": lambda config, number: _port(config.ha_listen_port, number),
    # The service itself has the port of the settings.
    "metrics_prom_exporter_port": lambda config, number: _port(config.metrics_prom_exporter_port, number + 1),
    "metrics_prom_exporter_host": lambda _config, _number: INNER_HOST,
    "metrics_prom_exporter_tls": lambda _config, _number: "false",  # from this machine to this machine
    # The page cache is one for all.
    "access_message_in_memory_max_ratio": lambda config, _: max(
        1, config.access_message_in_memory_max_ratio // config.workers
    ),
    "workers": lambda _config, _number: 1,
}
# Paths that all of them read and none writes. Of the others one is shared: the file of users, which has a lock.
SHARED: Final = frozenset(
    {
        "metrics_prom_exporter_token_path",
        "plain_acl_path",
        "tls_client_cert_path",
        "tls_client_key_path",
        "tls_client_trust_cert_path",
        "tls_config_path",
        "tls_server_cert_path",
        "tls_server_key_path",
        "tls_server_trust_cert_path",
    }
)


def plan_workers(config: BrokerConfig) -> list[WorkerPlan]:
    """The workers that these settings ask for. SettingsError when one of them cannot have what it would need."""
    names = {field: info.alias or field for field, info in BrokerConfig.model_fields.items()}
    if config.workers > 1 and config.ha_master_address:
        reason = f"each of {config.workers} workers has a master of its own: leave it out, the nameservers know them"
        raise SettingsError(
            [SettingsProblem("haMasterAddress", config.ha_master_address, "taken together", reason)]
        )
    plans = []
    for number in range(1, config.workers + 1):
        changes = {names[field]: str(of_each(config, number)) for field, of_each in OF_EACH.items()}
        origin = f"of worker {number}, by workers = {config.workers}"
        plans.append(
            WorkerPlan(number, config.workers, changes, apply_changes(config, changes, origin=origin))
        )
    _check_ports(config, plans)
    return plans


def _check_ports(config: BrokerConfig, plans: Sequence[WorkerPlan]) -> None:
    """SettingsError when two of them would want the same port."""
    taken: dict[int, str] = {}
    problems = []
    for what, port in _ports(config, plans):
        other = taken.setdefault(port, what)
        if port and other != what:
            reason = f"{other} has it too; workers take ports {STRIDE} apart, so choose others to begin with"
            problems.append(SettingsProblem(what, str(port), f"workers = {config.workers}", reason))
    if problems:
        raise SettingsError(problems)


def _ports(config: BrokerConfig, plans: Sequence[WorkerPlan]) -> Iterator[tuple[str, int]]:
    yield SERVICE_METRICS, config.metrics_prom_exporter_port
    for plan in plans:
        one = plan.config
        yield f"listenPort of {plan.name}", one.listen_port
        behind = one.listen_port + 1 if one.listen_port else 0
        yield f"haListenPort of {plan.name}", one.ha_listen_port or behind
        yield f"metricsPromExporterPort of {plan.name}", one.metrics_prom_exporter_port


# --- what lies there already --------------------------------------------------------------------------------------


def worker_folders(root: Path) -> dict[int, Path]:
    """Number -> folder of the workers that have one below `root`, in order."""
    try:
        found = {int(match[1]): path for path in root.iterdir() if (match := _FOLDER.fullmatch(path.name))}
    except OSError:  # not there, or not to be read: the start says so, and why
        return {}
    return dict(sorted(found.items()))


def refused_layout(config: BrokerConfig) -> str | None:
    """Why a service, or a broker alone, cannot have this folder, and what to do; None when it can."""
    root, count = config.store_path_root_dir, config.workers
    found = worker_folders(root)
    if count == 1:
        return _holds_workers(config, found) if found and not store_signs(root) else None
    if store_signs(root):
        return _holds_one(config)
    foreign = foreign_folder(root, _own_names(root))
    return foreign or _users_left(config, found) or _left_aside(config, found)


def _own_names(root: Path) -> frozenset[str]:
    """Folders of workers, what lies beside one (its key and its audit log), and their users and policies."""
    try:
        return frozenset(path.name for path in root.iterdir() if _BESIDE.fullmatch(path.name))
    except OSError:
        return frozenset()


def _users_left(config: BrokerConfig, found: Mapping[int, Path]) -> str | None:
    """Why users and policies that only one worker has must not be left aside."""
    path, key = access_file(config), access_key(config)
    own = next((folder for folder in found.values() if (folder / "config" / ACCESS_FILE).exists()), None)
    if own is None or path.exists() or not (config.authentication_enabled or config.authorization_enabled):
        return None
    moved = f"mv '{own}/config/{ACCESS_FILE}' '{path}'"
    if (its_key := own.with_name(f"{own.name}.key")).exists():
        moved += f" && mv '{its_key}' '{key}'"
    return (
        f"{own}/config/{ACCESS_FILE} has users and policies of one worker, and all workers share {path}. To let all "
        f"have them: {moved}; to begin without them, move that file away"
    )


def _holds_workers(config: BrokerConfig, found: Mapping[int, Path]) -> str:
    root, first = config.store_path_root_dir, next(iter(found.values()))
    path, users = access_file(config), ""
    if path.exists():
        users = f", --set accessFilePath='{path}' and --set accessKeyPath='{access_key(config)}'"
    return (
        f"{root} holds the stores of {len(found)} workers of one service, and workers is 1. To start the service: "
        f"--workers {max(found)}. To go on with one broker on one of those stores, without the others: "
        f"--set storePathRootDir='{first}' and --set brokerName= with that worker's name"
        f"{users}"
    )


def _holds_one(config: BrokerConfig) -> str:
    root = config.store_path_root_dir
    first = _folder(root, 1)
    moved = f"mkdir '{first}' && find '{root}' -mindepth 1 -maxdepth 1 ! -name 'worker-*' -exec mv -t '{first}' {{}} +"
    if (root / "config" / ACCESS_FILE).exists():  # all workers have the same users
        moved += f" && mv '{first}/config/{ACCESS_FILE}' '{access_file(config)}'"
    if config.store_path_commit_log:
        log_root = config.store_path_commit_log
        moved += f" && mkdir '{log_root}/worker-1' && mv '{log_root}'/[0-9]* '{log_root}/worker-1'"
    return (
        f"{root} holds the store of one broker; with workers each has a store of its own in it. To make it that of the "
        f"first worker, {config.broker_name}-1, stop the broker in order, then: {moved}\n"
        "Consumers read on where they were; docs/operations.md#several-workers says more"
    )


def _left_aside(config: BrokerConfig, found: Mapping[int, Path]) -> str | None:
    """Why there cannot be fewer workers than there were."""
    left = {number: path for number, path in found.items() if number > config.workers}
    full = [number for number, path in left.items() if _holds_messages(config, number, path)]
    if full:
        names = ", ".join(f"{config.broker_name}-{number}" for number in full)
        folders = " ".join(f"'{left[number]}'" for number in full)
        return (
            f"workers is {config.workers}, but there are messages of {names} in {folders}. Start {max(full)} again; "
            "take writing from those that are to go (aerobee cluster config NAME --set brokerPermission=4); wait until "
            "`aerobee group lag` shows nothing left of them; stop in order; move their folders away; start with fewer"
        )
    for path in left.values():
        log.info("workers.folder_left_aside", path=str(path), reason="no message is in it")
    return None


def _holds_messages(config: BrokerConfig, number: int, folder: Path) -> bool:
    """Whether a worker's log has a record. Each file of a log begins with one, but for those made ahead."""
    written = _commit_log(config, number)
    log_folder = Path(written) if written else folder / "commitlog"
    try:
        return any(_begins_with_record(path) for path in sorted(log_folder.iterdir()))
    except FileNotFoundError:
        return False
    except OSError:  # who may not look must not pass over it
        return True


def _begins_with_record(path: Path) -> bool:
    with path.open("rb") as file:
        return any(file.read(4))


# --- a worker that is new -----------------------------------------------------------------------------------------


def seed_tables(config: BrokerConfig, plans: Sequence[WorkerPlan]) -> None:
    """Give workers without tables the topics and groups of one that has them, so that they are sent to at once.

    Raises OSError. Tables that cannot be read are left alone: their own worker says what is wrong with them.
    """
    new = [plan for plan in plans if not any(path.exists() for path in _tables_of(plan).values())]
    source = next((plan for plan in plans if plan not in new), None)
    if source is None:
        return
    # Of the worker itself, and of the broker that it was before.
    own = {
        prefix + name
        for name in (source.name, config.broker_name)
        for prefix in ("", topic_names.MEMBER_GROUP_TOPIC_PREFIX)
    }
    contents = {name: _content(path, TABLES[name], own) for name, path in _tables_of(source).items()}
    for plan in new:
        for name, path in _tables_of(plan).items():
            if (content := contents[name]) is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, content)
        log.info("workers.tables_copied", worker=plan.name, source=source.name)


def _tables_of(plan: WorkerPlan) -> dict[str, Path]:
    return {name: plan.config.store_path_root_dir / "config" / name for name in TABLES}


def _content(path: Path, part: str, own: set[str]) -> bytes | None:
    """A table without what belongs to brokers by these names; None when there is none to be read."""
    try:
        if path.stat().st_size > _TABLE_SIZE_MAX:
            return None
        content = decode_config(path.read_bytes())
        table = table_of(content, part)
    except (OSError, ValueError, FormatError, RecursionError):
        return None
    return encode_config({**content, part: {name: value for name, value in table.items() if name not in own}})
