"""Targets for what people and programs write into files beside the messages: settings, tables, users and policies."""

import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, cast
from unittest.mock import patch

from aerobee.consuming.local_offsets import LocalOffsets
from aerobee.errors import ClientError
from aerobee_access.file import AccessFile, AccessFileDamaged
from aerobee_access.plain_acl import PlainAcl, address_matches, perms_of, read_plain_acl
from aerobee_access.plain_yaml import read_yaml, write_yaml
from aerobee_access.policies import entry_of, resource_of
from aerobee_access.sealing import Sealer
from aerobee_access.table import AccessTable
from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.pop.orderly import OrderTable
from aerobee_broker.pop.request_modes import RequestModes
from aerobee_broker.schedule.delay_offsets import DelayOffsets
from aerobee_broker.settings.config import BrokerConfig, LiveConfig
from aerobee_broker.settings.config_files import AnyTable, decode_config, encode_config
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.kv_config import KvConfig, KvConfigDamaged
from aerobee_proto.errors import FormatError, RequestError
from aerobee_service.settings import settings as settings_module
from aerobee_service.settings.settings import (
    SettingsError,
    SettingsModel,
    apply_changes,
    dump_settings,
    load_settings,
    read_properties,
)
from aerobee_service.tls.validity import validity_of
from fuzz.target import Target

__all__ = ["TARGETS"]

NOW_MS: Final = 1_700_000_000_000


class MemoryPath:
    """What readers of small files use of a path; the files are in memory, by name."""

    def __init__(self, files: Mapping[str, bytes], name: str) -> None:
        self.name = name
        self._files = files

    def __truediv__(self, name: str) -> "MemoryPath":
        return MemoryPath(self._files, name)

    def __str__(self) -> str:
        return self.name

    @property
    def suffix(self) -> str:
        return "." + self.name.rpartition(".")[2]

    def with_name(self, name: str) -> "MemoryPath":
        return MemoryPath(self._files, name)

    def with_suffix(self, suffix: str) -> "MemoryPath":
        return MemoryPath(self._files, self.name.rpartition(".")[0] + suffix)

    def exists(self) -> bool:
        return self.name in self._files

    def read_bytes(self) -> bytes:
        if self.name not in self._files:
            raise FileNotFoundError(self.name)
        return self._files[self.name]

    def open(self, mode: str) -> io.BytesIO:
        assert mode == "rb"
        return io.BytesIO(self.read_bytes())


def _path(name: str, raw: bytes) -> Path:
    """A path where a file with these bytes lies."""
    return cast("Path", MemoryPath({name: raw}, name))


# --- settings ---------------------------------------------------------------------------------------------------------


@cache
def _models() -> tuple[SettingsModel, ...]:
    return BrokerConfig(), NameserverConfig()


def configuration(data: bytes) -> None:
    """Settings as an operator writes them into a file or the environment, or an admin's request carries them."""
    if not data:
        return
    model = _models()[data[0] & 1]
    # Looking for the nearest name is most of the time of most inputs: few of them do.
    with patch.object(settings_module, "SUGGESTIONS_MAX", 1 if data[0] >= 0xF0 else 0):
        _configure(model, data[0] >> 1 & 3, data[1:])


