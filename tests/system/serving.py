"""What brokers and nameservers of this release serve."""

from pathlib import Path

from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from aerobee_remoting.exchange.gate import Gate, Row
from system.running import running_broker

__all__ = ["nameserver", "rows"]


def nameserver(gate: Gate | None = None) -> NameServer:
    config = load_config(overrides={"listenPort": "0", "bindAddress": "127.0.0.1"}, environ={})
    return NameServer(config, keep_kv=False, gate=gate)


async def rows(folder: Path) -> dict[int, Row]:
    """Every row of brokers and nameservers."""
    async with running_broker(folder) as broker:
        found: dict[int, Row] = dict(broker.handlers.by_code)
    for code, row in nameserver().handlers.by_code.items():
        if code in found:
            assert row.needs == found[code].needs
        found[code] = row
    return found
