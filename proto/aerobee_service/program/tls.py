"""TLS of a server that listens. Touches certificate files, reading."""

import ssl

__all__ = ["server_context"]


def server_context(cert_path: str, key_path: str, trusted_path: str) -> ssl.SSLContext:
    """What a server shows its clients; with `trusted_path` they have to show a certificate of those authorities.

    Raises OSError (ssl.SSLError is one) when certificate or key cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_path, key_path)
    if trusted_path:
        context.load_verify_locations(trusted_path)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