def _configure(model: SettingsModel, way: int, raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    with suppress(SettingsError):
        match way:
            case 0:
                with suppress(ValueError):
                    dump_settings(apply_changes(model, read_properties(text), origin="a peer"))
            case 1:
                _load(type(model), _path("broker.conf", raw))
            case 2:
                _load(type(model), _path("broker.toml", raw))
            case _:
                _load(type(model), None, dict(line.partition("=")[::2] for line in text.splitlines()))


def _load(model: type[SettingsModel], file: Path | None, environ: Mapping[str, str] | None = None) -> None:
    load_settings(model, file=file, environ_prefix="AEROBEE_", overrides={}, environ=environ or {})


def certificates(data: bytes) -> None:
    """How long a certificate is good."""
    text = data.decode("latin-1")
    with suppress(ValueError):
        found = validity_of(text)
        assert isinstance(found.not_after_s, float)


# --- tables -----------------------------------------------------------------------------------------------------------


@cache
def _tables() -> tuple[AnyTable, ...]:
    live = LiveConfig(_models()[0], now_ms=NOW_MS)  # type: ignore[arg-type]  # the broker's

    def clock() -> int:
        return NOW_MS

    def nothing(*_: object) -> None:
        pass

    return (
        TopicTable(live, clock, on_dirty=nothing, on_change=nothing),
        SubscriptionGroups(live, clock, on_dirty=nothing),
        ConsumerOffsets(clock),
        OrderTable(clock),
        RequestModes(on_dirty=nothing),
        DelayOffsets(clock),
        AccessTable(cast("Sealer", _NoSealer())),
    )


def config_tables(data: bytes) -> None:
    """The broker's tables under config/: what is read is written, and read again as the same."""
    if not data:
        return
    tables = _tables()
    table = tables[data[0] % len(tables)]
    try:
        content = decode_config(data[1:])
    except ValueError:
        return
    try:
        table.take(table.parse(content))
    except FormatError:
        return
    written = encode_config(table.to_json())
    table.take(table.parse(decode_config(written)))
    assert encode_config(table.to_json()) == written


def small_tables(data: bytes) -> None:
    """The key-value settings of a nameserver, and the offsets of a client that everybody gets everything of."""
    if not data:
        return
    raw = data[1:]
    if data[0] & 1:
        kv = KvConfig(_path("kvConfig.json", raw))
        with suppress(KvConfigDamaged):
            kv.load()
            assert kv.size >= 0
    else:
        offsets = LocalOffsets(_path("offsets.json", raw), "c", "g")
        with suppress(ClientError):
            offsets.load()


# --- users and policies -----------------------------------------------------------------------------------------------


class _NoSealer:
    """Leaves secrets as they are: most inputs would not get past a cipher."""

    def seal(self, name: str, secret: str) -> str:
        return secret

    def open(self, name: str, sealed: str) -> str:
        return sealed


def access_files(data: bytes) -> None:
    """Users and policies as a nameserver reads them, and entries as administrators write them."""
    if not data:
        return
    if data[0] & 1:
        table = AccessTable(cast("Sealer", _NoSealer()))
        with suppress(AccessFileDamaged):
            AccessFile(_path("access.json", data[1:]), table).load()
            written = encode_config(table.to_json())
            table.take(table.parse(decode_config(written)))
            assert encode_config(table.to_json()) == written
        return
    text = data[1:].decode("utf-8", "replace")
    resource, *words = text.split("|")
    if (about := resource_of(resource)) is not None:
        assert str(resource_of(str(about))) == str(about)
        about.matches("Topic", "orders")
    with suppress(RequestError):
        entry = entry_of(resource, words[:2], words[2:-1], words[-1] if words else None)
        for address in ("10.1.2.3", "::ffff:10.1.2.3", "fe80::1%eth0", *words[:1]):
            entry.is_from(address)


def plain_acl(data: bytes) -> None:
    """plain_acl.yml of RocketMQ 4.x: what is read is written, and read again as the same; patterns of addresses."""
    text = data.decode("utf-8", "replace")
    for address in ("10.1.2.3", "fe80:0:0:0:0:0:0:1"):
        address_matches(text, address)
    with suppress(FormatError):
        perms_of(text.split(","), checked=True)
    try:
        content = read_yaml(text)
    except FormatError:
        return
    if content is None:
        return
    assert read_yaml(write_yaml(content)) == content
    with suppress(FormatError):
        acl = read_plain_acl(text)
        assert acl == read_plain_acl(write_yaml(content))
        PlainAcl().joined(acl).is_white("10.1.2.3")
        for account in acl.accounts.values():
            address_matches(account.white_address, "10.1.2.3")


# --- what reaches far into them ---------------------------------------------------------------------------------------


DEEP: Final = b"[" * 3000
LONG: Final = b"9" * 5000


def _configuration() -> Iterator[bytes]:
    text = b"brokerName=a\nlistenPort = 10911\n# said\ndeleteWhen=04\\\n;05\nfileReservedTime=\\u0034\n"
    for head in (0, 1, 2, 3, 0xF0):
        yield bytes([head]) + text
        yield (
            bytes([head])
            + b"listenPort=x\nunknown=1\nstorePathRootDir=~nobody/x\nenablePropertyFilter=true\n"
        )
    yield b'\x04brokerName = "a"\nlistenPort = 10911\ndeleteWhen = ["04"]\n'
    yield b"\x04a = " + DEEP
    yield b"\x04listenPort = " + LONG
    yield b"\x02listenPort = " + LONG
    yield b"\x06AEROBEE_LISTEN_PORT=10911\nAEROBEE_LISTENPORT=1\nAEROBEE_X=1"


def _certificates() -> Iterator[bytes]:
    yield CERTIFICATE
    yield b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"


# Of nobody: only its validity is there.
CERTIFICATE: Final = (
    b"-----BEGIN CERTIFICATE-----\nMDMwMaADAgECAgEBMAAwADAeFw0yNjAxMDEwMDAwMDBaFw0yNzAxMDEwMDAwMDBaMAAw\nAA==\n"
    b"-----END CERTIFICATE-----\n"
)


CONTENTS: Final = (
    b'{"dataVersion":{"counter":1},"topicConfigTable":{"T":{"topicName":"T","perm":6,"attributes":{"a":"b"}}}}',
    b'{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":3}},"forbiddenTable":{"g":{"T":4}}}',
    b'{"offsetTable":{"T@g":{0:1,1:22}},"groupTopicMap":{"g":["T"]}}',
    b'{"table":{"T@g":{"0":{"popTime":5,"i":60,"o":[1,1,2],"ot":{"2":9},"oc":{"1":1},"l":5,"cm":1,"a":"x"}}}}',
    b'{"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":1,"topic":"T"}}}}',
    b'{"dataVersion":{"counter":1},"offsetTable":{"1":120,"3":44}}',
    b'{"users":{"ann":{"password":"p","userStatus":1,"userType":2}},"acls":{"ann":[{"policyType":1,"entries":'
    b'[{"resourceType":4,"resourceName":"T","resourcePattern":2,"actions":[3],"decision":1,"sourceIps":["10.0.0.0/8"]}]'
    b"}]}}",
)


def _tables_written() -> Iterator[bytes]:
    for number, content in enumerate(CONTENTS):
        head = bytes([number])
        yield head + content
        yield head + b'{"x":' + DEEP
        name = content.split(b'"')[1]
        yield head + b'{"' + name + b'":{"T@g":{"x":1}}}'
        yield head + b'{"' + name + b'":{"T@g":{"0":' + LONG + b"}}}"
        yield head + b'{"' + name + b'":{"T@g":{"' + LONG + b'":{"o":[1]}}}}'


def _small_tables() -> Iterator[bytes]:
    yield b'\x01{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}'
    yield b'\x01{"configTable":{},"x":' + DEEP
    yield b'\x00{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:7}}'
    yield b'\x00{"x":' + DEEP


def _access() -> Iterator[bytes]:
    yield b"\x01" + CONTENTS[-1]
    yield b'\x01{"users":' + DEEP
    for text in (
        b"Topic:orders|Pub|Sub|10.0.0.0/8|Allow", b"Group:a*|All||Deny", b"*|Get|List|::1|deny", b"Cluster:*", b"Topic:"
    ):  # fmt: skip
        yield b"\x00" + text


def _plain_acl() -> Iterator[bytes]:
    yield (
        b"globalWhiteRemoteAddresses:\n- 10.10.103.*\n- 192.168.0.1-9\naccounts:\n- accessKey: rocketmq2\n  secretKey: "
        b"'12345678'\n  whiteRemoteAddress: 192.168.1.*\n  admin: false\n  defaultTopicPerm: DENY\n  topicPerms:\n"
        b"  - topicA=DENY\n  - topicB=PUB|SUB\n  groupPerms: [groupA=SUB, 'b']\n"
    )
    yield from (
        b"a: [1, 2,]", b"a: [,]", b"a: [b,,c]", b'"a b": 1', b"a: 'it''s'\nb: \"x\"\nc: ~", b"- - a",
        b"a:\n- b: 1\n  c: 2\n", b"192.168.{1,2}", b"10.1.2.1-9", b"10.1.2.3,10.*", b"fe80:0:0:0:0:0:0:*",
        b"{" * 3000, b"a: " + DEEP + b"]" * 3000, b"10.1.2.1-" + LONG, b"- a:\n" * 40,
    )  # fmt: skip


TARGETS: Final[dict[str, Target]] = {
    "configuration": Target(configuration, _configuration, 8_000),
    "certificates": Target(certificates, _certificates, 180_000, 1024),
    "config_tables": Target(config_tables, _tables_written, 60_000),
    "small_tables": Target(small_tables, _small_tables, 40_000),
    "access_files": Target(access_files, _access, 80_000),
    "plain_acl": Target(plain_acl, _plain_acl, 25_000),
}
