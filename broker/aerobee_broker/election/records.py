"""What stands in the register, under {electionPrefix}/{brokerClusterName}/{brokerName}/.

Touches  nothing: values to bytes of JSON, and back.

    set         {"epoch":3,"master":1,"inSync":{"1":"<store>","2":"<store>"},"successor":0}   stays
    master      {"member":1,"epoch":3}                                           goes with the master's lease
    members/1   {"addr":"h:10911","haAddr":"h:10912","endOffset":0,"lastEpoch":2,"epoch":3,"store":"<store>"}
                                                                                 goes with the member's lease

`store` is the identity of a store folder. `epoch` of a member is the newest it knows of, `lastEpoch` that of its last
record.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from aerobee_broker.election.register import ABSENT, NO_LEASE, View
from aerobee_proto.errors import FormatError

__all__ = ["Keys", "MasterRecord", "MemberRecord", "SetRecord", "SetView", "decode_view", "encode_record"]

T = TypeVar("T", bound="_Record")


class _Record(msgspec.Struct, frozen=True, rename="camel"):
    """Base: fields that a newer version adds are left out."""


class SetRecord(_Record, frozen=True):
    """What holds until it is changed."""

    epoch: int
    master: int
    in_sync: dict[int, str]  # member: store
    successor: int = 0  # whom a master that left on purpose has named; 0: nobody


class MasterRecord(_Record, frozen=True):
    """Who is master as long as this is there."""

    member: int
    epoch: int


class MemberRecord(_Record, frozen=True):
    """A member that runs. Offsets are physical."""

    addr: str
    ha_addr: str
    end_offset: int
    last_epoch: int
    epoch: int
    store: str


class Keys:
    """The keys of one set."""

    def __init__(self, election_prefix: str, cluster_name: str, broker_name: str) -> None:
        self.prefix = f"/{election_prefix.strip('/')}/{cluster_name}/{broker_name}/"
        self.set = f"{self.prefix}set"
        self.master = f"{self.prefix}master"
        self.members = f"{self.prefix}members/"

    def member(self, number: int) -> str:
        """That of one member."""
        return f"{self.members}{number}"


@dataclass(slots=True, frozen=True)
class SetView:
    """The keys of one set as of one revision."""

    revision: int
    set: SetRecord | None = None
    set_revision: int = ABSENT
    master: MasterRecord | None = None
    master_revision: int = ABSENT
    master_lease: int = NO_LEASE
    members: Mapping[int, MemberRecord] = field(default_factory=dict)
    member_revisions: Mapping[int, int] = field(default_factory=dict)
    member_leases: Mapping[int, int] = field(default_factory=dict)


def encode_record(record: SetRecord | MasterRecord | MemberRecord) -> bytes:
    """Its value in the register."""
    return msgspec.json.encode(record)


def decode_view(view: View, keys: Keys) -> SetView:
    """What a view of all keys of a set says. FormatError names the key that nobody of ours has written."""
    the_set = master = None
    set_revision = master_revision = ABSENT
    master_lease = NO_LEASE
    members: dict[int, MemberRecord] = {}
    revisions: dict[int, int] = {}
    leases: dict[int, int] = {}
    for key, entry in view.entries.items():
        if key == keys.set:
            the_set, set_revision = _decode(key, entry.value, SetRecord), entry.mod_revision
        elif key == keys.master:
            master, master_revision = _decode(key, entry.value, MasterRecord), entry.mod_revision
            master_lease = entry.lease
        elif key.startswith(keys.members) and key.removeprefix(keys.members).isdecimal():
            number = int(key.removeprefix(keys.members))
            members[number] = _decode(key, entry.value, MemberRecord)
            revisions[number], leases[number] = entry.mod_revision, entry.lease
    return SetView(
        view.revision,
        the_set,
        set_revision,
        master,
        master_revision,
        master_lease,
        members,
        revisions,
        leases,
    )


def _decode(key: str, value: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise FormatError(f"the value of {key} in the register is not one of ours: {wrong}") from wrong
