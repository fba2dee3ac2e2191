"""TLS of a client by the files of its authority and of its own certificate.

Touches  those files, reading.
"""

import ssl

from aerobee.errors import InvalidMessage

__all__ = ["context_of_files"]


def context_of_files(authorities: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    """A context that trusts the authorities of a PEM file (None: the system's) and may show a certificate.

    InvalidMessage names the file that cannot be used.
    """
    if bool(certificate) != bool(key):
        raise InvalidMessage(
            f"a certificate and its key go together; there is no {'key' if certificate else 'certificate'}"
        )
    try:
        context = ssl.create_default_context(cafile=authorities or None)
    except ssl.SSLError as wrong:
        raise InvalidMessage(f"{authorities}: no certificates in PEM form in it") from wrong
    except OSError as wrong:
        raise InvalidMessage(f"{authorities}: {wrong.strerror or wrong}") from wrong
    if certificate and key:
        try:
            context.load_cert_chain(certificate, key, password=lambda: "")  # never asked for at a terminal
        except ssl.SSLError as wrong:
            said = (wrong.reason or str(wrong)).replace("_", " ").lower()
            raise InvalidMessage(f"{certificate} with the key {key}: {said}") from wrong
        except OSError as wrong:
            raise InvalidMessage(f"{certificate} with the key {key}: {wrong.strerror or wrong}") from wrong
    return context
