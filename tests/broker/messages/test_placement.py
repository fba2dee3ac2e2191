"""In which order the rules are asked that keep a message from its topic for a while."""

import pytest

from aerobee_broker.assembly import Parts
from aerobee_proto import properties
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import HALF_TOPIC, SCHEDULE_TOPIC

DELAYED = {properties.DELAY: "3"}
OPENING = {properties.TRANSACTION_PREPARED: "true", properties.PRODUCER_GROUP: "g"}
BATCH = {properties.INNER_NUM: "2"}


def place_of(parts: Parts, mapping: dict[str, str]) -> str:
    return parts.placement.place(parts.writer.new("T", 1, b"x", mapping), mapping).topic


@pytest.mark.parametrize(
    ("mapping", "topic"),
    [({}, "T"), (DELAYED, SCHEDULE_TOPIC), (OPENING, HALF_TOPIC), (OPENING | DELAYED, HALF_TOPIC)],
    ids=["plain", "delayed", "opens a transaction", "both"],
)
async def test_a_transaction_is_opened_first_and_its_delay_begins_with_the_commit(
    parts: Parts, mapping: dict[str, str], topic: str
) -> None:
    assert place_of(parts, mapping) == topic


@pytest.mark.parametrize("mapping", [BATCH, BATCH | DELAYED, BATCH | OPENING])
async def test_what_is_no_batch_is_refused_before_anything_is_done_with_it(
    parts: Parts, mapping: dict[str, str]
) -> None:
    with pytest.raises(RequestError, match="does not take batches") as refused:
        place_of(parts, mapping)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
