"""Signatures of requests, RocketMQ's access control.

The signature is Base64 of HMAC-SHA1 with the secret key, over the values of all header fields in the order of their
names, then the body. The access key and the security token are header fields like the others; the signature is not.
"""

import base64
import hashlib
import hmac

from aerobee.terms.config import Credentials
from aerobee_proto.headers import RequestHeader, ext_of

__all__ = ["signed"]


def signed(
    header: RequestHeader | dict[str, str] | None, body: bytes, credentials: Credentials
) -> dict[str, str]:
    """The header's fields with who asks and the signature."""
    fields = dict(header) if isinstance(header, dict) else {} if header is None else ext_of(header)
    fields["AccessKey"] = credentials.access_key
    if credentials.security_token is not None:
        fields["SecurityToken"] = credentials.security_token
    content = "".join([fields[name] for name in sorted(fields)]).encode() + body
    digest = hmac.new(credentials.secret_key.encode(), content, hashlib.sha1).digest()
    fields["Signature"] = base64.b64encode(digest).decode()
    return fields
