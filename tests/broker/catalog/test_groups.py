"""The group table: creation by use, administration, forbidden topics, the file."""

from typing import Any

import pytest

from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.settings.config import BrokerConfig, LiveConfig
from aerobee_proto.bodies import SubscriptionGroupConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.names import SYSTEM_GROUPS
from broker.support import Clock


def make_table(**settings: Any) -> SubscriptionGroups:
    clock = Clock()
    return SubscriptionGroups(
        LiveConfig(BrokerConfig(**settings), now_ms=clock()), clock, on_dirty=lambda: None
    )


@pytest.mark.parametrize(
    ("settings", "group", "found"),
    [
        ({}, "g", True),
        ({}, "TOOLS_CONSUMER", True),
        ({}, "a/b", False),
        ({}, "", False),
        ({}, "g" * 255, True),
        ({}, "g" * 256, False),
        ({"auto_create_subscription_group": False}, "g", False),
        ({"auto_create_subscription_group": False}, "TOOLS_CONSUMER", True),
        ({"auto_create_subscription_group": False}, "CID_RMQ_SYS_x", True),
        ({"max_groups_auto_created": 0}, "g", False),
    ],
)
def test_use_creates_a_group_where_it_may(settings: dict[str, Any], group: str, found: bool) -> None:
    table = make_table(**settings)
    assert (table.find(group) is not None) is found
    assert (group in table) is found


def test_a_group_that_may_not_be_created_says_what_to_look_at() -> None:
    with pytest.raises(RequestError, match="autoCreateSubscriptionGroup") as refused:
        make_table(auto_create_subscription_group=False).require("g")
    assert refused.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_system_groups_are_there_and_move_nothing() -> None:
    table = make_table()
    assert set(SYSTEM_GROUPS) <= table.all().keys()
    assert (table.version.counter, table.revision) == (0, 0)


def test_only_real_changes_move_the_version() -> None:
    table = make_table()
    config = SubscriptionGroupConfig(group_name="g", retry_max_times=3)
    assert table.update([table.check_update(config)]) == ["g"]
    assert table.update([table.check_update(config)]) == []
    assert table.delete("g")
    assert not table.delete("g")
    assert (table.version.counter, table.revision) == (2, 2)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (SubscriptionGroupConfig(group_name="a b"), "group name"),
        (SubscriptionGroupConfig(group_name="g", retry_queue_nums=-1), "-1 retry queues"),
        (SubscriptionGroupConfig(group_name="g", retry_queue_nums=5000), "5000 retry queues"),
        (SubscriptionGroupConfig(group_name="g", attributes={"+x": "1"}), "unknown attribute"),
    ],
)
def test_bad_groups_are_refused(config: SubscriptionGroupConfig, names: str) -> None:
    with pytest.raises(RequestError, match=names):
        make_table().check_update(config)


def test_a_topic_is_forbidden_and_allowed_again() -> None:
    table = make_table()
    assert not table.is_forbidden("g", "T")
    table.set_forbidden("g", "T", forbidden=True)
    table.set_forbidden("g", "T", forbidden=True)
    assert table.is_forbidden("g", "T")
    assert not table.is_forbidden("g", "U")
    assert table.to_json()["forbiddenTable"] == {"g": {"T": 4}}
    table.set_forbidden("g", "T", forbidden=False)
    assert not table.is_forbidden("g", "T")
    assert table.to_json()["forbiddenTable"] == {}
    assert table.revision == 2


def test_other_forbidden_bits_are_kept() -> None:
    table = make_table()
    table.take(table.parse({"subscriptionGroupTable": {}, "forbiddenTable": {"g": {"T": 3}}}))
    table.set_forbidden("g", "T", forbidden=True)
    assert table.to_json()["forbiddenTable"] == {"g": {"T": 7}}
    table.set_forbidden("g", "T", forbidden=False)
    assert table.to_json()["forbiddenTable"] == {"g": {"T": 3}}


def test_deleting_a_group_allows_its_topics_again() -> None:
    table = make_table()
    table.find("g")
    table.set_forbidden("g", "T", forbidden=True)
    table.delete("g")
    assert not table.is_forbidden("g", "T")


def test_content_survives_a_round_trip() -> None:
    table = make_table()
    table.update([SubscriptionGroupConfig(group_name="g", subscription_data_set=[{"topic": "T"}])])
    table.set_forbidden("g", "T", forbidden=True)
    other = make_table()
    other.take(other.parse(table.to_json()))
    assert other.all() == table.all()
    assert other.to_json() == table.to_json()


@pytest.mark.parametrize(
    "content",
    [
        {"subscriptionGroupTable": []},
        {"subscriptionGroupTable": {"g": []}},
        {"forbiddenTable": {"g": {"T": "x"}}},
        {"forbiddenTable": 5},
    ],
)
def test_content_of_another_form_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        make_table().parse(content)
