"""Settings: RocketMQ's names, defaults that promise what is kept, hot changes whole or not at all."""

import gzip
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.settings.config import (
    BrokerConfig,
    LiveConfig,
    delay_levels,
    field_of,
    hot_keys,
    local_address,
    nameserver_addresses,
    to_store_config,
    unserved_keys,
    warn_of_unserved,
)
from aerobee_broker.settings.official_keys import UNSUPPORTED_KEYS
from aerobee_proto.frames import FrameDecoder
from aerobee_service.settings.settings import SettingsError, load_settings
from broker.support import GOLDEN, START_MS

REFUSED = {
    "a replica to wait for without a role": {"inSyncReplicas": "2"},
    "more copies than are waited for": {
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "minInSyncReplicas": "3",
    },
    "a slave without a number": {"brokerRole": "SLAVE"},
    "a role that is none": {"brokerRole": "LEADER"},
    "two masters at once": {"haMasterAddress": "a:10912;b:10912"},
    "a controller": {"enableControllerMode": "true"},
    "a slave that acts as master": {"enableSlaveActingMaster": "true"},
    "every copy of an election's set": {"allAckInSyncStateSet": "true"},
    "a log cut back by the master's disk": {"syncMasterFlushOffsetWhenStartup": "true"},
    "several log folders": {"storePathCommitLog": "/a,/b"},
    "TLS without a certificate": {"tlsServerMode": "enforcing"},
    "a nameserver without a port": {"namesrvAddr": "ns.example"},
    "a nameserver with a wide port": {"namesrvAddr": "ns.example:99999"},
    "a delay without a unit": {"messageDelayLevel": "1s 5"},
    "a broker name that is a path": {"brokerName": "../etc"},
    "an hour that does not exist": {"deleteWhen": "25"},
    "disk levels that fall": {"diskSpaceCleanForciblyRatio": "95", "diskSpaceWarningLevelRatio": "90"},
    "a port beyond 65535": {"listenPort": "70000"},
    "a tiny log file": {"mappedFileSizeCommitLog": "100"},
}


def load(**settings: str) -> BrokerConfig:
    return load_settings(
        BrokerConfig, file=None, environ_prefix="AEROBEE_BROKER_", overrides=settings, environ={}
    )


