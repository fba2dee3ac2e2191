"""No request keeps the event loop longer than a turn may take, whatever its code and its bytes."""

from pathlib import Path

from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from aerobee_proto.codes import RequestCode
from aerobee_remoting.exchange.handlers import Entry, HandlerTable
from system.running import running_broker
from system.walking import Calm, Walk
from system.worst_requests import BODIES, TOPIC, many_messages, worst_of

MESSAGES = 9000  # in the queue that bit sets of acknowledgements are about: more than one bit set has bits


def _in_order(table: HandlerTable) -> list[Entry]:
    """Every code, those last that make the tables large or delete what others ask for."""
    missing = {code for code, entry in table.by_code.items() if entry.body_size_max and code not in BODIES}
    assert not missing, "codes that take a body have no worst body yet"
    return sorted(table.by_code.values(), key=_order)


def _order(entry: Entry) -> tuple[bool, int, int]:
    return entry.code == RequestCode.DELETE_TOPIC_IN_BROKER, entry.body_size_max, entry.code


async def test_no_request_to_a_broker_takes_longer_than_a_turn_may(tmp_path: Path) -> None:
    """Bit sets of acknowledgements took 170 ms, groups of a heartbeat 400 ms, a list of topics 200 ms, a batch of
    messages with very many properties 140 ms, and each change of a large table as long as writing all of it.
    """
    async with running_broker(tmp_path, mapped_file_size_commit_log=64 << 20) as broker:
        walk = Walk(broker.port, worst_of)
        await walk.ask(RequestCode.SEND_BATCH_MESSAGE, many_messages(MESSAGES))
        assert broker.parts.store.reading.max_offset(TOPIC, 0) == MESSAGES, (
            "bit sets are about messages that are there"
        )
        with Calm():
            await walk.over(_in_order(broker.handlers))
    assert walk.too_long == {}


async def test_no_request_to_a_nameserver_takes_longer_than_a_turn_may() -> None:
    config = load_config(overrides={"listenPort": "0", "bindAddress": "127.0.0.1"}, environ={})
    server = NameServer(config, keep_kv=False)
    await server.start()
    try:
        walk = Walk(server.port, worst_of)
        with Calm():
            await walk.over(_in_order(server.handlers))
    finally:
        await server.close()
    assert walk.too_long == {}
