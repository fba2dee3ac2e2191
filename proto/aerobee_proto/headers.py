"""Header fields of each request, typed, and the way back to text.

Attribute names are ours (snake_case); the wire spelling is RocketMQ's camelCase, letters in the V2 send header.
Unknown fields are ignored, numbers may come as text. What the broker answers in fields is made with `ext_of`
or written out where it is hot.
"""

from typing import Annotated

import msgspec

from aerobee_proto.frames import I32
from aerobee_proto.names import TEMPLATE_TOPIC

I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class RequestHeader(msgspec.Struct, rename="camel", kw_only=True, gc=False, omit_defaults=False):
    """Base of every header struct."""


def ext_of(header: msgspec.Struct) -> dict[str, str]:
    """The struct's fields as extFields: wire names, values as text, None left out."""
    fields: dict[str, str] = {}
    for attribute, wire in zip(header.__struct_fields__, header.__struct_encode_fields__, strict=True):
        value = getattr(header, attribute)
        if value is None:
            continue
        fields[wire] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return fields


# --- sending --------------------------------------------------------------------------------------------------


class SendMessageHeader(RequestHeader, kw_only=True):
    """SEND_MESSAGE and SEND_REPLY_MESSAGE: long names."""

    producer_group: str
    topic: str
    default_topic: str = TEMPLATE_TOPIC
    default_topic_queue_nums: I32 = 4
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: I32 | None = None
    bname: str | None = None


class SendMessageV2Header(
    msgspec.Struct,
    kw_only=True,
    gc=False,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "bname": "n",
    },
):
    """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, SEND_REPLY_MESSAGE_V2: the same fields as letters.

    The fields are written out again because msgspec renames the fields of a class, and not those that it inherits.
    """

    producer_group: str
    topic: str
    default_topic: str = TEMPLATE_TOPIC
    default_topic_queue_nums: I32 = 4
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str = ""
    reconsume_times: I32 = 0
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: I32 | None = None
    bname: str | None = None


SendHeader = SendMessageHeader | SendMessageV2Header


class ConsumerSendMsgBackHeader(RequestHeader, kw_only=True):
    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


class RecallMessageHeader(RequestHeader, kw_only=True):
    producer_group: str | None = None
    topic: str
    recall_handle: str


class EndTransactionHeader(RequestHeader, kw_only=True):
    topic: str | None = None
    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class CheckTransactionHeader(RequestHeader, kw_only=True):
    """CHECK_TRANSACTION_STATE, from the broker to a producer."""

    topic: str | None = None
    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


