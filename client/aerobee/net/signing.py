"""Signatures of requests: what `aerobee_access.signature` says, for the headers that this client sends."""

from aerobee.terms.config import Credentials
from aerobee_access.signature import sign
from aerobee_proto.headers import RequestHeader, ext_of

__all__ = ["signed"]


def signed(
    header: RequestHeader | dict[str, str] | None, body: bytes, credentials: Credentials
) -> dict[str, str]:
    """The header's fields with who asks and the signature."""
    fields = header if isinstance(header, dict) else {} if header is None else ext_of(header)
    return sign(fields, body, credentials.access_key, credentials.secret_key, credentials.security_token)
