"""Networks that an operator has named, and whether an address is in one of them.

Touches  nothing.
"""

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

__all__ = ["NOWHERE", "Networks"]

NETWORKS_MAX: Final = 1_000


class Networks:
    """Addresses and networks, written with commas between them: `10.0.0.7, 10.1.0.0/16, fd00::/8`. Never changes."""

    __slots__ = ("_networks",)

    def __init__(self, text: str) -> None:
        """ValueError says what in the text is neither an address nor a network."""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if len(parts) > NETWORKS_MAX:
            raise ValueError(f"{len(parts)} networks, at most {NETWORKS_MAX} are compared")
        try:
            self._networks = tuple(map(ip_network, parts))
        except ValueError as wrong:
            raise ValueError(
                f"{wrong}; write addresses and networks, separated by commas, like 10.0.0.7,10.1.0.0/16"
            ) from None

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: str) -> bool:
        """Whether an address, as a socket shows it, is in one of them; what is no address is in none."""
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped  # a socket that takes both kinds shows the older one so
        return any(found in network for network in self._networks)


NOWHERE: Final = Networks("")
