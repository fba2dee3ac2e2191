"""Names that do not exist: no command calls it well, each names it, with similar names where there are some.

Every command is found by walking the tree, and every parameter is said to be a name or none: a new command that
takes a topic, group, broker, member, message id or key is missed by no one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from aerobee_console.terminal.failures import FAULT, NOT_FOUND, USAGE
from console.cluster.test_groups import online
from console.support import Command, Runner, commands
from pyspark_aerobee.jobs.manifest import Archive, ArchivedFile, Commit
from store.golden import unpack

NAMES: Final = frozenset(
    {
        "topic", "topics", "group", "groups", "source", "target", "broker", "brokers", "cluster", "client_id",
        "message_id", "key", "key_option", "keys", "queue", "rename",
    }
)  # fmt: skip
OTHERS: Final = frozenset(
    {
        "accept_loss", "access_file", "all_groups", "all_topics", "attributes", "begin", "body",
        "born_within_ms", "broadcast", "changes", "check", "commit_log", "compression", "config", "consume",
        "count", "connect", "delay", "delta", "dry_run", "end", "entries", "file", "folder", "follow", "force",
        "html", "json", "last", "listen", "master", "name", "nameserver", "offline", "option", "order",
        "output", "path", "permission", "port", "properties", "property_crc", "queues", "records", "resume",
        "retries", "send", "settings", "sharding_key", "slots", "sql", "accounts", "client", "days", "key_file",
        "renew", "replicas", "servers", "tls_cert", "tls_key", "start", "store", "tags", "threads", "timeout",
        "tls", "tls_ca", "to", "trace", "until", "workers", "settle", "without_old", "write_queues", "yes",
    }
)  # fmt: skip

# A parameter that is how many queues elsewhere, and which of them here.
NUMBERS: Final = {("consume", "queues")}

# An offset id: the broker's address, and a place behind its log.
NOWHERE: Final = "7F000001{port:08X}00000000000FFFFF"

# Command and parameter: how it is typed with a name that is not there, the exit code, and what the text must hold.
# {store} is a store folder; {member} a member of n-group that is online; {nowhere} the id of no message.
CASES: Final[dict[tuple[str, str], tuple[list[str], int, list[str]]]] = {
    ("consume", "topic"): (["consume", "n-topik"], NOT_FOUND, ["'n-topik'", "n-topic"]),
    ("consume", "queues"): (
        ["consume", "n-topic", "--queue", "99"], NOT_FOUND, ["has no queue 99", "n-topic/broker-a/0"],
    ),
    ("tail", "topic"): (["tail", "n-topik"], NOT_FOUND, ["'n-topik'", "n-topic"]),
    ("query", "topic"): (["query", "n-topik", "k"], NOT_FOUND, ["'n-topik'", "n-topic"]),
    ("query", "key"): (["query", "n-topic", "n-key"], NOT_FOUND, ["'n-key'"]),
    ("query", "key_option"): (["query", "n-topic", "--key", "n-key"], NOT_FOUND, ["'n-key'"]),
    ("query", "message_id"): (["query", "n-topic", "--id", "{nowhere}"], NOT_FOUND, ["{nowhere}"]),
    ("send", "queue"): (["send", "n-topic", "x", "--queue", "7"], NOT_FOUND, ["7 is none of them", "0 to 0"]),
    ("topic describe", "topic"): (["topic", "describe", "n-topik"], NOT_FOUND, ["'n-topik'", "n-topic"]),
    ("topic route", "topic"): (["topic", "route", "n-topik"], NOT_FOUND, ["'n-topik'", "n-topic"]),
    ("topic create", "brokers"): (
        ["topic", "create", "n-new", "--broker", "broker-x"], NOT_FOUND, ["'broker-x'", "broker-a"],
    ),
    ("topic create", "cluster"): (
        ["topic", "create", "n-new", "--cluster", "Default"], NOT_FOUND, ["'Default'", "DefaultCluster"],
    ),
    ("topic alter", "topic"): (
        ["topic", "alter", "n-topik", "--queues", "2", "--yes"], NOT_FOUND, ["'n-topik'", "n-topic"],
    ),
    ("topic delete", "topic"): (["topic", "delete", "n-topik", "--yes"], NOT_FOUND, ["'n-topik'", "n-topic"]),
    ("topic delete", "cluster"): (
        ["topic", "delete", "n-topic", "--cluster", "Default", "--yes"], NOT_FOUND, ["'Default'", "DefaultCluster"],
    ),
    ("group reset", "group"): (
        ["group", "reset", "n-groop", "n-topic", "--to", "latest", "--yes"], NOT_FOUND, ["'n-groop'", "n-group"],
    ),
    ("group reset", "topic"): (
        ["group", "reset", "n-group", "n-topik", "--to", "latest", "--yes"], NOT_FOUND, ["'n-topik'", "n-topic"],
    ),
    ("group reset", "queue"): (
        ["group", "reset", "n-group", "n-topic", "--to", "latest", "--queue", "broker-x:0", "--yes"],
        NOT_FOUND,
        ["'broker-x'", "broker-a"],
    ),
    ("group reset", "queue number"): (
        ["group", "reset", "n-group", "n-topic", "--to", "latest", "--queue", "broker-a:99", "--yes"],
        NOT_FOUND,
        ["99 is none of them", "0 to 0 on broker-a"],
    ),
    ("group clone", "source"): (
        ["group", "clone", "n-groop", "n-clone", "--yes"], NOT_FOUND, ["'n-groop'", "n-group"],
    ),
    ("group clone", "topic"): (
        ["group", "clone", "n-group", "n-clone", "--topic", "n-topik", "--yes"], NOT_FOUND, ["'n-topik'", "n-topic"],
    ),
    ("group members", "group"): (["group", "members", "n-groop"], NOT_FOUND, ["'n-groop'", "n-group"]),
    ("group running-info", "group"): (
        ["group", "running-info", "n-groop", "{member}"], NOT_FOUND, ["'n-groop'", "n-group"],
    ),
    ("group running-info", "client_id"): (
        ["group", "running-info", "n-group", "n-member"], NOT_FOUND, ["'n-member'", "{member}"],
    ),
    ("group try", "group"): (
        ["group", "try", "n-groop", "{member}", "n-topic", "{stored}"], NOT_FOUND, ["'n-groop'", "n-group"],
    ),
    ("group try", "client_id"): (
        ["group", "try", "n-group", "n-member", "n-topic", "{stored}"], NOT_FOUND, ["'n-member'", "{member}"],
    ),
    ("group try", "topic"): (
        ["group", "try", "n-group", "{member}", "n-topik", "{stored}"], NOT_FOUND, ["'n-topik'", "n-topic"],
    ),
    ("group try", "message_id"): (
        ["group", "try", "n-group", "{member}", "n-topic", "{nowhere}"], NOT_FOUND, ["{nowhere}"],
    ),
    ("group describe", "group"): (["group", "describe", "n-groop"], NOT_FOUND, ["'n-groop'", "n-group"]),
    ("group describe", "topic"): (
        ["group", "describe", "n-group", "--topic", "n-topik"], NOT_FOUND, ["'n-topik'", "n-topic"],
    ),
    ("group create", "cluster"): (
        ["group", "create", "n-new", "--cluster", "Default"], NOT_FOUND, ["'Default'", "DefaultCluster"],
    ),
    ("group alter", "group"): (
        ["group", "alter", "n-groop", "--retries", "2"], NOT_FOUND, ["'n-groop'", "n-group"],
    ),
    ("group lag", "group"): (["group", "lag", "n-groop"], NOT_FOUND, ["'n-groop'", "n-group"]),
    ("group delete", "group"): (["group", "delete", "n-groop", "--yes"], NOT_FOUND, ["'n-groop'", "n-group"]),
    ("cluster status", "broker"): (["cluster", "status", "broker-x"], NOT_FOUND, ["'broker-x'", "broker-a"]),
    ("cluster replicas", "broker"): (["cluster", "replicas", "broker-x"], NOT_FOUND, ["'broker-x'", "broker-a"]),
    ("cluster switch", "broker"): (["cluster", "switch", "broker-x"], NOT_FOUND, ["'broker-x'", "broker-a"]),
    ("cluster take-over", "broker"): (["cluster", "take-over", "broker-x"], NOT_FOUND, ["'broker-x'", "broker-a"]),
    ("cluster promote", "broker"): (["cluster", "promote", "127.0.0.1:1"], NOT_FOUND, ["'127.0.0.1:1'"]),
    ("cluster follow", "broker"): (["cluster", "follow", "127.0.0.1:1"], NOT_FOUND, ["'127.0.0.1:1'"]),
    ("cluster remove", "broker"): (["cluster", "remove", "127.0.0.1:1"], NOT_FOUND, ["'127.0.0.1:1'"]),
    ("cluster config", "broker"): (["cluster", "config", "broker-x"], NOT_FOUND, ["'broker-x'", "broker-a"]),
    ("cluster config", "keys"): (
        ["cluster", "config", "broker-a", "brokerIp1"], NOT_FOUND, ["brokerIp1", "did you mean brokerIP1"],
    ),
    ("doctor", "topic"): (["doctor", "--no-send", "--topic", "n-topik"], FAULT, ["'n-topik'", "n-topic"]),
    ("pipeline archive", "topics"): (
        ["pipeline", "archive", "{store}-archive", "-n", "{nameserver}", "--topics", "n-topik"],
        NOT_FOUND,
        ["'n-topik'", "n-topic"],
    ),
    ("pipeline audit", "topics"): (
        ["pipeline", "audit", "-n", "{nameserver}", "--topics", "n-topik"], NOT_FOUND, ["'n-topik'", "n-topic"],
    ),
    ("pipeline lag", "groups"): (
        ["pipeline", "lag", "-n", "{nameserver}", "--groups", "n-groop"], NOT_FOUND, ["'n-groop'", "n-group"],
    ),
    ("pipeline restore", "source"): (
        ["pipeline", "restore", "{store}", "-n", "{nameserver}"], USAGE, ["there is no archive in {store}"],
    ),
    ("pipeline restore", "topics"): (
        ["pipeline", "restore", "{archive}", "-n", "{nameserver}", "--topics", "n-topik"],
        NOT_FOUND,
        ["no topic 'n-topik'", "n-topic"],
    ),
    ("pipeline restore", "rename"): (
        ["pipeline", "restore", "{archive}", "-n", "{nameserver}", "--rename", "n-topik=n-topic"],
        NOT_FOUND,
        ["no topic 'n-topik'", "n-topic"],
    ),
    ("store dump", "topic"): (["store", "dump", "{store}", "--topic", "Topik"], NOT_FOUND, ["'Topik'"]),
    ("store dump", "queue"): (
        ["store", "dump", "{store}", "--topic", "{store_topic}", "--queue", "99"], NOT_FOUND, ["no queue 99"],
    ),
}  # fmt: skip

# Where a name that is not there is no mistake, and why.
MADE: Final = {
    ("send", "topic"): "a broker may create it on the first send, and says so where it does not",
    ("send", "keys"): "what the message gets",
    ("consume", "group"): "consuming makes it",
    ("topic create", "topic"): "it is made",
    ("group create", "group"): "it is made",
    ("group clone", "target"): "it is made",
    ("pipeline archive", "target"): "it is made",
    ("pipeline reindex", "target"): "it is made",
}


def _named() -> Iterator[tuple[Command, str]]:
    for command in commands():
        for argument in command.arguments:
            yield command, argument.field_info.name


def test_every_parameter_of_every_command_is_a_name_or_none() -> None:
    """A new parameter has to be put into one of the two lists above, and, where it is a name, into the cases."""
    found = {name for _, name in _named()}
    assert found - NAMES - OTHERS == set()
    assert (NAMES | OTHERS) - found == set(), "no command takes these any more"


def test_every_name_that_a_command_takes_has_its_case() -> None:
    taken = {
        (command.name, name) for command, name in _named() if name in NAMES or (command.name, name) in NUMBERS
    }
    assert taken - CASES.keys() - MADE.keys() == set()
    assert (CASES.keys() | MADE.keys()) - taken - {("group reset", "queue number")} == set(), (
        "no command takes these any more"
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("clean", tmp_path_factory.mktemp("names"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with a file of one topic; its list of files is all that is looked at."""
    folder = tmp_path_factory.mktemp("archive")
    file = ArchivedFile("one.parquet", "n-topic", 1, 1, 1, 0, 0)
    commit = Commit(1, "run", 0, "source", [], [file])
    path = Path(Archive(str(folder)).commit_path(1))
    path.parent.mkdir(parents=True)
    path.write_bytes(commit.encode())
    return folder