class ResumeCheckHeader(RequestHeader, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE; `msg_id` is an offset id."""

    topic: str | None = None
    msg_id: str | None = None


class PushReplyHeader(RequestHeader, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT, from the broker to the producer that waits; hosts as host:port."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 = 0
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: I64


# --- pulling and looking up -----------------------------------------------------------------------------------


class PullMessageHeader(RequestHeader, kw_only=True):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    subscription: str | None = None
    sub_version: I64 = 0
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    proxy_froward_client_id: str | None = None  # spelt so on the wire
    bname: str | None = None


class QueryMessageHeader(RequestHeader, kw_only=True):
    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    unique_key_query: bool = msgspec.field(default=False, name="_UNIQUE_KEY_QUERY")


class ViewMessageHeader(RequestHeader, kw_only=True):
    offset: I64
    topic: str | None = None


class QueryConsumerOffsetHeader(RequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool = True


class UpdateConsumerOffsetHeader(RequestHeader, kw_only=True):
    consumer_group: str | None = None
    topic: str | None = None
    queue_id: I32 | None = None
    commit_offset: I64 | None = None


class SearchOffsetHeader(RequestHeader, kw_only=True):
    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str = "LOWER"


class QueueHeader(RequestHeader, kw_only=True):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: I32
    committed: bool = True


# --- clients and groups ---------------------------------------------------------------------------------------


class UnregisterClientHeader(RequestHeader, kw_only=True):
    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupHeader(RequestHeader, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED, GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: str


class ProducerGroupHeader(RequestHeader, kw_only=True):
    producer_group: str


class GroupHeader(RequestHeader, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG, QUERY_TOPICS_BY_CONSUMER."""

    group: str


class GroupTopicHeader(RequestHeader, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN, QUERY_SUBSCRIPTION_BY_CONSUMER, UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str
    topic: str
    readable: bool | None = None


class DeleteGroupHeader(RequestHeader, kw_only=True):
    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False


class ConsumeStatsHeader(RequestHeader, kw_only=True):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class BrokerConsumeStatsHeader(RequestHeader, kw_only=True):
    is_order: bool = False


class ResetOffsetHeader(RequestHeader, kw_only=True):
    topic: str
    group: str
    queue_id: I32 = -1
    offset: I64 | None = None
    timestamp: I64
    is_force: bool = False


class ConsumerRunningInfoHeader(RequestHeader, kw_only=True):
    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ResetClientOffsetHeader(RequestHeader, kw_only=True):
    """RESET_CONSUMER_CLIENT_OFFSET, from the broker to the members of a group."""

    topic: str
    group: str
    timestamp: I64
    is_force: bool = False


class ConsumerStatusHeader(RequestHeader, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS; `client_addr` holds a client id, empty for all members."""

    topic: str
    group: str
    client_addr: str | None = None


class ConsumeDirectlyHeader(RequestHeader, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY; `msg_id` is an offset id."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    topic: str | None = None


class CorrectionOffsetHeader(RequestHeader, kw_only=True):
    """QUERY_CORRECTION_OFFSET; `filter_groups` are left out, separated by commas."""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class CloneGroupOffsetHeader(RequestHeader, kw_only=True):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


# --- topics ---------------------------------------------------------------------------------------------------


class TopicHeader(RequestHeader, kw_only=True):
    """Every request that names a topic and nothing else."""

    topic: str


class CreateTopicHeader(RequestHeader, kw_only=True):
    topic: str
    default_topic: str | None = None
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class QueryConsumeQueueHeader(RequestHeader, kw_only=True):
    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None


class ViewBrokerStatsHeader(RequestHeader, kw_only=True):
    stats_name: str
    stats_key: str


# --- consuming by POP -----------------------------------------------------------------------------------------


class PopMessageHeader(RequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64 = 0
    init_mode: I32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PeekMessageHeader(RequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32


class AckMessageHeader(RequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64


class ChangeInvisibleTimeHeader(RequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64


class NotificationHeader(RequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: I32
    poll_time: I64
    born_time: I64 = 0
    order: bool = False
    attempt_id: str | None = None


class PollingInfoHeader(RequestHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: I32


# --- nameserver -----------------------------------------------------------------------------------------------


class RouteHeader(RequestHeader, kw_only=True):
    topic: str
    accept_standard_json_only: bool = False


class RegisterBrokerHeader(RequestHeader, kw_only=True):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str | None = None
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I64 = 0


class BrokerIdentityHeader(RequestHeader, kw_only=True):
    """UNREGISTER_BROKER, QUERY_DATA_VERSION, BROKER_HEARTBEAT, GET_BROKER_MEMBER_GROUP."""

    broker_name: str
    broker_addr: str | None = None
    cluster_name: str | None = None
    broker_id: I64 | None = None


class BrokerNameHeader(RequestHeader, kw_only=True):
    broker_name: str


class KvConfigHeader(RequestHeader, kw_only=True):
    namespace: str
    key: str
    value: str


class KvKeyHeader(RequestHeader, kw_only=True):
    namespace: str
    key: str


class KvNamespaceHeader(RequestHeader, kw_only=True):
    namespace: str


class ClusterHeader(RequestHeader, kw_only=True):
    cluster: str


class DeleteTopicInNameserverHeader(RequestHeader, kw_only=True):
    topic: str
    cluster_name: str | None = None


# --- roles in a set: ours -------------------------------------------------------------------------------------


class ChangeRoleHeader(RequestHeader, kw_only=True):
    """CHANGE_ROLE. What is None stays as the broker's settings say. `broker_role` is SLAVE, a master's, or MASTER: one
    that waits for slaves if the settings say for how many. The addresses are those of a slave's master."""

    broker_role: str
    broker_id: I32 | None = None
    in_sync_replicas: I32 | None = None
    min_in_sync_replicas: I32 | None = None
    master_addr: str = ""
    master_ha_addr: str = ""
    force: bool = False


class FenceWritesHeader(RequestHeader, kw_only=True):
    """FENCE_WRITES: nothing is written for so long; 0 ends that."""

    millis: I32


class AwaitLevelHeader(RequestHeader, kw_only=True):
    """AWAIT_LEVEL: the end of the master's log, and how long to wait for it."""

    end_offset: I64
    millis: I32


class WatchTablesHeader(RequestHeader, kw_only=True):
    """WATCH_TABLES: who asks, what it has taken of the tables by the numbers of an earlier answer (-1: nothing), and
    how long to wait for something new."""

    member: I32
    life: str = ""
    tables: I64 = -1
    offsets: I64 = -1
    millis: I32 = 0


__all__ = [name for name in dir() if name.endswith("Header")] + ["I64", "ext_of"]
