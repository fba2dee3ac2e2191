"""Whom the other end of a TLS connection has shown itself to be."""

import asyncio
import ssl
from typing import Any

import pytest
import trustme

from aerobee_remoting.peers.tls import context_of, subject_of


class Shown(asyncio.BaseTransport):
    """A transport whose other end has shown this certificate."""

    def __init__(self, certificate: dict[str, Any] | None) -> None:
        self._certificate = certificate

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._certificate if name == "peercert" else default


def part(*pairs: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return pairs


@pytest.mark.parametrize(
    ("certificate", "subject"),
    [
        (None, ""),
        ({}, ""),
        ({"subject": ()}, ""),
        ({"subject": (part(("organizationName", "Bees")), part(("commonName", "broker-a")))}, "broker-a"),
        ({"subject": (part(("organizationName", "Bees"), ("commonName", "broker-a")),)}, "broker-a"),
        ({"subject": (part(("commonName", "one")), part(("commonName", "two")))}, ""),
        ({"subject": (part(("commonName", "")),)}, ""),
    ],
)
def test_the_one_common_name_is_the_subject(certificate: dict[str, Any] | None, subject: str) -> None:
    assert subject_of(Shown(certificate)) == subject


def test_a_context_may_be_asked_for_each_time() -> None:
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2)]
    trustme.CA().issue_cert("localhost").configure_cert(contexts[0])
    given = iter(contexts)
    assert context_of(None) is None
    assert context_of(contexts[1]) is contexts[1]
    assert [context_of(lambda: next(given)) for _ in range(2)] == contexts
