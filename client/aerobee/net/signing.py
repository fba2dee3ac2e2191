"""Signatures of requests: what `aerobee_access` says, for the credentials of a client."""

from aerobee.terms.config import Credentials
from aerobee_access.freshness import Signing
from aerobee_remoting.ends.client import Signer

__all__ = ["signer_of"]


def signer_of(credentials: Credentials | None) -> Signer | None:
    """Who signs what a client with these credentials asks; None without any."""
    if credentials is None:
        return None
    return Signing(credentials.access_key, credentials.secret_key, credentials.security_token)