def official_settings() -> dict[str, str]:
    """What an official broker listed as its settings."""
    with gzip.open(GOLDEN / "wire/JSON/mqadmin-getBrokerConfig.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            if line.get("request_code") == 26:
                (_, _, body) = FrameDecoder().feed(b64decode(line["frame_b64"]))[0]
                pairs = (text.partition("=") for text in body.decode().splitlines())
                return {key: value for key, _, value in pairs}
    raise AssertionError("no settings in the capture")


def test_every_key_of_an_official_broker_is_known() -> None:
    known = {info.alias for info in BrokerConfig.model_fields.values()} | UNSUPPORTED_KEYS.keys()
    assert official_settings().keys() <= known


def test_no_key_is_both_served_and_unsupported() -> None:
    served = {info.alias for info in BrokerConfig.model_fields.values()}
    assert not served & UNSUPPORTED_KEYS.keys()


def test_defaults_are_the_official_ones_apart_from_four() -> None:
    changed_for_the_capture = {
        *(
            "bindAddress",
            "brokerClusterName",
            "brokerIP1",
            "brokerIP2",
            "brokerName",
            "defaultTopicQueueNums",
        ),
        *("diskMaxUsedSpaceRatio", "enablePropertyFilter", "flushDelayOffsetInterval", "haListenPort"),
        *("listenPort", "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum"),
        *("maxIndexNum", "messageDelayLevel", "namesrvAddr", "storePathCommitLog", "storePathRootDir"),
        *("transactionCheckInterval", "transactionTimeOut"),
    }
    ours = {"flushDiskType", "metricsExporterType", "metricsPromExporterHost", "shutdownWaitTimeSeconds"}
    defaults = BrokerConfig()
    for key, value in official_settings().items():
        if key in UNSUPPORTED_KEYS or key in changed_for_the_capture | ours:
            continue
        own = getattr(defaults, field_of(key))
        assert str(own).lower() == value.lower(), key


@pytest.mark.parametrize("settings", REFUSED.values(), ids=REFUSED)
def test_a_promise_that_cannot_be_kept_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as refused:
        load(**settings)
    assert any(key in str(refused.value) for key in settings)


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean brokerIP1"):
        load(brokerIp1="192.0.2.1")


def test_every_field_says_what_it_does_and_whether_it_is_hot() -> None:
    for name, info in BrokerConfig.model_fields.items():
        assert info.description, name
        assert isinstance(info.json_schema_extra, dict), name
        assert isinstance(info.json_schema_extra["hot"], bool), name


def test_the_store_gets_whole_entries_and_the_flush_mode(tmp_path: Path) -> None:
    config = load(
        storePathRootDir=str(tmp_path), mappedFileSizeConsumeQueue="1001", flushDiskType="ASYNC_FLUSH"
    )
    store = to_store_config(config)
    assert store.root == tmp_path
    assert store.consume_queue_file_size == 1020
    assert not store.sync_flush
    assert store.delay_levels_ms[:2] == (1_000, 5_000)
    assert to_store_config(load()).sync_flush


def test_nameservers_are_parted_at_semicolons_and_listed_once() -> None:
    assert nameserver_addresses("a:9876; b:9877 ;a:9876;") == ("a:9876", "b:9877")
    assert nameserver_addresses("") == ()
    assert nameserver_addresses("[::1]:9876") == ("[::1]:9876",)


def test_delays_have_units() -> None:
    assert delay_levels("1s 2m 3h 1d") == (1_000, 120_000, 10_800_000, 86_400_000)


def test_the_local_address_is_an_address() -> None:
    assert local_address().count(".") == 3


def test_a_setting_without_effect_is_named_when_it_is_set() -> None:
    with capture_logs() as logs:
        warn_of_unserved(load(userCacheMaxNum="3", timerPrecisionMs="1000"), unserved_keys())
    assert [(line["event"], line["key"]) for line in logs] == [
        ("broker.setting_without_effect", "userCacheMaxNum")
    ]


def test_settings_without_effect_say_so_where_they_are_described() -> None:
    for key, reason in unserved_keys().items():
        assert reason in str(BrokerConfig.model_fields[field_of(key)].description), key


def test_a_master_is_number_0_and_a_slave_takes_less_memory_for_granted() -> None:
    """As RocketMQ does it: the number of a master is not looked at, a slave's share of memory is 10 % lower."""
    master, slave = load(brokerId="3"), load(brokerRole="SLAVE", brokerId="3")
    assert (master.registered_id, slave.registered_id) == (0, 3)
    assert (to_store_config(master).memory_ratio_max, to_store_config(slave).memory_ratio_max) == (40, 30)
    assert (to_store_config(master).is_copy, to_store_config(slave).is_copy) == (False, True)


class TestHotChanges:
    def make(self) -> LiveConfig:
        return LiveConfig(load(), now_ms=START_MS)

    def test_a_hot_key_is_taken_and_moves_the_version(self) -> None:
        live = self.make()
        assert live.replace({"fileReservedTime": "48"}, origin="test", now_ms=START_MS + 5) == {
            "fileReservedTime"
        }
        assert live.value.file_reserved_time == 48
        assert (live.version.counter, live.version.timestamp) == (1, START_MS + 5)

    def test_the_same_value_again_changes_nothing(self) -> None:
        live = self.make()
        assert live.replace({"fileReservedTime": "72"}, origin="test", now_ms=START_MS) == set()
        assert live.version.counter == 0

    @pytest.mark.parametrize(
        "changes",
        [
            {"fileReservedTime": "48", "listenPort": "1"},
            {"fileReservedTime": "48", "brokerPermission": "99"},
            {"fileReservedTime": "48", "noSuchKey": "1"},
        ],
    )
    def test_one_bad_key_takes_the_whole_change_down(self, changes: dict[str, str]) -> None:
        live = self.make()
        before: Any = live.value
        with pytest.raises(SettingsError):
            live.replace(changes, origin="test", now_ms=START_MS)
        assert live.value is before

    def test_what_only_a_start_can_change_is_not_hot(self) -> None:
        assert "fileReservedTime" in hot_keys()
        assert not hot_keys() & {
            "listenPort",
            "storePathRootDir",
            "brokerName",
            "flushDiskType",
            "maxMessageSize",
        }


# Of RocketMQ's replication.
REPLICATION_KEYS = """
    accessMessageInMemoryMaxRatio allAckInSyncStateSet brokerId brokerIP2 brokerRole duplicationEnable
    enableAutoInSyncReplicas haFlowControlEnable haHousekeepingInterval haListenPort haMasterAddress haMaxGapNotInSync
    haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haTransferBatchSize inSyncReplicas maxHaTransferByteInSecond
    minInSyncReplicas offsetCheckInSlave slaveReadEnable slaveTimeout totalReplicas
"""
# They mean nothing here: a warning names them, or they are refused.
MEANINGLESS_KEYS = """
    asyncLearner brokerElectionPriority checkSyncStateSetPeriod controllerAddr enableControllerMode
    enableSlaveActingMaster maxSlaveResendLength storePathBrokerIdentity storePathEpochFile
    syncFromLastFile syncMasterFlushOffsetWhenStartup
"""


def test_each_key_of_replication_is_honoured_or_named() -> None:
    known = {info.alias for info in BrokerConfig.model_fields.values()}
    meaningless = set(MEANINGLESS_KEYS.split())
    assert known.issuperset(REPLICATION_KEYS.split())
    assert meaningless <= UNSUPPORTED_KEYS.keys()
    assert not meaningless & known


ELECTED = {"electionEndpoints": "e1:2379;e2:2379", "brokerId": "2"}


def test_an_election_needs_no_role_and_waits_for_all_in_sync() -> None:
    config = load(**ELECTED, minInSyncReplicas="2")
    assert (config.election_prefix, config.election_lease_millis) == ("/aerobee", 3000)
    assert "secret" not in repr(load(**ELECTED, electionPassword="secret"))
    assert load(**ELECTED, allAckInSyncStateSet="true").all_ack_in_sync_state_set
    with pytest.raises(SettingsError, match="say how many with inSyncReplicas"):
        load(allAckInSyncStateSet="true")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"brokerId": "0"}, "needs a brokerId of 1 or more"),
        ({"electionLeaseMillis": "1000"}, "whole seconds, 2 at least"),
        ({"electionLeaseMillis": "2500"}, "whole seconds, 2 at least"),
        ({"workers": "2"}, "one worker"),
        ({"haMasterAddress": "h:10912"}, "haMasterAddress"),
        ({"duplicationEnable": "true"}, "duplicationEnable"),
        ({"electionEndpoints": "e1"}, "not host:port"),
    ],
)
def test_what_does_not_go_with_an_election_is_refused(settings: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load(**(ELECTED | settings))