@pytest.fixture
def words(cluster: Runner, nameserver: str, store: Path, archive: Path) -> Iterator[dict[str, str]]:
    """What the cases name: a topic with a message, a group with a member that is online."""
    cluster("topic", "create", "n-topic", "--queues", "1")
    (sent,) = cluster("send", "n-topic", "x", "-o", "json").json["sent"]
    (route,) = cluster("topic", "route", "n-topic", "-o", "json").json["routes"]
    port = int(route["addr"].rpartition(":")[2])
    with online(nameserver, "n-topic", "n-group"):
        (member,) = cluster("group", "members", "n-group", "-o", "json").json["members"]
        yield {
            "{member}": member["client_id"],
            "{stored}": sent["offset_message_id"],
            "{nowhere}": NOWHERE.format(port=port),
            "{store}": str(store),
            "{archive}": str(archive),
            "{nameserver}": nameserver,
            "{store_topic}": next(path.name for path in sorted((store / "consumequeue").iterdir())),
        }


def _put(text: str, words: dict[str, str]) -> str:
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text


def test_a_name_that_does_not_exist_is_told_and_changes_nothing(
    cluster: Runner, aerobee: Runner, words: dict[str, str]
) -> None:
    """`group delete nosuch` was "deleted", `group lag nosuch` was nothing, `group alter nosuch` made it."""
    before = _state(cluster)
    for case, (line, code, texts) in CASES.items():
        run = aerobee if line[0] in ("store", "pipeline") else cluster
        done = run(*(_put(word, words) for word in line))
        said = done.out if code == FAULT else done.err
        assert done.code == code, (case, done)
        assert "Traceback" not in done.err, case
        for text in texts:
            assert _put(text, words) in said, (case, done)
        if line[0] not in ("doctor", "store"):
            assert done.out == "", case
    assert _state(cluster) == before


def _state(cluster: Runner) -> tuple[list[str], list[str]]:
    groups = cluster("group", "list", "--all", "-o", "json").json["groups"]
    return cluster("topic", "list", "--all").lines, [one["group"] for one in groups]
