"""Access control of RocketMQ 4.x: accounts, permissions and addresses in plain_acl.yml, and the decision by them.

Touches  nothing.

    globalWhiteRemoteAddresses: [10.10.103.*, 192.168.0.1-9]      who needs neither account nor signature
    accounts:
    - accessKey: at least 7 characters
      secretKey: at least 7 characters
      whiteRemoteAddress: 192.168.1.*                             from where the account needs no signature
      admin: false
      defaultTopicPerm: DENY | PUB | SUB | PUB|SUB | SUB|PUB
      defaultGroupPerm: SUB
      topicPerms: [topicA=DENY, topicB=PUB|SUB]
      groupPerms: [groupA=SUB]

Names in permissions are literal. Remarks are those of 4.9.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final

from aerobee_access.plain_yaml import Value, read_yaml
from aerobee_proto.errors import FormatError

__all__ = [
    "Account",
    "Perm",
    "PlainAcl",
    "account_of",
    "address_matches",
    "default_perm_of",
    "perms_of",
    "read_plain_acl",
]

KEY_CHARS_MIN: Final = 7
NUMBER_CHARS_MAX: Final = 10  # of a part of an address
EVERYBODY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
FORM: Final = "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
PERMISSIONS: Final = "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."


class Perm(IntFlag):
    """What an account may do with a topic or a group."""

    DENY = 1
    PUB = 4
    SUB = 8

    def grants(self, needed: "Perm") -> bool:
        return not self & Perm.DENY and bool(self & needed)


_WORDS: Final = {
    "DENY": Perm.DENY,
    "PUB": Perm.PUB,
    "SUB": Perm.SUB,
    "PUB|SUB": Perm.PUB | Perm.SUB,
    "SUB|PUB": Perm.PUB | Perm.SUB,
}


@dataclass(slots=True, frozen=True)
class Account:
    """One account."""

    access_key: str
    secret_key: str = field(repr=False)
    white_address: str = ""
    is_admin: bool = False
    default_topic: Perm = Perm.DENY
    default_group: Perm = Perm.DENY
    topics: Mapping[str, Perm] = field(default_factory=dict)
    groups: Mapping[str, Perm] = field(default_factory=dict)

    def refusal(self, topics: Mapping[str, Perm], groups: Mapping[str, Perm]) -> str:
        """Why these needs are not granted, in the words of 4.9; empty when they are."""
        if self.is_admin and not self.topics and not self.groups:
            return ""
        for topic, needed in topics.items():
            if not self.topics.get(topic, self.default_topic).grants(needed):
                return f"No default permission for topic:{topic}"
        for group, needed in groups.items():
            if not self.groups.get(group, self.default_group).grants(needed):
                return f"No default permission for group:{group}"
        return ""


@dataclass(slots=True, frozen=True)
class PlainAcl:
    """Everything that files say."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    white_addresses: tuple[str, ...] = ()

    def is_white(self, address: str) -> bool:
        """Whether everything may be done from there, by anybody."""
        return any(address_matches(pattern, address) for pattern in self.white_addresses)

    def joined(self, other: "PlainAcl") -> "PlainAcl":
        """This with another file behind it: of two accounts of one name the first counts."""
        return PlainAcl({**other.accounts, **self.accounts}, (*self.white_addresses, *other.white_addresses))


def read_plain_acl(text: str) -> PlainAcl:
    """What a file says. FormatError says what is wrong, and shows no secret."""
    content = read_yaml(text)
    if content is None:
        return PlainAcl()
    if not isinstance(content, dict):
        raise FormatError("a mapping with accounts is expected")
    accounts: dict[str, Account] = {}
    for written in _list_of(content.get("accounts"), "accounts"):
        if not isinstance(written, dict):
            raise FormatError("an account is a mapping with accessKey and secretKey")
        account = account_of(written)
        accounts.setdefault(account.access_key, account)
    white = _list_of(content.get("globalWhiteRemoteAddresses"), "globalWhiteRemoteAddresses")
    return PlainAcl(accounts, tuple([str(address) for address in white if address is not None]))


def account_of(written: Mapping[str, Value]) -> Account:
    """One account as it is written. FormatError in the words of 4.9, without the secret."""
    access_key, secret_key = _text(written.get("accessKey")), _text(written.get("secretKey"))
    if len(access_key) < KEY_CHARS_MIN or len(secret_key) < KEY_CHARS_MIN:
        raise FormatError(
            f"The accessKey={access_key or 'null'} and secretKey={'***' if secret_key else 'null'} cannot be null and "
            "length should longer than 6"
        )
    return Account(
        access_key,
        secret_key,
        _text(written.get("whiteRemoteAddress")),
        written.get("admin") is True or _text(written.get("admin")).lower() == "true",
        default_perm_of(_text(written.get("defaultTopicPerm"))),
        default_perm_of(_text(written.get("defaultGroupPerm"))),
        perms_of(map(_text, _list_of(written.get("topicPerms"), "topicPerms"))),
        perms_of(map(_text, _list_of(written.get("groupPerms"), "groupPerms"))),
    )


def default_perm_of(text: str) -> Perm:
    """What counts where nothing is named; an unknown word denies."""
    return _WORDS.get(text.strip(), Perm.DENY)


def perms_of(written: Iterable[str], *, checked: bool = False) -> dict[str, Perm]:
    """`name=permission` of each; a word that is none denies, or is refused where it is `checked`. FormatError in the
    words of 4.9."""
    found: dict[str, Perm] = {}
    for text in written:
        name, equals, word = text.partition("=")
        if not equals or "=" in word or not name.strip():
            raise FormatError(f"Parse Resource format error for {text}.\n{FORM}")
        perm = _WORDS.get(word.strip(), Perm.DENY)
        if checked and word.strip() not in _WORDS:
            raise FormatError(f"Parse resource permission error for {text}.\n{PERMISSIONS}")
        found[name.strip()] = perm
    return found


def _list_of(value: Value, name: str) -> list[Value]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise FormatError(f"{name} is a list")
    return value


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value).strip()


def address_matches(pattern: str, address: str) -> bool:
    """Whether an address is meant: one, a list, `{4,5}` at the end, or a range in one of the last three parts.

    What follows the first range is not looked at, as in 4.9. A brace within braces means no address.
    """
    head, brace, tail = pattern.partition("{")
    *others, stem = head.split(",")
    braced = (
        [stem.lstrip() + part.strip() for part in tail.strip().rstrip("}").split(",")] if brace else [stem]
    )
    return any(_one_matches(one.strip(), address) for one in (*others, *braced))


def _one_matches(pattern: str, address: str) -> bool:
    if not pattern:
        return False
    if pattern in EVERYBODY or pattern == address:
        return True
    separator = ":" if ":" in pattern else "."
    for part, number in zip(pattern.split(separator), address.split(separator), strict=False):
        if part == "*":
            return True
        low, dash, high = part.partition("-")
        if dash:
            known = all(_is_number(one) for one in (low, high, number))
            return known and int(low) <= int(number) <= int(high)
        if part != number:
            return False
    return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARS_MAX
