"""Usual queries by key with the native engine: from the bytes of a read to the answer.

Touches  connections to answer on.

The engine reads the request, follows the index and makes the answer of the records; who may ask, what is in memory, and
whether a record is what its queue says, is decided here and in the store. Whatever is unusual goes on to
`QueryHandlers`: what finds nothing, has more than one file of the log to look at, was written before this run, waits
to be indexed, or is asked for under access control.
"""

from typing import Final

from aerobee_broker.native.engine import ANSWERS_SIZE, NativeEngine, SendEngine
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.codes import RequestCode
from aerobee_proto.errors import AerobeeError
from aerobee_remoting.exchange.handlers import Channel, FrontTaken
from aerobee_store.reading.key_lookup import KeyLookup

__all__ = ["FIRST_OF_QUERIES", "NativeQueries"]

# What a read that begins with a query has behind the words of its first frame: JSON, RocketMQ's own, msgpack.
FIRST_OF_QUERIES: Final = (b'{"code":12,', b"\0\x0c", b"\x97\x0c")
CODE: Final = int(RequestCode.QUERY_MESSAGE)
QUERIES_MAX: Final = 32  # at once, and ANSWERS_SIZE bytes: a dear one may follow many that are cheap


class NativeQueries:
    """A part of the front of a broker's handler table."""

    def __init__(self, engine: SendEngine, native: NativeEngine, live: LiveConfig, keys: KeyLookup) -> None:
        self._engine = engine
        self._native = native
        self._live = live
        self._keys = keys

    def take(self, channel: Channel, data: bytes, at: int, count_max: int) -> FrontTaken | None:
        """As `Front`, for who may ask anything."""
        native, keys = self._native, self._keys
        begin = at
        requests = size = version = 0
        while requests < min(count_max, QUERIES_MAX) and size < ANSWERS_SIZE and at < len(data):
            try:
                index = keys.nearby()
                found = None if index is None else native.query(data, at, index)
                if found is None:
                    break
                end, found_version, count, is_unique, places = found
                if is_unique:
                    count = self._live.value.default_query_max_num
                answer = keys.answer_nearby(places, count, native.answer_query) if count > 0 else None
            except (AerobeeError, OSError):
                break  # who asks is told why the usual way
            except Exception as failed:
                self._engine.give_up(failed)
                break
            if answer is None:
                break
            channel.write_now(answer)
            requests += 1
            size += len(answer)
            at, version = end, found_version
        return FrontTaken(at - begin, requests, CODE, version) if requests else None
