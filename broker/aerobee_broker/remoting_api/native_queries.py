"""Usual queries by key with the native engine: from the bytes of a read to the answer.

Touches  connections to answer on.

The engine reads the request, follows the index and makes the answer of the records; who may ask, what is in memory, and
whether a record is what its queue says, is decided here and in the store. Whatever is unusual goes on to
`QueryHandlers`: what finds nothing, is not in memory, was written before this run and cannot be proven by the engine,
waits to be indexed, or is asked for under access control.
"""

from typing import Final

from aerobee_broker.native.engine import ANSWERS_SIZE, NativeEngine, SendEngine
from aerobee_broker.settings.config import LiveConfig
from aerobee_proto.codes import RequestCode
from aerobee_proto.errors import AerobeeError
from aerobee_remoting.exchange.handlers import Channel, FrontTaken
from aerobee_store.reading.key_lookup import KeyLookup, Lacking

__all__ = ["FIRST_OF_QUERIES", "NativeQueries"]

# What a read that begins with a query has behind the words of its first frame: JSON, RocketMQ's own, msgpack.
FIRST_OF_QUERIES: Final = (b'{"code":12,', b"\0\x0c", b"\x97\x0c")
CODE: Final = int(RequestCode.QUERY_MESSAGE)
QUERIES_MAX: Final = 32  # at once, and ANSWERS_SIZE bytes: a dear one may follow many that are cheap
# Questions whether something is in memory, for those of one read: 25 us each, with what is done again behind it.
ASKED_MAX: Final = 64


class NativeQueries:
    """A part of the front of a broker's handler table."""

    def __init__(self, engine: SendEngine, native: NativeEngine, live: LiveConfig, keys: KeyLookup) -> None:
        self._engine = engine
        self._native = native
        self._live = live
        self._keys = keys

    def take(self, channel: Channel, data: bytes, at: int, count_max: int) -> FrontTaken | None:
        """As `Front`, for who may ask anything."""
        begin = at
        requests = size = version = 0
        asked_left = ASKED_MAX
        while requests < min(count_max, QUERIES_MAX) and size < ANSWERS_SIZE and at < len(data):
            try:
                answered = self._answered(data, at)
                lacking: Lacking | None = None
                while answered is None and asked_left:
                    before, lacking = lacking, self._native.lacking()
                    if lacking is None or lacking == before or not self._keys.asks(lacking):
                        break  # nothing is, or what is around it is not there
                    asked_left -= 1
                    answered = self._answered(data, at)
            except (AerobeeError, OSError):
                break  # who asks is told why the usual way
            except Exception as failed:
                self._engine.give_up(failed)
                break
            if answered is None:
                break
            answer, at, version = answered
            if at == len(data):
                channel.write_last(answer)
            else:
                channel.write(answer)
            requests += 1
            size += len(answer)
        return FrontTaken(at - begin, requests, CODE, version) if requests else None

    def _answered(self, data: bytes, at: int) -> tuple[bytes, int, int] | None:
        """The answer to the query at this place, where it ends, and the version of the client."""
        native, keys = self._native, self._keys
        index = keys.nearby()
        found = None if index is None else native.query(data, at, index)
        if found is None:
            return None
        end, version, count, is_unique, places = found
        if is_unique:
            count = self._live.value.default_query_max_num
        if count <= 0:
            return None
        answer = keys.answer_nearby(places, count, native.answer_query)
        if answer is None and native.lacking() is not None and keys.asks_records(places):
            # All at once: an answer that is begun again for each of them copies a MiB each time.
            answer = keys.answer_nearby(places, count, native.answer_query)
        return None if answer is None else (answer, end, version)
