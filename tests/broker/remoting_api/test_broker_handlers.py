"""Settings, state and statistics of the broker, asked as administrators ask."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aerobee_broker.assembly import Parts, followers
from aerobee_broker.remoting_api.broker_handlers import BrokerHandlers
from aerobee_broker.remoting_api.settings_handlers import SettingsHandlers
from aerobee_broker.settings.config import BrokerConfig
from aerobee_broker.settings.config_files import decode_config
from aerobee_broker.settings.official_keys import PROMISING_KEYS, UNSUPPORTED_KEYS
from aerobee_proto.bodies import BrokerStatsData, DataVersion, KVTable
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command, encode_command
from aerobee_proto.names import SCHEDULE_TOPIC
from aerobee_remoting.exchange.handlers import HandlerTable
from aerobee_service.settings.settings import SettingsError, load_settings
from broker.support import GOLDEN, Clock, Peer, put
from store.inside import tombstones_of
from store.memory_io import MemoryIo


async def settings_of(peer: Peer) -> dict[str, str]:
    answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    assert answer.code == 0
    pairs = (line.partition("=") for line in answer.body.decode().splitlines())
    return {key: value for key, _, value in pairs}


def with_file(parts: Parts, path: Path) -> Peer:
    """A client of a broker whose settings are kept in a file."""
    table = HandlerTable()
    SettingsHandlers(
        live=parts.live,
        clock=parts.clock,
        topics=parts.topics,
        followers=followers(parts.registrar, parts.transactions),
        settings_file=path,
    ).register(table)
    return Peer(table)


async def change(peer: Peer, text: str) -> tuple[int, str]:
    answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
    return answer.code, answer.remark or ""


class TestSettings:
    async def test_all_are_told_under_their_names(self, parts: Parts, peer: Peer) -> None:
        settings = await settings_of(peer)
        assert settings["brokerName"] == "golden-a"
        assert settings["brokerIP1"] == "127.0.0.2"
        assert settings["autoCreateTopicEnable"] == "true"
        assert settings["storePathRootDir"] == str(parts.config.store_path_root_dir)

    async def test_a_hot_key_is_changed_and_moves_the_version(self, clock: Clock, peer: Peer) -> None:
        clock.now_ms += 7
        assert await change(peer, "fileReservedTime=48\n# a comment\n") == (0, "")
        assert (await settings_of(peer))["fileReservedTime"] == "48"
        answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
        version = DataVersion.from_bytes(answer.ext["version"].encode())
        assert (version.counter, version.timestamp) == (1, clock.now_ms)

    @pytest.mark.parametrize(
        ("text", "code", "names"),
        [
            ("", 0, ""),
            ("# nothing\n", 0, ""),
            ("listenPort=1\n", 16, "listenPort"),
            ("storePathRootDir=/tmp\n", 16, "storePathRootDir"),
            ("noSuchKey=1\n", 16, "noSuchKey"),
            (
                "sendMessageThreadPoolNums=4\n",
                0,
                "ignored: sendMessageThreadPoolNums: there are no thread pools",
            ),
            ("enableControllerMode=false\nstoreType=\n", 0, "ignored: "),
            ("enableControllerMode=true\n", 29, "there is no controller"),
            ("storeType=rocksdb\nfileReservedTime=48\n", 29, "cannot be read"),
            ("sendMessageThreadPoolNums=4\nlistenPort=1\n", 16, "listenPort"),
            ("fileReservedTime=48\nlistenPort=1\n", 16, "listenPort"),
            ("fileReservedTime=many\n", 29, "fileReservedTime"),
            ("fileReservedTime=-1\n", 29, "fileReservedTime"),
            ("fileReservedTime=48\nbrokerPermission=9\n", 29, "brokerPermission"),
            ("a=\\u12", 1, "not readable"),
        ],
    )
    async def test_what_may_be_changed(
        self, text: str, code: int, names: str, parts: Parts, peer: Peer
    ) -> None:
        before = parts.config
        answered, remark = await change(peer, text)
        assert answered == code
        assert names in remark
        assert parts.config is before

    async def test_what_means_nothing_is_ignored_alike_in_a_file_and_in_an_update(
        self, peer: Peer, tmp_path: Path
    ) -> None:
        """The same line was taken with a warning in broker.conf and refused with 16 in an update."""
        text = "".join(f"{key}=true\n" for key in sorted(UNSUPPORTED_KEYS.keys() - PROMISING_KEYS.keys()))
        (tmp_path / "broker.conf").write_text(text)
        with capture_logs() as of_file:
            load_settings(
                BrokerConfig, file=tmp_path / "broker.conf", environ_prefix="X_", overrides={}, environ={}
            )
        with capture_logs() as of_update:
            code, remark = await change(peer, text)
        assert code == 0
        assert remark.startswith("ignored: ")
        logged = [
            [(line["key"], line["reason"]) for line in logs if line["event"] == "settings.key_ignored"]
            for logs in (of_file, of_update)
        ]
        assert logged[0] == logged[1]
        assert {key for key, _ in logged[0]} == UNSUPPORTED_KEYS.keys() - PROMISING_KEYS.keys()

    @pytest.mark.parametrize("key", sorted(PROMISING_KEYS))
    async def test_what_would_promise_too_much_is_refused_alike(
        self, peer: Peer, tmp_path: Path, key: str
    ) -> None:
        harmless, reason = PROMISING_KEYS[key]
        for value, refused in (("asked-for", True), (harmless, False), ("", False)):
            (tmp_path / "broker.conf").write_text(f"{key}={value}\n")
            code, remark = await change(peer, f"{key}={value}\n")
            assert (code != 0, reason in remark) == (refused, refused)
            with ExitStack() as expected:
                if refused:
                    expected.enter_context(pytest.raises(SettingsError, match=key))
                load_settings(
                    BrokerConfig, file=tmp_path / "broker.conf", environ_prefix="X_", overrides={}, environ={}
                )

    async def test_an_ignored_key_does_not_stop_the_others(self, peer: Peer) -> None:
        code, remark = await change(peer, "enablePopBufferMerge=true\nfileReservedTime=48\n")
        assert (code, "enablePopBufferMerge" in remark) == (0, True)
        settings = await settings_of(peer)
        assert settings["fileReservedTime"] == "48"
        assert "enablePopBufferMerge" not in settings

    async def test_bytes_that_are_no_text(self, peer: Peer) -> None:
        answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"a=\xff\n")
        assert answer.code == ResponseCode.SYSTEM_ERROR

    async def test_the_file_follows_and_keeps_its_comments(self, parts: Parts, tmp_path: Path) -> None:
        path = tmp_path / "broker.conf"
        path.write_text("# mine\nfileReservedTime = 72\nlistenPort=10911\n")
        peer = with_file(parts, path)
        assert (await change(peer, "fileReservedTime=48\n"))[0] == 0
        assert path.read_text() == "# mine\nfileReservedTime=48\nlistenPort=10911\n"

    async def test_a_file_that_cannot_be_written_is_told(self, parts: Parts, tmp_path: Path) -> None:
        peer = with_file(parts, tmp_path)
        code, remark = await change(peer, "fileReservedTime=48\n")
        assert code == ResponseCode.SYSTEM_ERROR
        assert "until the next start" in remark
        assert parts.config.file_reserved_time == 48

    async def test_parts_follow_a_change(self, parts: Parts, peer: Peer) -> None:
        version = parts.topics.version
        await change(peer, "brokerPermission=4\n")
        assert parts.topics.version.counter == version.counter + 1
        await change(peer, "autoCreateTopicEnable=false\n")
        assert "TBW102" not in parts.topics
        await change(peer, "autoCreateTopicEnable=true\ndefaultTopicQueueNums=3\n")
        assert parts.topics.require("TBW102").write_queue_nums == 3


class TestState:
    async def runtime(self, peer: Peer) -> dict[str, str]:
        answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert answer.code == 0
        return KVTable.from_bytes(answer.body).table

    async def test_it_is_answered_in_the_turn_in_which_it_is_asked_for(self, peer: Peer) -> None:
        """A task and a thread were in between: several turns of the loop, each as long as others keep it busy."""
        await self.runtime(peer)
        peer.connection.data_received(encode_command(Command(RequestCode.GET_BROKER_RUNTIME_INFO, opaque=77)))
        (answer,) = peer.pending_requests()
        assert (answer.code, answer.opaque) == (0, 77)
        assert KVTable.from_bytes(answer.body).table["brokerVersionDesc"] == "V5_3_3"

    async def test_a_new_broker_has_every_key(self, peer: Peer) -> None:
        table = await self.runtime(peer)
        assert table["brokerVersionDesc"] == "V5_3_3"
        assert table["earliestMessageTimeStamp"] == "-1"
        for key in ("putTps", "getTransferredTps", "getTransferedTps", "getTotalTps"):
            assert [float(rate) for rate in table[key].split(" ")] == [0.0, 0.0, 0.0], key
        assert 0.0 <= float(table["commitLogDiskRatio"]) <= 1.0

    async def test_no_key_of_the_official_broker_is_missing(self, peer: Peer) -> None:
        """Dashboards read some of them without looking whether they are there."""
        captured = json.loads((GOLDEN / "wire" / "JSON" / "mqadmin-brokerStatus.result.json").read_bytes())
        lines = captured[0]["stdout"].splitlines()
        official = {line.partition(":")[0].strip() for line in lines if ":" in line}
        of_that_store = {
            key for key in official if key.startswith(("scheduleMessageOffset_", "commitLogDiskRatio_"))
        }
        assert len(official) > 60
        assert official - of_that_store - (await self.runtime(peer)).keys() == set()

    async def test_it_tells_of_what_happened(self, parts: Parts, clock: Clock, peer: Peer) -> None:
        parts.topics.restore({"T": 1})
        first_ms = clock.now_ms
        put(parts, "T", body=b"x" * 50)
        parts.stats.put("T", 1, 100)
        clock.now_ms += 90_061_000
        table = await self.runtime(peer)
        assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
        assert table["earliestMessageTimeStamp"] == str(first_ms)
        assert table["commitLogMaxOffset"] == str(parts.store.end_offset)
        assert (table["putMessageTimesTotal"], table["putMessageAverageSize"]) == ("1", "100.0")
        assert table["remainHowManyDataToFlush"].endswith(" B")

    async def test_it_tells_how_far_delay_levels_are(self, parts: Parts, peer: Peer) -> None:
        for _ in range(2):
            put(parts, SCHEDULE_TOPIC, queue_id=2)
        parts.delay_offsets.moved(3, 1, log_end=1)
        parts.delay_offsets.settle(1)
        delays = {key: text for key, text in (await self.runtime(peer)).items() if key.startswith("schedule")}
        assert delays == {"scheduleMessageOffset_3": "1,2"}

    @pytest.mark.parametrize(("name", "code"), [("TOPIC_PUT_NUMS", 0), ("NO_SUCH", 1)])
    async def test_statistics(self, name: str, code: int, parts: Parts, clock: Clock, peer: Peer) -> None:
        parts.stats.put("T", 1, 10)
        parts.stats.sample(clock.now_ms)
        parts.stats.put("T", 20, 10)
        parts.stats.sample(clock.now_ms + 10_000)
        ext = {"statsName": name, "statsKey": "T"}
        answer = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, ext)
        assert answer.code == code
        if code == 0:
            minute = BrokerStatsData.from_bytes(answer.body).stats_minute
            assert (minute.sum, minute.tps, minute.avgpt) == (21, 1.05, 10.5)


async def test_queues_without_a_topic_are_cleaned(parts: Parts, peer: Peer) -> None:
    parts.topics.restore({"T": 1})
    put(parts, "T")
    put(parts, "Gone")
    assert (await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert parts.store.topics.names() == ["T"]


async def test_system_and_light_queues_are_no_unused_topics(parts: Parts, peer: Peer) -> None:
    """They may have no settings and are in use all the same."""
    kept = ["%LMQ%light", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"]
    for topic in [*kept, "Gone"]:
        put(parts, topic)
        parts.topics.delete(topic)
    parts.offsets.commit("g", "Gone", 0, 1)
    assert (await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert parts.store.topics.names() == sorted(kept)
    assert parts.offsets.get("g", "Gone", 0) is None
    assert tombstones_of(parts.store).topics == {"Gone": parts.store.end_offset}


async def test_deleting_a_topic_is_on_disk_when_it_is_answered(
    disk: MemoryIo, parts: Parts, peer: Peer
) -> None:
    for topic in ("T", "U"):
        parts.topics.restore({topic: 1})
        put(parts, topic)
    folder = parts.config.store_path_root_dir
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert "T" in decode_config(disk.read_bytes(folder / "config" / "deletedTopics.json") or b"")["topics"]
    assert [entry.name for entry in disk.list_names(folder / "consumequeue")] == ["U"]


@pytest.mark.parametrize(
    "code", [RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE]
)
async def test_cleaning_can_be_asked_for(code: int, parts: Parts) -> None:
    asked: list[bool] = []
    table = HandlerTable()
    BrokerHandlers(
        store=parts.store,
        topics=parts.topics,
        offsets=parts.offsets,
        stats=parts.stats,
        observed=parts.observed,
        clean=lambda: asked.append(True),
    ).register(table)
    assert (await Peer(table).ask(code)).code == 0
    assert asked == [True]


async def test_codes_that_are_not_served_are_named(peer: Peer) -> None:
    answer = await peer.ask(9_999)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
