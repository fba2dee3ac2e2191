"""Administration for programs without an event loop. A module of its own: most programs never ask for it."""

from aerobee.admin.admin import Admin as AsyncAdmin
from aerobee.session.waiting import Waiter, waiting

__all__ = ["Admin"]


class Admin(Waiter[AsyncAdmin]):
    """Every call of `aerobee.Admin`, blocking, by the same name with the same arguments."""

    cluster = waiting(AsyncAdmin.cluster)
    brokers = waiting(AsyncAdmin.brokers)
    broker_runtime_info = waiting(AsyncAdmin.broker_runtime_info)
    broker_config = waiting(AsyncAdmin.broker_config)
    hot_settings = waiting(AsyncAdmin.hot_settings)
    update_broker_config = waiting(AsyncAdmin.update_broker_config)
    topics = waiting(AsyncAdmin.topics)
    create_topic = waiting(AsyncAdmin.create_topic)
    update_topic = waiting(AsyncAdmin.update_topic)
    delete_topic = waiting(AsyncAdmin.delete_topic)
    broker_topics = waiting(AsyncAdmin.broker_topics)
    topic_configs = waiting(AsyncAdmin.topic_configs)
    route = waiting(AsyncAdmin.route)
    describe_topic = waiting(AsyncAdmin.describe_topic)
    groups = waiting(AsyncAdmin.groups)
    create_group = waiting(AsyncAdmin.create_group)
    update_group = waiting(AsyncAdmin.update_group)
    delete_group = waiting(AsyncAdmin.delete_group)
    find_group = waiting(AsyncAdmin.find_group)
    group_progress = waiting(AsyncAdmin.group_progress)
    group_connections = waiting(AsyncAdmin.group_connections)
    group_lags = waiting(AsyncAdmin.group_lags)
    group_lag = waiting(AsyncAdmin.group_lag)
    reset_group = waiting(AsyncAdmin.reset_group)
    clone_group = waiting(AsyncAdmin.clone_group)
    member_running_info = waiting(AsyncAdmin.member_running_info)
    consume_directly = waiting(AsyncAdmin.consume_directly)
    min_offset = waiting(AsyncAdmin.min_offset)
    max_offset = waiting(AsyncAdmin.max_offset)
    offset_by_time = waiting(AsyncAdmin.offset_by_time)
    earliest_store_time = waiting(AsyncAdmin.earliest_store_time)
    group_offset = waiting(AsyncAdmin.group_offset)
    set_group_offset = waiting(AsyncAdmin.set_group_offset)
