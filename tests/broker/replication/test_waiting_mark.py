"""Where timer messages begin to wait: kept with the log of which it was said, and with no other."""

from collections.abc import Sequence

from aerobee_broker.replication.waiting_mark import WaitingMark

Ranges = Sequence[tuple[int, int]]


class Log:
    """Bytes that a digest is made of."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def digests(self, ranges: Ranges) -> list[bytes]:
        return [self.content[begin:end] if end <= len(self.content) else b"" for begin, end in ranges]


async def test_it_holds_for_the_log_of_which_it_was_said_and_grows() -> None:
    mark, log = WaitingMark(), Log(b"a" * 100)
    assert mark.done_below(log.digests) == 0
    await mark.follow(40, 100, log.digests)
    assert mark.done_below(log.digests) == 40
    log.content += b"b" * 50
    await mark.follow(30, 150, log.digests)
    await mark.follow(120, 500, log.digests)  # not here yet
    assert (mark.done_below(log.digests), mark.revision) == (40, 1)
    await mark.follow(120, 150, log.digests)
    again = WaitingMark()
    again.take(again.parse(mark.to_json()))
    assert again.done_below(log.digests) == 120


async def test_a_log_that_was_cut_and_has_grown_again_is_another_one() -> None:
    mark, log = WaitingMark(), Log(b"a" * 100)
    await mark.follow(40, 100, log.digests)
    log.content = b"a" * 90
    assert mark.done_below(log.digests) == 0
    log.content += b"b" * 50
    assert mark.done_below(log.digests) == 0
