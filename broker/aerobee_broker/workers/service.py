"""A service of workers as a program: settings of all checked before the first is started, then one set of signals.

Touches  the process: event loop, signals, systemd's notification socket; the folder of the service.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from aerobee_access.port_guard import OperatorsGuard, TokenFile
from aerobee_access.refusals import Refusals
from aerobee_broker.process.exit_codes import EXIT_FAILED, EXIT_USAGE
from aerobee_broker.settings.config import BrokerConfig
from aerobee_broker.workers.layout import WorkerPlan, plan_workers, refused_layout, seed_tables
from aerobee_broker.workers.pages import ServicePort
from aerobee_broker.workers.supervisor import Supervisor
from aerobee_proto.errors import AerobeeError
from aerobee_service.operators.http_responder import Visitor
from aerobee_service.program.serving import run_server, stop_event
from aerobee_service.program.start_failures import CannotListen, explain
from aerobee_service.program.systemd import ServiceNotifier
from aerobee_service.settings.settings import canonical_keys
from aerobee_service.tls.ends import ProgramTls

__all__ = ["run_workers", "worker_command"]

log = structlog.get_logger()


def run_workers(config: BrokerConfig, file: Path | None, overrides: Mapping[str, str]) -> int:
    """Serve with `config.workers` brokers until a signal, or none is left. Returns the exit code.

    `file` and `overrides` are what `config` was read from: workers read them again. Raises SettingsError.
    """
    plans = plan_workers(config)
    refused = refused_layout(config)
    if refused is not None:
        print(f"aerobee broker: {refused}", file=sys.stderr)
        return EXIT_USAGE
    try:
        seed_tables(config, plans)
    except OSError as failed:
        reason, way_out = explain(failed)
        log.error("workers.start_failed", reason=reason, way_out=way_out)  # noqa: TRY400  # they say it all
        return EXIT_FAILED
    command = worker_command(file, overrides)
    return run_server(lambda notifier: _serve(config, plans, command, notifier))


def worker_command(file: Path | None, overrides: Mapping[str, str]) -> Callable[[WorkerPlan], Sequence[str]]:
    """What starts a worker: the program of a broker alone, with what it has of its own on top."""
    words = [sys.executable, "-m", "aerobee_broker", *(("-c", str(file)) if file is not None else ())]

    def command(plan: WorkerPlan) -> list[str]:
        settings = {**canonical_keys(BrokerConfig, overrides), **plan.changes}
        return [*words, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]

    return command


def _service_port(config: BrokerConfig, supervisor: Supervisor, tls: ProgramTls) -> ServicePort:
    """The port for metrics and health of all. TokenUnusable.

    Users are known to the workers, each by tables of its own: here certificates count without access control alone.
    """
    path = config.metrics_prom_exporter_token_path
    token = TokenFile(Path(path)) if path else None
    refusals = Refusals(time.monotonic)
    has_users = config.authentication_enabled or config.authorization_enabled or config.acl_enable

    def refused(visitor: Visitor, path: str, reason: str) -> float:
        log.warning("metrics.refused", peer=visitor.peer, path=path, reason=reason)
        return refusals.refused(visitor.host, "metrics")

    guard = OperatorsGuard(
        token,
        has_access_control=has_users,
        takes_certificates=tls.asks_operators and not has_users,
        may_look=lambda _host, _subject: True,
        refused=refused,
    )
    return ServicePort(supervisor.workers, tls.operators, guard, token)


async def _serve(
    config: BrokerConfig,
    plans: Sequence[WorkerPlan],
    command: Callable[[WorkerPlan], Sequence[str]],
    notifier: ServiceNotifier,
) -> int:
    stop = stop_event()
    supervisor = Supervisor(plans, command, service=config.broker_name, notifier=notifier)
    try:
        # The other ends are the workers'.
        tls = await asyncio.to_thread(
            ProgramTls, config.model_copy(update={"tls_server_mode": "disabled", "use_tls": False})
        )
        port = await asyncio.to_thread(_service_port, config, supervisor, tls)
        if config.metrics_exporter_type == "PROM" and config.metrics_prom_exporter_port:
            await port.start(config)
    except (CannotListen, AerobeeError) as failed:
        reason, way_out = explain(failed)
        log.error("workers.start_failed", reason=reason, way_out=way_out)  # noqa: TRY400  # they say it all
        return EXIT_FAILED
    following = asyncio.create_task(tls.follow(), name="tls files")
    try:
        return await supervisor.run(stop)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await port.close()
