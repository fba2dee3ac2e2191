"""The Python side of the messages that Traffic.java sends and sums: same content, same sums.

A ledger counts and sums messages by tag. The sum of a set of messages is the sum, modulo 2**64, of the first 8
bytes of each one's SHA-256, so it does not depend on order.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LARGE_EACH", "ByTag", "Ledger", "Piece", "add_up", "by_tag", "pieces"]

SUM_MODULUS = 1 << 64
LARGE_EACH, LARGE_SIZE = 250, 20_000

ByTag = dict[str, tuple[int, int]]  # tag -> (count, sum)


@dataclass(slots=True, frozen=True)
class Piece:
    """One message to send, apart from its topic."""

    tag: str
    key: str
    properties: dict[str, str]
    flag: int
    body: bytes


@dataclass(slots=True)
class Ledger:
    """What was sent or received: each key counts once, repeats are counted apart."""

    topic: str
    totals: ByTag = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    duplicates: int = 0

    def add(self, piece: Piece) -> None:
        if piece.key in self.keys:
            self.duplicates += 1
            return
        self.keys.add(piece.key)
        parts = [self.topic, piece.tag, piece.key, piece.properties["index"], piece.properties["text"]]
        head = "|".join([*parts, str(piece.flag)]).encode()
        first = int.from_bytes(hashlib.sha256(head + b"\0" + piece.body).digest()[:8], "big")
        self.totals = add_up(self.totals, {piece.tag: (1, first)})


def pieces(run: str, count: int, *, large: bool = True) -> list[Piece]:
    """Messages as Traffic.java makes them (other random bytes): each third TagB, each 250th large."""
    rng = random.Random(run)
    return [
        Piece(
            tag="TagB" if i % 3 == 0 else "TagA",
            key=f"{run}-{i}",
            properties={"index": str(i), "text": f"Grüße 消息 😀 {i}"},
            flag=i,
            body=b"row %d\n" % i * (LARGE_SIZE // 10)
            if large and i % LARGE_EACH == 0
            else rng.randbytes(rng.randint(1, 300)),
        )
        for i in range(count)
    ]


def by_tag(report: dict[str, Any]) -> ByTag:
    """Totals of a Java judge's report."""
    return {tag: (found["count"], int(found["sum"])) for tag, found in report["byTag"].items()}


def add_up(one: ByTag, other: ByTag) -> ByTag:
    """Totals of two disjoint sets of messages."""
    total = dict(one)
    for tag, (count, value) in other.items():
        before = total.get(tag, (0, 0))
        total[tag] = (before[0] + count, (before[1] + value) % SUM_MODULUS)
    return total
