"""TLS of a connection: which context a new one gets, and whom the other end has shown itself to be.

Touches  nothing.
"""

import ssl
from asyncio import BaseTransport
from collections.abc import Callable

__all__ = ["TlsContext", "context_of", "subject_of"]

# A context, or what gives the one for the next connection: certificates are renewed while a program runs.
TlsContext = ssl.SSLContext | Callable[[], ssl.SSLContext]


def context_of(tls: TlsContext | None) -> ssl.SSLContext | None:
    """The context for a connection that is about to be made; None for a plain one."""
    return tls if tls is None or isinstance(tls, ssl.SSLContext) else tls()


def subject_of(transport: BaseTransport) -> str:
    """The common name of the certificate that the other end has shown and that was verified; "" without one.

    A subject with several common names, or with an empty one, names nobody: it would depend on the reader whom.
    """
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return ""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if len(names) == 1 else ""
