"""All handlers of this package but sending and pulling, in one call."""

from aerobee_broker.broker_handlers import BrokerHandlers
from aerobee_broker.client_handlers import ClientHandlers
from aerobee_broker.client_relay import ClientRelay
from aerobee_broker.group_handlers import GroupHandlers
from aerobee_broker.offset_handlers import OffsetHandlers
from aerobee_broker.offset_resets import OffsetResets
from aerobee_broker.recalls import Recalls
from aerobee_broker.replies import Replies
from aerobee_broker.services import Services
from aerobee_broker.topic_handlers import TopicHandlers
from aerobee_broker.transaction_handlers import TransactionHandlers
from aerobee_remoting.handlers import HandlerTable

__all__ = ["register_admin"]


def register_admin(table: HandlerTable, services: Services) -> None:
    """Serve clients' coordination and the administration of topics, groups and the broker."""
    ClientHandlers(services).register(table)
    ClientRelay(services).register(table)
    OffsetHandlers(services).register(table)
    OffsetResets(services).register(table)
    TopicHandlers(services).register(table)
    GroupHandlers(services).register(table)
    BrokerHandlers(services).register(table)
    Recalls(services).register(table)
    TransactionHandlers(services).register(table)
    Replies(services).register(table)
