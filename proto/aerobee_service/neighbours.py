"""Whom bounds "of one host" count: an address, or all that belong to whoever has it.

Touches  nothing.
"""

from ipaddress import IPv6Address
from typing import Final

__all__ = ["neighbours_of"]

# Of an IPv6 address: they name the network; the others are whatever a machine there makes up (RFC 4291, 2.5.4).
NETWORK_BITS: Final = 64


def neighbours_of(host: str) -> str:
    """What a host is counted as, as text: an IPv4 address itself, of an IPv6 address the network that one customer gets
    whole; whatever is no address itself."""
    if ":" not in host:
        return host
    try:
        found = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if found.ipv4_mapped is not None:  # a socket that takes both kinds shows the older one so
        return str(found.ipv4_mapped)
    if found.is_loopback:
        return host
    network = int(found) >> NETWORK_BITS << NETWORK_BITS
    return f"{IPv6Address(network)}/{NETWORK_BITS}"
