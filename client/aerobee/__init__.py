"""Aerobee's Python client: send, read, query and administer, on asyncio.

    import aerobee

    async with aerobee.Client("127.0.0.1:9876") as mq:
        async with mq.producer() as producer:
            result = await producer.send("orders", b"17", keys="o-17", tags="new")
        async for message in mq.reader("orders", start="-1h", end="now"):
            print(message.queue_offset, message.body)
        async with mq.consumer("billing", {"orders": "new || paid"}) as consumer:
            async for message in consumer:
                print(message.text())

`aerobee.sync` has the same names for programs without an event loop.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee.admin.admin import Admin as Admin
    from aerobee.admin.admin import BrokerNode as BrokerNode
    from aerobee.admin.admin import GroupProgress as GroupProgress
    from aerobee.admin.admin import QueueOffsets as QueueOffsets
    from aerobee.admin.admin import QueueProgress as QueueProgress
    from aerobee.admin.admin import TopicDescription as TopicDescription
    from aerobee.admin.group_admin import MemberNotFound as MemberNotFound
    from aerobee.admin.group_admin import TopicLag as TopicLag
    from aerobee.client import Client as Client
    from aerobee.consuming.group_consumer import GroupConsumer as GroupConsumer
    from aerobee.consuming.pull_consumer import PullConsumer as PullConsumer
    from aerobee.consuming.reader import Reader as Reader
    from aerobee.errors import AlreadyExists as AlreadyExists
    from aerobee.errors import Attempt as Attempt
    from aerobee.errors import BadAnswer as BadAnswer
    from aerobee.errors import BrokerRefused as BrokerRefused
    from aerobee.errors import BrokerUnreachable as BrokerUnreachable
    from aerobee.errors import BufferFull as BufferFull
    from aerobee.errors import ClientClosed as ClientClosed
    from aerobee.errors import ClientError as ClientError
    from aerobee.errors import DamagedRecord as DamagedRecord
    from aerobee.errors import HidesMessages as HidesMessages
    from aerobee.errors import InvalidMessage as InvalidMessage
    from aerobee.errors import NameserverAnswer as NameserverAnswer
    from aerobee.errors import NoBroker as NoBroker
    from aerobee.errors import NoNameserver as NoNameserver
    from aerobee.errors import NoQueue as NoQueue
    from aerobee.errors import NoReply as NoReply
    from aerobee.errors import NoRoute as NoRoute
    from aerobee.errors import NotFound as NotFound
    from aerobee.errors import NotPermitted as NotPermitted
    from aerobee.errors import RequestTimeout as RequestTimeout
    from aerobee.errors import SendFailed as SendFailed
    from aerobee.messages.codecs import Codec as Codec
    from aerobee.messages.codecs import CodecError as CodecError
    from aerobee.messages.codecs import JsonCodec as JsonCodec
    from aerobee.messages.codecs import MsgpackCodec as MsgpackCodec
    from aerobee.messages.codecs import PydanticCodec as PydanticCodec
    from aerobee.messages.codecs import TextCodec as TextCodec
    from aerobee.messages.group_message import DeadLetter as DeadLetter
    from aerobee.messages.group_message import GroupMessage as GroupMessage
    from aerobee.messages.group_message import RetryLater as RetryLater
    from aerobee.messages.message import Message as Message
    from aerobee.messages.message import MessageBatch as MessageBatch
    from aerobee.messages.message import OutgoingMessage as OutgoingMessage
    from aerobee.messages.message import SendResult as SendResult
    from aerobee.messages.message import SendStatus as SendStatus
    from aerobee.producing.producer import Producer as Producer
    from aerobee.producing.transactions import Transaction as Transaction
    from aerobee.producing.transactions import TransactionUnresolved as TransactionUnresolved
    from aerobee.terms.config import ClientConfig as ClientConfig
    from aerobee.terms.config import ConsumerConfig as ConsumerConfig
    from aerobee.terms.config import Credentials as Credentials
    from aerobee.terms.config import FetchConfig as FetchConfig
    from aerobee.terms.config import ProducerConfig as ProducerConfig
    from aerobee.terms.filters import Filter as Filter
    from aerobee.terms.filters import SqlFilter as SqlFilter
    from aerobee.terms.filters import TagFilter as TagFilter
    from aerobee.terms.routes import MessageQueue as MessageQueue
    from aerobee.terms.statistics import ClientStatistics as ClientStatistics
    from aerobee.terms.statistics import ConsumerStatistics as ConsumerStatistics
    from aerobee.terms.statistics import ProducerStatistics as ProducerStatistics
    from aerobee.terms.statistics import ReaderStatistics as ReaderStatistics

# The public names by their modules (above for type checkers; a test compares the two). They are imported when they are
# asked for: a program that only sends does not load what consumers are made of.
_HOMES = {
    "aerobee.admin.admin": "Admin BrokerNode GroupProgress QueueOffsets QueueProgress TopicDescription",
    "aerobee.admin.group_admin": "MemberNotFound TopicLag",
    "aerobee.client": "Client",
    "aerobee.consuming.group_consumer": "GroupConsumer",
    "aerobee.consuming.pull_consumer": "PullConsumer",
    "aerobee.consuming.reader": "Reader",
    "aerobee.errors": (
        "AlreadyExists Attempt BadAnswer BrokerRefused BrokerUnreachable BufferFull ClientClosed ClientError "
        "DamagedRecord HidesMessages InvalidMessage NameserverAnswer NoBroker NoNameserver NoQueue "
        "NoReply NoRoute NotFound NotPermitted RequestTimeout SendFailed"
    ),
    "aerobee.messages.codecs": "Codec CodecError JsonCodec MsgpackCodec PydanticCodec TextCodec",
    "aerobee.messages.group_message": "DeadLetter GroupMessage RetryLater",
    "aerobee.messages.message": "Message MessageBatch OutgoingMessage SendResult SendStatus",
    "aerobee.producing.producer": "Producer",
    "aerobee.producing.transactions": "Transaction TransactionUnresolved",
    "aerobee.terms.config": "ClientConfig ConsumerConfig Credentials FetchConfig ProducerConfig",
    "aerobee.terms.filters": "Filter SqlFilter TagFilter",
    "aerobee.terms.routes": "MessageQueue",
    "aerobee.terms.statistics": ("ClientStatistics ConsumerStatistics ProducerStatistics ReaderStatistics"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


if not TYPE_CHECKING:  # or every name would pass the type checker

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found


def __dir__() -> list[str]:
    return list(__all__)
