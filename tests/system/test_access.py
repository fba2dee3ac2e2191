"""A broker with access control, and clients that sign."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from aerobee import BrokerRefused, Client, Credentials
from aerobee_access.freshness import Signing
from aerobee_access.gate import AccessGate, AccessRules
from aerobee_access.policies import PolicyType, entry_of
from aerobee_access.port_guard import TokenUnusable
from aerobee_access.sealing import KeyFileError, Sealer
from aerobee_access.signature import sign
from aerobee_access.table import AccessTable
from aerobee_access.users import Status
from aerobee_broker.broker import Broker
from aerobee_broker.in_process.values import Message
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.metrics import MetricsServer as NameserverMetrics
from aerobee_nameserver.server import NameServer
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import Command, FrameDecoder, decode_command, encode_command
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from aerobee_service.clock import epoch_ms
from client_scenarios import take
from plain_remoting import topic_fields
from programs import free_port
from remoting.pair import raw_peer
from system.running import broker_config, running_broker, send_request, talking

ROOT = ("root", "root secret")
SETTINGS: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
}


async def ask(
    server: Broker | NameServer,
    code: int,
    header: dict[str, str],
    body: object = None,
    *,
    user: tuple[str, str] = ROOT,
    raw: bytes = b"",
) -> Command:
    remoting = RemotingClient()
    raw = raw if body is None else json.dumps(body).encode()
    try:
        return await remoting.request(f"127.0.0.1:{server.port}", code, sign(header, raw, *user), raw)
    finally:
        await remoting.close()


async def give(server: Broker | NameServer, user: str, resource: str, *actions: str) -> None:
    entry = {"resource": resource, "actions": list(actions), "decision": "Allow"}
    acl = {"subject": f"User:{user}", "policies": [{"entries": [entry]}]}
    assert (await ask(server, 3006, {"subject": f"User:{user}"}, acl)).code == 0


async def test_brokers_and_nameservers_know_each_other(tmp_path: Path) -> None:
    """A nameserver with access control takes the registrations of who signs, and tells strangers nothing."""
    inner = json.dumps({"accessKey": "cluster", "secretKey": "inner secret"})
    settings: dict[str, Any] = SETTINGS | {"inner_client_authentication_credentials": inner}
    folder = tmp_path / "ns"

    def nameserver() -> NameServer:
        address: dict[str, Any] = {"listen_port": 0, "bind_address": "127.0.0.1"}
        return NameServer(NameserverConfig(kv_config_path=folder / "kv.json", **address, **settings))

    first = nameserver()
    await first.start()
    try:
        assert (await ask(first, 3001, {"username": "anna"}, {"password": "a"})).code == 0
    finally:
        await first.close()
    server = nameserver()
    addr = f"127.0.0.1:{await server.start()}"
    try:
        anna = ("anna", "a")
        async with running_broker(tmp_path / "good", namesrv_addr=addr, **settings) as good:
            assert await good.parts.registrar.first_round() == 1
            wrong = json.dumps({"accessKey": "cluster", "secretKey": "guessed"})
            strange: dict[str, Any] = {"inner_client_authentication_credentials": wrong, "broker_name": "b"}
            async with running_broker(tmp_path / "bad", namesrv_addr=addr, **strange) as bad:
                assert await bad.parts.registrar.first_round() == 0
                assert "check signature failed" in bad.parts.registrar.states[0].reason
            for code, header in (
                (100, {"namespace": "n", "key": "k", "value": "v"}),
                (318, {}),
                (216, {"topic": "T"}),
            ):
                assert (await ask(server, code, header, user=anna)).code == 16
                assert (await ask(server, code, header, user=("anna", "guess"))).code == 16
            await give(server, "anna", "Cluster:DefaultCluster", "Update")
            assert (await ask(server, 100, {"namespace": "n", "key": "k", "value": "v"}, user=anna)).code == 0
            changed = await ask(server, 318, {}, raw=b"authenticationEnabled=false")
            assert changed.code != 0
            assert server.config.authentication_enabled
            async with Client(addr, credentials=Credentials(*ROOT)) as mq:
                assert [broker.broker_name for broker in await mq.admin.brokers()] == ["test-a"]
    finally:
        await server.close()
    assert (tmp_path / "ns.key").exists()


async def test_a_certificate_names_the_user_of_a_connection(tmp_path: Path) -> None:
    table = AccessTable(Sealer(tmp_path / "key"))
    table.create_user("anna", "a")
    entry = entry_of("Cluster:*", ["Get"], None, "Allow")
    table.write_acl("anna", [(PolicyType.CUSTOM, [entry])])
    gate = AccessGate(table, AccessRules("TestCluster", authentication=True, authorization=True))
    authority = trustme.CA()
    folder = tmp_path / "tls"
    folder.mkdir()
    server, client = authority.issue_cert("localhost"), authority.issue_cert("x.local", common_name="anna")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    settings: dict[str, Any] = {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": str(folder / "server.pem"),
        "tls_server_key_path": str(folder / "server.pem"),
        "tls_server_trust_cert_path": str(folder / "ca.pem"),
    }
    context = ssl.create_default_context()
    authority.configure_trust(context)
    client.configure_cert(context)
    async with running_broker(tmp_path / "store", gate=gate, **settings) as broker:
        remoting = RemotingClient(config=RemotingClientConfig(tls=context, tls_server_name="localhost"))
        try:
            addr = f"127.0.0.1:{broker.port}"
            assert (await remoting.request(addr, RequestCode.GET_BROKER_CONFIG)).code == 0
            refused = await remoting.request(addr, RequestCode.UPDATE_BROKER_CONFIG, body=b"a=b")
            assert "User:anna has no permission" in (refused.remark or "")
            signed = sign({}, b"", "anna", "guess")  # who names a user has to prove it
            assert (await remoting.request(addr, 26, signed)).remark == "check signature failed."
            table.update_user("anna", status=Status.DISABLE)
            assert (await remoting.request(addr, 26)).remark == "User:anna is disabled."
        finally:
            await remoting.close()


async def test_users_and_policies_outlive_the_broker(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with running_broker(root, **SETTINGS) as broker:
        assert (await ask(broker, 3001, {"username": "anna"}, {"password": "a"})).code == 0
        await give(broker, "anna", "Cluster:*", "Get")
    written = (root / "config" / "access.json").read_text()
    assert ROOT[1] not in written
    assert (tmp_path / "store.key").stat().st_mode & 0o777 == 0o600
    async with running_broker(root, **SETTINGS) as broker:
        assert (await ask(broker, RequestCode.GET_BROKER_CONFIG, {}, user=("anna", "a"))).code == 0
        assert (await ask(broker, 25, {}, user=("anna", "a"))).code == 16


async def test_settings_are_shown_without_their_secrets(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "store", **SETTINGS) as broker:
        shown = await ask(broker, RequestCode.GET_BROKER_CONFIG, {})
        assert b"initAuthenticationUser=***" in shown.body
        assert b"root secret" not in shown.body


async def test_a_broker_without_its_key_does_not_start(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with running_broker(root, **SETTINGS):
        pass
    (tmp_path / "store.key").unlink()
    broker = Broker(broker_config(root, **SETTINGS))
    with pytest.raises(KeyFileError, match="does not open with the key"):
        await broker.start()
    await broker.close()


async def test_a_program_in_the_process_needs_no_signature(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "store", **SETTINGS) as broker:
        sent = await broker.in_process("test").send(Message("T", b"x"))
        assert sent.queue_offset == 0


async def test_a_client_gets_what_its_policies_say(tmp_path: Path) -> None:
    nameserver = NameServer(NameserverConfig(listen_port=0, bind_address="127.0.0.1"), keep_kv=False)
    addr = f"127.0.0.1:{await nameserver.start()}"
    try:
        async with running_broker(tmp_path / "store", namesrv_addr=addr, **SETTINGS) as broker:
            for user in ("producer", "consumer", "stranger"):
                await ask(broker, 3001, {"username": user}, {"password": user})
            await give(broker, "producer", "Topic:orders", "Pub")
            await give(broker, "consumer", "Topic:orders", "Sub", "Get")
            await give(broker, "consumer", "Group:readers", "Sub", "Get")
            async with Client(addr, credentials=Credentials(*ROOT)) as admin:
                await admin.admin.create_topic("orders", queues=2)
                await admin.admin.create_topic("other", queues=2)
            async with (
                Client(addr, credentials=Credentials("producer", "producer")) as mq,
                mq.producer() as out,
            ):
                await out.send("orders", b"1")
                await out.send_batch("orders", [b"2", b"3"])
                with pytest.raises(BrokerRefused, match="has no permission to access Topic:other"):
                    await out.send("other", b"x")
            reader = Credentials("consumer", "consumer")
            async with Client(addr, credentials=reader) as mq, mq.consumer("readers", "orders") as orders:
                async with asyncio.timeout(30):
                    bodies = {message.body for message in await take(orders, 3)}
                assert bodies == {b"1", b"2", b"3"}
            nobody = Credentials("stranger", "stranger")
            async with Client(addr, credentials=nobody) as mq, mq.producer() as out:
                with pytest.raises(BrokerRefused, match="User:stranger has no permission"):
                    await out.send("orders", b"x")
    finally:
        await nameserver.close()


async def test_what_a_client_sent_cannot_be_sent_again(tmp_path: Path) -> None:
    """Every byte that our client wrote, once more: on a connection of its own, and behind it on the same one."""
    sent = bytearray()
    piped: list[asyncio.StreamWriter] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        out_reader, out_writer = await asyncio.open_connection("127.0.0.1", broker.port)
        piped.append(out_writer)

        async def back() -> None:
            while data := await out_reader.read(65536):
                writer.write(data)
            writer.close()

        answering = asyncio.create_task(back())
        while data := await reader.read(65536):
            sent.extend(data)
            out_writer.write(data)
        out_writer.close()
        await answering

    def again() -> bytes:
        """All frames that were sent, but for the first question, which anybody may ask."""
        commands = [decode_command(frame) for frame in FrameDecoder().feed(bytes(sent))]
        return b"".join(encode_command(c) for c in commands if c.code != RequestCode.GET_CODECS)

    async with running_broker(tmp_path / "store", **SETTINGS) as broker:
        relay = await asyncio.start_server(pipe, "127.0.0.1", 0)
        addr = f"127.0.0.1:{relay.sockets[0].getsockname()[1]}"
        remoting = RemotingClient(signer=Signing(*ROOT))
        try:
            await ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 1))
            request = send_request("T", b"once")
            for _ in range(3):
                answer = await remoting.request(addr, request.code, request.ext, request.body)
                assert answer.code == 0, answer.remark
            assert broker.parts.stats.put_count.value == 3
            async with talking(broker) as thief:
                thief.writer.write(again())
                remarks = {(await thief.receive()).remark for _ in range(3)}
                assert all((remark or "").startswith("signed for another connection") for remark in remarks)
            piped[0].write(again())
            assert (await remoting.request(addr, RequestCode.GET_BROKER_CONFIG)).code == 0
            assert broker.parts.stats.put_count.value == 3
            audit = tmp_path / "store.audit.log"
        finally:
            await remoting.close()
            relay.close()
            await relay.wait_closed()
    lines = [json.loads(line)["reason"] for line in audit.read_text().splitlines()]
    assert [line for line in lines if "was seen before" in line] == [
        f"request {number} of this connection was seen before." for number in (1, 2, 3)
    ]


async def test_users_may_be_held_to_sign_the_time(tmp_path: Path) -> None:
    settings: dict[str, Any] = SETTINGS | {"auth_replay_required_users": f"anna, {ROOT[0]}"}
    async with running_broker(tmp_path / "store", **settings) as broker:
        refused = await ask(broker, RequestCode.GET_BROKER_CONFIG, {})
        assert (
            refused.remark
            == "User:root has to sign the time, as clients of Aerobee do (authReplayProtection)."
        )
        remoting = RemotingClient(signer=Signing(*ROOT))
        try:
            taken = await remoting.request(f"127.0.0.1:{broker.port}", RequestCode.GET_BROKER_CONFIG)
            assert taken.code == 0
        finally:
            await remoting.close()
        late = RemotingClient(signer=Signing(*ROOT, now_ms=lambda: epoch_ms() - 61_000))
        try:
            told = await late.request(f"127.0.0.1:{broker.port}", RequestCode.GET_BROKER_CONFIG)
            assert (told.code, "Are both clocks right?" in (told.remark or "")) == (16, True)
        finally:
            await late.close()


@pytest.mark.parametrize("where", ["broker", "nameserver"])
async def test_policies_and_the_audit_log_see_the_address_that_a_proxy_tells(
    tmp_path: Path, where: str
) -> None:
    settings: dict[str, Any] = SETTINGS | {"proxy_protocol_from": "127.0.0.1"}
    server: Broker | NameServer
    code, fields = 105, {"topic": "TBW102"}
    if where == "broker":
        code, fields = 30, {"topic": "TBW102", "queueId": "0"}
        server = Broker(broker_config(tmp_path / "store", **settings))
        audit = tmp_path / "store.audit.log"
    else:
        address: dict[str, Any] = {"listen_port": 0, "bind_address": "127.0.0.1"}
        server = NameServer(
            NameserverConfig(kv_config_path=tmp_path / "ns" / "kv.json", **address, **settings)
        )
        audit = tmp_path / "ns.audit.log"
    await server.start()
    try:
        table = server.access.table
        table.create_user("anna", "a")
        entry = entry_of("Topic:*", ["Get", "Pub"], ["203.0.113.0/24"], "Allow")
        table.write_acl("anna", [(PolicyType.CUSTOM, [entry])])
        codes = {}
        for source in ("203.0.113.7", "198.51.100.7", "127.0.0.1"):
            async with raw_peer(server.port) as peer:
                peer.writer.write(f"PROXY TCP4 {source} 10.0.0.1 50123 1\r\n".encode())
                peer.send(Command(code, ext_fields=sign(fields, b"", "anna", "a")))
                codes[source] = (await peer.receive()).code
    finally:
        await server.close()
    assert server.access.figures().refused["rights"] == 2
    assert codes["203.0.113.7"] in (0, 17)
    assert (codes["198.51.100.7"], codes["127.0.0.1"]) == (16, 16)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(one["decision"], one["from"]) for one in lines] == [
        ("granted", "203.0.113.7:50123"),
        ("refused", "198.51.100.7:50123"),
        ("refused", "127.0.0.1:50123"),
    ]


async def test_brokers_that_share_their_users_are_told_the_same_once_and_again(tmp_path: Path) -> None:
    """As `mqadmin -c cluster` does, to each worker of a service; one of them is down at first."""
    settings: dict[str, Any] = SETTINGS | {
        "access_file_path": str(tmp_path / "access.json"),
        "access_key_path": str(tmp_path / "key"),
    }
    anna = {"password": "a", "userType": "Normal"}
    acl = {"policies": [{"entries": [{"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}]}]}
    asked = [
        (3001, {"username": "anna"}, anna),
        (3001, {"username": "admin"}, anna),
        (3006, {"subject": "User:anna"}, acl),
        (3006, {"subject": "User:admin"}, {"policies": [acl["policies"][0] | {"policyType": "Default"}]}),
        (3008, {"subject": "User:admin"}, None),
    ]
    async with running_broker(tmp_path / "one", **settings) as one:
        for code, header, body in asked:
            assert (await ask(one, code, header, body)).code == 0
        async with running_broker(tmp_path / "two", broker_name="b", **settings) as two:
            assert (await ask(two, 310, {"b": "T"}, user=("anna", "a"))).code != 16
            for code, header, body in asked:
                assert (await ask(two, code, header, body)).code == 0, (code, header)
            for refused in (anna | {"password": "b"}, anna | {"userType": "Super"}):
                assert (await ask(two, 3001, {"username": "anna"}, refused)).remark == "The user is existed"
            await give(two, "anna", "Cluster:*", "Update")  # who sees no secrets cannot try them either
            tried = await ask(two, 3001, {"username": "admin"}, anna, user=("anna", "a"))
            assert tried.remark == "The user is existed"
            assert (await ask(two, 3003, {"username": "anna"})).code == 0
            assert one.access.file is not None
            await one.access.file.look()
            refusal = await ask(one, 310, {"b": "T"}, user=("anna", "a"))
            assert refusal.remark == "check signature failed."
    assert not (tmp_path / "one" / "config" / "access.json").exists()
    nameserver = NameServer(
        NameserverConfig(
            listen_port=0, bind_address="127.0.0.1", kv_config_path=tmp_path / "ns" / "kv.json", **settings
        )
    )
    await nameserver.start()
    try:
        assert json.loads((await ask(nameserver, 3004, {"username": "admin"})).body)["password"] == "a"
    finally:
        await nameserver.close()


@pytest.mark.parametrize("where", ["broker", "nameserver"])
async def test_who_dials_the_port_for_metrics_needs_the_token(tmp_path: Path, where: str) -> None:
    """It told strangers the names of topics and groups, the folder of the store, the version."""
    token = tmp_path / "token"
    token.write_text("a-token-of-24-characters\n")
    token.chmod(0o600)
    settings: dict[str, Any] = SETTINGS | {
        "metrics_prom_exporter_port": free_port(),
        "metrics_prom_exporter_host": "0.0.0.0",
        "metrics_prom_exporter_token_path": str(token),
    }

    async def get(path: str, fields: str = "") -> tuple[int, str]:
        port = settings["metrics_prom_exporter_port"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\n{fields}\r\n".encode())
        async with asyncio.timeout(20):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split(b" ")[1]), body.decode()

    async def look() -> None:
        for path in ("/livez", "/readyz", "/startupz", "/health"):
            assert await get(path) == (200, "ok\n"), path
        for path in ("/metrics", "/", "/nope"):
            assert await get(path) == (401, "this needs credentials\n"), path
        known = f"Authorization: Bearer {token.read_text().strip()}\r\n"
        status, page = await get("/metrics", known)
        assert (status, "aerobee_access_refused_total{" in page) == (200, True)
        assert [line[-5:] for line in page.splitlines() if 'reason="metrics"' in line] == ["} 3.0"]
        status, page = await get("/readyz", known)
        assert (status, json.loads(page)["status"]) == (200, "ok")

    if where == "broker":
        async with running_broker(tmp_path / "store", metrics_exporter_type="PROM", **settings):
            await look()
        return
    address: dict[str, Any] = {"listen_port": 0, "bind_address": "127.0.0.1"}
    server = NameServer(NameserverConfig(kv_config_path=tmp_path / "ns" / "kv.json", **address, **settings))
    metrics = NameserverMetrics(server)
    await server.start()
    await metrics.start()
    try:
        await look()
    finally:
        await metrics.close()
        await server.close()


@pytest.mark.parametrize("where", ["127.0.0.1", "0.0.0.0"])
async def test_without_a_token_metrics_are_for_this_machine_alone(tmp_path: Path, where: str) -> None:
    """And a token that cannot be used refuses the start, as it would be no protection."""
    settings: dict[str, Any] = SETTINGS | {
        "metrics_exporter_type": "PROM",
        "metrics_prom_exporter_port": (port := free_port()),
        "metrics_prom_exporter_host": where,
    }
    with capture_logs() as logs:
        async with running_broker(tmp_path / "store", **settings):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(20):
                status = (await reader.read()).split(b" ")[1]
            writer.close()
    is_open = where == "127.0.0.1"
    assert status == (b"200" if is_open else b"401")
    closed = [one["way_out"] for one in logs if one["event"] == "metrics.closed"]
    assert closed == ([] if is_open else ["set metricsPromExporterTokenPath"])
    settings["metrics_prom_exporter_token_path"] = str(tmp_path / "none")
    with pytest.raises(TokenUnusable, match="none"):
        async with running_broker(tmp_path / "store", **settings):
            pass
