"""Policies: which actions on which resources a user is allowed or denied, as administrators write them.

Touches  nothing.

    resource    `Topic:orders`, `Group:abc*` (a prefix), `Cluster:*` (all of a kind), `*` (everything)
    actions     Pub, Sub, Create, Update, Delete, Get, List, or All
    addresses   of the client: literal ones, or networks as `10.0.0.0/8`; none: from anywhere
    decision    Allow or Deny

A subject has one `Acl`: custom entries, and default ones that count where no custom entry matches. Kinds, actions and
decisions are read in any case. What is read here has RocketMQ 5.3.3's meaning: an unknown action is dropped, a prefix
ends at its first star, an entry for the same resource takes the place of the one before where that stands.

Invariants
- An `Entry` has been checked: a resource, at least one action, addresses that can be compared.
- Values never change; a change makes others.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from aerobee_access.users import named
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError

__all__ = [
    "ENTRIES_MAX",
    "Acl",
    "Action",
    "Decision",
    "Entry",
    "Kind",
    "Pattern",
    "PolicyType",
    "Resource",
    "entry_of",
    "resource_of",
]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ENTRIES_MAX: Final = 2_000  # of one user
ADDRESSES_MAX: Final = 1_000  # of one entry
NAME_CHARS_MAX: Final = 1_024


class Kind(Enum):
    """Of resources. The values are RocketMQ's, on disk."""

    UNKNOWN = 0
    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5


class Pattern(Enum):
    """How a resource is compared with a name."""

    ANY = 1
    LITERAL = 2
    PREFIXED = 3


class Action(Enum):
    """What may be done with a resource."""

    UNKNOWN = 0
    ALL = 1
    ANY = 2
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9

    @property
    def word(self) -> str:
        """As administrators write it."""
        return self.name.capitalize()


class Decision(Enum):
    ALLOW = 1
    DENY = 2


class PolicyType(Enum):
    CUSTOM = 1
    DEFAULT = 2


class Resource(NamedTuple):
    """What an entry is about. `name` is empty where the pattern is ANY."""

    kind: Kind
    name: str
    pattern: Pattern

    def matches(self, kind: str, name: str) -> bool:
        """Whether this is about the resource of that name; `kind` as in `Topic`."""
        if self.kind is Kind.ANY:
            return True
        if self.kind.name.capitalize() != kind:
            return False
        if self.pattern is Pattern.LITERAL:
            return name == self.name
        return self.pattern is Pattern.ANY or name.startswith(self.name)

    def __str__(self) -> str:
        if self.kind is Kind.ANY:
            return "*"
        star = "" if self.pattern is Pattern.LITERAL else "*"
        return f"{self.kind.name.capitalize()}:{self.name}{star}"


def resource_of(text: str | None) -> Resource | None:
    """A resource as administrators write it; None for what is none."""
    if not text or not text.strip() or len(text) > NAME_CHARS_MAX:
        return None
    if text == "*":
        return Resource(Kind.ANY, "", Pattern.ANY)
    kind_name, _, name = text.partition(":")
    kind = named(Kind, kind_name)
    if kind is None:
        return None
    if name == "*":
        return Resource(kind, "", Pattern.ANY)
    if name.endswith("*"):
        return Resource(kind, name.partition("*")[0], Pattern.PREFIXED)
    return Resource(kind, name, Pattern.LITERAL)


@dataclass(slots=True, frozen=True)
class Entry:
    """One line of a policy. `addresses` as they were written; those with a slash are in `networks`, too."""

    resource: Resource
    actions: tuple[Action, ...]
    decision: Decision
    addresses: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    def is_from(self, address: str) -> bool:
        """Whether a client of this address is meant. Outside of networks addresses are compared as text."""
        if not self.addresses or address in self.addresses:
            return True
        if not self.networks:
            return False
        try:
            number = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(number, ipaddress.IPv6Address) and number.ipv4_mapped is not None:
            number = number.ipv4_mapped  # a socket that takes both kinds shows the older one so
        return any(number in network for network in self.networks if network.version == number.version)


def entry_of(
    resource: str | None, actions: Iterable[str] | None, addresses: Sequence[str] | None, decision: str | None
) -> Entry:
    """A checked entry. RequestError NO_PERMISSION in RocketMQ's words."""
    about = resource_of(resource)
    if about is None:
        raise _wrong("The resource is null.")
    known = tuple(dict.fromkeys(action for name in actions or () if (action := named(Action, name))))
    if not known:
        raise _wrong("The actions is empty.")
    if Action.ANY in known:
        raise _wrong("The actions can not be Any.")
    if addresses and len(addresses) > ADDRESSES_MAX:
        raise _wrong(f"There are {len(addresses)} source ips, at most {ADDRESSES_MAX} are allowed.")
    networks = tuple([network for address in addresses or () if (network := _network_of(address))])
    decided = named(Decision, decision)
    if decided is None:
        raise _wrong("The decision is null or illegal.")
    return Entry(about, known, decided, tuple(addresses or ()), networks)


def _network_of(address: str) -> Network | None:
    """The network that is written with a slash; None for one address. Host names are not looked up."""
    if not address or not address.strip():
        raise _wrong("The source ip is empty.")
    try:
        if "/" not in address:
            ipaddress.ip_address(address)
            return None
        return ipaddress.ip_network(address, strict=False)
    except ValueError:
        raise _wrong("The source ip is invalid.") from None


def _wrong(remark: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, remark)


@dataclass(slots=True, frozen=True)
class Acl:
    """All policies of one user, each kind with its entries in the order of their creation."""

    policies: Mapping[PolicyType, tuple[Entry, ...]]

    @property
    def count(self) -> int:
        """Entries of all kinds."""
        return sum(map(len, self.policies.values()))

    def with_entries(self, kind: PolicyType, entries: Iterable[Entry]) -> "Acl":
        """The same with these written into it. RequestError when there would be too many."""
        merged = {entry.resource: entry for entry in self.policies.get(kind, ())}
        for entry in entries:
            merged[entry.resource] = entry
        if len(merged) > ENTRIES_MAX:
            raise _wrong(f"There are {len(merged)} policy entries, at most {ENTRIES_MAX} are allowed.")
        return replace(self, policies={**self.policies, kind: tuple(merged.values())})

    def without(self, kind: PolicyType, resource: Resource) -> "Acl":
        """The same without the entry of this resource; a kind without entries goes."""
        left = tuple(entry for entry in self.policies.get(kind, ()) if entry.resource != resource)
        rest = {other: entries for other, entries in self.policies.items() if other is not kind}
        if left:
            # Where it stands: the order of kinds is that of their creation.
            rest = {other: left if other is kind else entries for other, entries in self.policies.items()}
        return replace(self, policies=rest)
