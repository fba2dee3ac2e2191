"""Checks of a cluster, from where this runs: nameservers, registered addresses, a message there and back.

Touches  nameservers and brokers through the client and by bare connections; brokers get one message of a few bytes
         unless told otherwise.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aerobee_console.checks.checkup import Checkup
from aerobee_console.checks.local_checks import is_container_address, is_loopback
from aerobee_console.checks.set_checks import check_sets
from aerobee_console.checks.worker_checks import check_workers
from aerobee_console.terminal.session import Connect, client_config
from aerobee_service.clock import epoch_ms
from aerobee_service.program.ports import owner_of

if TYPE_CHECKING:
    from aerobee import BrokerNode, Client, ClientConfig

__all__ = ["check_cluster"]

SKEW_MS_MAX: Final = 2_000
MASTER_ID: Final = 0
WRITE: Final = 2  # the bit of a topic's permission
TOPICS_NAMED_MAX: Final = 20
USED_WARNING: Final = 0.85  # the default of diskSpaceCleanForciblyRatio
USED_FAULT: Final = 0.90  # and of diskSpaceWarningLevelRatio: the broker refuses sends
BODY: Final = b"aerobee doctor"


async def check_cluster(checkup: Checkup, connect: Connect, *, topic: str | None, send: bool) -> None:
    """Everything that can be seen from here. Ends in bounded time: every step has the time-out of `connect`."""
    config = client_config(connect)
    nodes: list[BrokerNode] = []
    for addr in config.nameservers:
        nodes = await _check_nameserver(checkup, replace(config, nameservers=(addr,))) or nodes
    figures: dict[str, dict[str, str]] = {}
    for node in nodes:
        if await _check_address(checkup, node, config):
            figures[node.broker_name] = await _check_broker(checkup, node, config, send=send)
    await check_workers(checkup, figures, config)
    if nodes:
        await check_sets(checkup, config)
    if topic is not None and nodes:
        await _check_topic(checkup, topic, config)


async def _check_nameserver(checkup: Checkup, config: "ClientConfig") -> list["BrokerNode"]:
    """The brokers that a nameserver knows; empty when it does not answer."""
    from aerobee import Client, ClientError

    (addr,) = config.nameservers
    try:
        async with Client(config=config) as client:
            nodes = await client.admin.brokers()
    except ClientError as failed:
        text, fix = await _why_silent(addr, config, str(failed).splitlines())
        checkup.fault("nameserver", text, fix)
        return []
    if nodes:
        names = ", ".join(sorted({node.broker_name for node in nodes}))
        checkup.ok("nameserver", f"{addr} answers and knows {names}")
    else:
        checkup.fault(
            "nameserver",
            f"{addr} answers, but no broker has registered there",
            f"start one with namesrvAddr={addr}; if one runs, its log says `broker.registration_failed` and why",
        )
    return nodes


async def _why_silent(addr: str, config: "ClientConfig", said: list[str]) -> tuple[str, str]:
    """Why an address gives no answer, and what to do."""
    host, _, port = addr.rpartition(":")
    refused = await _connect_fault(addr, config.request_timeout_s)
    if refused is not None:
        fix = f"start it there: aerobee nameserver --listen 0.0.0.0:{port}; or give the right address with -n"
        if "time" in refused:
            fix = "a firewall or a wrong address: check both; -n takes another one"
        return f"{addr}: {refused}", fix
    tls = await _speaks_tls(addr, config.request_timeout_s)
    if tls and not config.tls:
        return (
            f"{addr} speaks TLS, and this is a plain connection",
            "add --tls (and --tls-ca FILE for your own CA)",
        )
    if config.tls and not tls:
        return (
            f"{addr} does not speak TLS",
            "leave --tls out, or set the server's tlsServerMode to permissive",
        )
    if config.tls:
        return f"{addr} speaks TLS, but: {said[-1].strip()}", "trust its certificate with --tls-ca FILE"
    owner = owner_of(int(port)) if is_loopback(host) else None
    what = f", it is {owner}" if owner else ""
    return f"{addr} takes connections but is no nameserver{what}", "give a nameserver's address with -n"


async def _connect_fault(addr: str, timeout_s: float) -> str | None:
    """Why no connection can be made; None when one can."""
    host, _, port = addr.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return f"no connection within {timeout_s:g} s (time-out)"
    except OSError as failed:
        return "nothing listens there" if isinstance(failed, ConnectionRefusedError) else str(failed)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return None


async def _speaks_tls(addr: str, timeout_s: float) -> bool:
    """Whether a TLS handshake succeeds there, whatever the certificate."""
    host, _, port = addr.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


async def _check_address(checkup: Checkup, node: "BrokerNode", config: "ClientConfig") -> bool:
    """Whether the address that a broker registered is reached from here."""
    host = node.addr.rpartition(":")[0]
    nameserver_is_here = all(is_loopback(one.rpartition(":")[0]) for one in config.nameservers)
    name = f"broker {node.broker_name}"
    fault = await _connect_fault(node.addr, config.request_timeout_s)
    if is_loopback(host) and not nameserver_is_here:
        checkup.fault(
            name,
            f"it registered the loopback address {node.addr}: from other machines that leads to themselves",
            f"set brokerIP1 of {node.broker_name} to an address that clients reach, and start it again",
        )
    elif fault is not None:
        fix = f"is the broker running, and is brokerIP1 of {node.broker_name} an address that clients reach?"
        if is_container_address(host):
            fix = (
                f"that is an address inside Docker: set brokerIP1 of {node.broker_name} to the host's address and"
                " publish the port under the same number"
            )
        checkup.fault(name, f"its registered address {node.addr} is not reached from here: {fault}", fix)
    elif is_loopback(host):
        checkup.note(
            name,
            f"{node.addr} is reached from here, and from this machine alone",
            "for clients elsewhere set brokerIP1 to an address that they reach",
        )
    else:
        checkup.ok(name, f"its registered address {node.addr} is reached from here")
    return fault is None


async def _check_broker(
    checkup: Checkup, node: "BrokerNode", config: "ClientConfig", *, send: bool
) -> dict[str, str]:
    """What it says of itself; empty when it does not answer."""
    from aerobee import Client, ClientError, NoRoute

    name = f"broker {node.broker_name}"
    figures: dict[str, str] = {}
    try:
        async with Client(config=config) as client:
            figures = await client.admin.broker_runtime_info(node.addr)
            _check_figures(checkup, name, figures)
            if node.broker_id == MASTER_ID:
                await _check_unread(checkup, node, client)
            if send and node.broker_id == MASTER_ID:
                await check_round_trip(checkup, node, client)
    except NoRoute:
        checkup.note(name, "no message was sent: it has no topic under its name (brokerTopicEnable is off)")
    except ClientError as failed:
        text, fix = str(failed), "the broker's log says more"
        if not config.tls and await _speaks_tls(node.addr, config.request_timeout_s):
            text, fix = f"{node.addr} speaks TLS, and this is a plain connection", "add --tls"
        checkup.fault(name, text, fix)
    return figures


def _check_figures(checkup: Checkup, name: str, figures: dict[str, str]) -> None:
    """What the broker says of its disk."""
    try:
        used = float(figures.get("commitLogDiskRatio", ""))
    except ValueError:
        return
    text = f"its disk is {used:.0%} full"
    fix = "free space there or use a larger disk; fileReservedTime says how long messages are kept"
    report: Callable[[str, str, str], None] | None = None
    if used >= USED_FAULT:
        report = checkup.fault
    elif used >= USED_WARNING:
        report = checkup.note
    if report is not None:
        report(name, text, fix)


async def _check_unread(checkup: Checkup, node: "BrokerNode", client: "Client") -> None:
    """Topics with queues that are written and that nobody may read: what goes there reaches nobody."""
    wrong = [
        (topic, config)
        for topic, config in sorted((await client.admin.broker_topics(node.addr)).items())
        if config.perm & WRITE and config.write_queue_nums > config.read_queue_nums
    ]
    for topic, config in wrong[:TOPICS_NAMED_MAX]:
        checkup.fault(
            f"topic {topic}",
            f"on {node.broker_name} it has {config.write_queue_nums} queues to write and {config.read_queue_nums}"
            " to read: nobody gets what goes to the others",
            f"aerobee topic alter {topic} --queues {config.write_queue_nums}",
        )
    if (more := len(wrong) - TOPICS_NAMED_MAX) > 0:
        checkup.fault(
            f"broker {node.broker_name}",
            f"{more} more topics have queues that nobody reads",
            "mend those above, and ask again",
        )


async def check_round_trip(checkup: Checkup, node: "BrokerNode", client: "Client") -> None:
    """A message to the topic that every broker has under its own name, read back by its id; and the clocks."""
    name = f"broker {node.broker_name}"
    before_ms = epoch_ms()
    async with client.producer() as producer:
        result = await producer.send(node.broker_name, BODY)
    after_ms = epoch_ms()
    message = await client.query_by_id(result.offset_message_id)
    took_ms = epoch_ms() - before_ms
    if message is None or message.body != BODY:
        checkup.fault(
            name,
            f"message {result.offset_message_id} was acknowledged and cannot be read back",
            "its id holds the broker's address: is brokerIP1 right? The broker's log says more",
        )
        return
    checkup.ok(name, f"a message went there and back in {took_ms} ms")
    skew_ms = max(before_ms - message.store_timestamp_ms, message.store_timestamp_ms - after_ms, 0)
    if skew_ms > SKEW_MS_MAX:
        ahead = "ahead of" if message.store_timestamp_ms > after_ms else "behind"
        checkup.fault(
            "clocks",
            f"the clock of {node.broker_name} is {skew_ms / 1000:.1f} s {ahead} the one here",
            "run a time service (chrony, systemd-timesyncd) on both; look-ups by time go wrong otherwise",
        )
    else:
        checkup.ok("clocks", f"the clock of {node.broker_name} agrees with the one here")


async def _check_topic(checkup: Checkup, topic: str, config: "ClientConfig") -> None:
    from aerobee import Client, ClientError

    try:
        async with Client(config=config) as client:
            route = await client.admin.route(topic)
    except ClientError as failed:
        *lines, last = str(failed).splitlines()
        checkup.fault("topic", "\n".join(lines) or last, last if lines else "see what is said above")
        return
    writable = sorted(one.broker_name for one in route.queue_datas if one.perm & 2)
    if writable:
        checkup.ok("topic", f"{topic} can be written on {', '.join(writable)}")
    else:
        fix = f"aerobee topic alter {topic} --permission rw; or the brokers are being drained"
        checkup.fault("topic", f"{topic} has a route, but no broker lets it be written", fix)
