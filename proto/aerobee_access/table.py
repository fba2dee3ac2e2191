"""The users and policies of one server, and the rules by which they change.

Touches  nothing by itself: whoever has the table writes its file (`to_json`, `parse`, `take`).

    {"users": {name: {"password": sealed, "userStatus": 1, "userType": 2}},
     "acls": {name: [{"policyType": 1, "entries": [{"resource": ..., "actions": [...], "decision": 1, ...}]}]}}

Numbers and members are those of RocketMQ's own records; only the secret is sealed.

Invariants
- `revision` grows with every change, so whoever keeps a decision knows that it is old.
- A refused change changes nothing. The last enabled super user cannot be removed or disabled by a request.
- A policy belongs to a user that is there; it goes with its user.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import msgspec

from aerobee_access.policies import (
    Acl,
    Action,
    Decision,
    Entry,
    Kind,
    Pattern,
    PolicyType,
    Resource,
    entry_of,
)
from aerobee_access.sealing import Sealer
from aerobee_access.users import NAME_CHARS_MAX, SECRET_CHARS_MAX, Status, User, UserType
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_service.turns.made_maps import MadeMap

__all__ = ["ACCESS_FILE", "MASK", "AccessTable", "Content"]

ACCESS_FILE: Final = "access.json"
MASK: Final = "***"  # shown instead of a secret
USERS_MAX: Final = 10_000  # all of them are listed in one answer
ENTRIES_MAX: Final = 20_000  # of policies, in all
NO_POLICIES: Final = Acl(MappingProxyType({}))


@dataclass(slots=True, frozen=True)
class Content:
    """Users and policies as they were read from a file."""

    users: Mapping[str, User]
    acls: Mapping[str, Acl]


class AccessTable:
    """User name -> user and policies. All calls from one thread."""

    file_name = ACCESS_FILE

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}
        self.revision = 0

    # --- looking ----------------------------------------------------------------------------------------------

    def user(self, name: str) -> User | None:
        return self._users.get(name)

    def users(self) -> list[User]:
        """In the order of their names."""
        return [self._users[name] for name in sorted(self._users)]

    def acl(self, name: str) -> Acl | None:
        """The policies of a user; None when there are none."""
        return self._acls.get(name)

    def acls(self) -> list[tuple[str, Acl]]:
        """Users with policies, in the order of their names."""
        return [(name, self._acls[name]) for name in sorted(self._acls)]

    # --- users ------------------------------------------------------------------------------------------------

    def create_user(
        self, name: str, secret: str, kind: UserType = UserType.NORMAL, status: Status = Status.ENABLE
    ) -> None:
        """RequestError NO_PERMISSION: there is one of that name, or it has no secret."""
        if not name.strip():
            raise _refused("username can not be blank")
        if not secret.strip():
            raise _refused("password can not be blank")
        _check_no_mask(secret)
        if name in self._users:
            raise _refused("The user is existed")
        if len(name) > NAME_CHARS_MAX or len(self._users) >= USERS_MAX:
            raise _refused(f"at most {USERS_MAX} users with names of {NAME_CHARS_MAX} characters are kept")
        self._users[name] = User(name, secret, kind, status, self._sealed(name, secret))
        self.revision += 1

    def update_user(
        self, name: str, secret: str | None = None, kind: UserType | None = None, status: Status | None = None
    ) -> None:
        """Change what is given. RequestError NO_PERMISSION: there is no such user, or no other super user is left."""
        old = self._users.get(name)
        if old is None:
            raise _refused("The user is not exist")
        new = replace(old, type=kind or old.type, status=status or old.status)
        if secret is not None and secret.strip():
            _check_no_mask(secret)
            new = replace(new, secret=secret, sealed=self._sealed(name, secret))
        if not (new.is_super and new.is_enabled):
            self._keep_a_super_user(old)
        self._users[name] = new
        self.revision += 1

    def delete_user(self, name: str) -> None:
        """The user and its policies; nothing happens when there is none. RequestError NO_PERMISSION as above."""
        old = self._users.get(name)
        if old is None:
            return
        self._keep_a_super_user(old)
        del self._users[name]
        self._acls.pop(name, None)
        self.revision += 1

    def _keep_a_super_user(self, old: User) -> None:
        others = [
            user for user in self._users.values() if user.is_super and user.is_enabled and user is not old
        ]
        if old.is_super and old.is_enabled and not others:
            raise _refused("The last super user that is enabled stays: make another one first.")

    def _sealed(self, name: str, secret: str) -> str:
        if len(secret) > SECRET_CHARS_MAX:
            raise _refused(f"password has {len(secret)} characters, at most {SECRET_CHARS_MAX} are kept")
        return self._sealer.seal(name, secret)

    # --- policies ---------------------------------------------------------------------------------------------

    def write_acl(self, name: str, policies: Iterable[tuple[PolicyType, Sequence[Entry]]]) -> None:
        """Write these entries into the policies of a user. RequestError NO_PERMISSION: there is no such user."""
        if name not in self._users:
            raise _refused(f"The subject of User:{name} is not exist.")
        acl = self._acls.get(name, NO_POLICIES)
        for kind, entries in policies:
            acl = acl.with_entries(kind, entries)
        others = sum(other.count for user, other in self._acls.items() if user != name)
        if others + acl.count > ENTRIES_MAX:
            raise _refused(f"There are {others} policy entries of others, {ENTRIES_MAX} are kept in all.")
        self._acls[name] = acl
        self.revision += 1

    def delete_acl(self, name: str, kind: PolicyType, resource: Resource | None) -> None:
        """Delete one entry, without a resource all policies. RequestError NO_PERMISSION: there is no user or none."""
        if name not in self._users:
            raise _refused("The subject is not exist.")
        acl = self._acls.get(name)
        if acl is None:
            raise _refused("The acl is not exist.")
        left = acl.without(kind, resource) if resource is not None else NO_POLICIES
        if left.policies:
            self._acls[name] = left
        else:
            del self._acls[name]
        self.revision += 1

    # --- the file ---------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The file's content; it does not change with the table, and any thread may go through it."""
        return {
            "users": MadeMap(dict(self._users), _written_user),
            "acls": MadeMap(dict(self._acls), _written_acl),
        }

    def parse(self, content: Mapping[str, object]) -> Content:
        """A file's content as the table keeps it. FormatError when it is of another form; KeyFileError when its secrets
        do not open."""

        def user_of(name: str, user: _FileUser) -> User:
            return _user(name, self._sealer.open(name, user.password), user.password, user)

        with _reading():
            read = msgspec.convert(content, _File)
            return _content(read.users.items(), read.acls.items(), user_of)

    def to_copy(self) -> Callable[[], bytes]:
        """Users and policies as they are now, with the secrets: the call makes the bytes, in any thread."""
        users, acls, encode = dict(self._users), dict(self._acls), msgspec.json.encode

        def made() -> bytes:
            # Entry by entry, as in files of tables: one call for all of them would hold the interpreter.
            written = {name: msgspec.Raw(encode(_open_user(user))) for name, user in users.items()}
            policies = {name: msgspec.Raw(encode(_written_acl(acl))) for name, acl in acls.items()}
            return encode({"users": written, "acls": policies})

        return made

    def parse_copy(self, raw: bytes) -> Content:
        """What `to_copy` of another server's table made, with secrets sealed as here. In any thread. FormatError when
        it is something else; KeyFileError when nothing can be sealed."""
        known, decode = self._users, msgspec.json.decode

        def user_of(name: str, user: _FileUser) -> User:
            old, secret = known.get(name), user.password
            is_same = old is not None and old.secret == secret
            sealed = old.sealed if old is not None and is_same else self._sealed(name, secret)
            return _user(name, secret, sealed, user)

        with _reading():
            read = decode(raw, type=_Copy)
            users = [(name, decode(user, type=_FileUser)) for name, user in read.users.items()]
            acls = [(name, decode(acl, type=list[_FilePolicy])) for name, acl in read.acls.items()]
            return _content(users, acls, user_of)

    def comparing(self, parsed: Content) -> Callable[[], bool]:
        """Whether the table is just this now: the call finds it out, in any thread."""
        users, acls = dict(self._users), dict(self._acls)
        return lambda: users == parsed.users and acls == parsed.acls

    def take(self, parsed: Content) -> None:
        """Put parsed content in place of the table's own."""
        self._users, self._acls = dict(parsed.users), dict(parsed.acls)
        self.revision += 1


@contextmanager
def _reading() -> Iterator[None]:
    """Says what is wrong with what is read as FormatError."""
    try:
        yield
    except (msgspec.MsgspecError, ValueError) as wrong:
        raise FormatError(f"not a file of users and policies: {wrong}") from wrong
    except RequestError as wrong:
        raise FormatError(f"a user or a policy that nobody could have made: {wrong.remark}") from wrong


def _content(
    users: Iterable[tuple[str, "_FileUser"]],
    acls: Iterable[tuple[str, list["_FilePolicy"]]],
    user_of: Callable[[str, "_FileUser"], User],
) -> Content:
    made = {name: user_of(name, user) for name, user in users}
    return Content(
        made,
        {
            name: Acl(
                {
                    PolicyType(policy.policy_type): tuple(_read_entry(entry) for entry in policy.entries)
                    for policy in policies
                }
            )
            for name, policies in acls
            if name in made
        },
    )


class _FileUser(msgspec.Struct, rename="camel"):
    password: str
    user_status: int
    user_type: int


class _FileEntry(msgspec.Struct, rename="camel"):
    resource_type: int
    resource_pattern: int
    actions: list[int]
    decision: int
    resource_name: str = ""
    source_ips: list[str] = []


class _FilePolicy(msgspec.Struct, rename="camel"):
    policy_type: int
    entries: list[_FileEntry]


class _File(msgspec.Struct):
    users: dict[str, _FileUser]
    acls: dict[str, list[_FilePolicy]]


class _Copy(msgspec.Struct):
    users: dict[str, msgspec.Raw]
    acls: dict[str, msgspec.Raw]


def _user(name: str, secret: str, sealed: str, read: _FileUser) -> User:
    return User(name, secret, UserType(read.user_type), Status(read.user_status), sealed)


def _open_user(user: User) -> dict[str, object]:
    return _written_user(user) | {"password": user.secret}


def _written_user(user: User) -> dict[str, object]:
    return {"password": user.sealed, "userStatus": user.status.value, "userType": user.type.value}


def _written_acl(acl: Acl) -> list[dict[str, object]]:
    return [
        {"policyType": kind.value, "entries": [_written(entry) for entry in entries]}
        for kind, entries in acl.policies.items()
    ]


def _written(entry: Entry) -> dict[str, object]:
    kind, name, pattern = entry.resource
    return {
        "resourceType": kind.value,
        "resourceName": name,
        "resourcePattern": pattern.value,
        "actions": [action.value for action in entry.actions],
        "decision": entry.decision.value,
        "sourceIps": list(entry.addresses),
    }


def _read_entry(written: _FileEntry) -> Entry:
    resource = Resource(Kind(written.resource_type), written.resource_name, Pattern(written.resource_pattern))
    checked = entry_of(
        "*",
        [Action(number).name for number in written.actions],
        written.source_ips,
        Decision(written.decision).name,
    )
    return replace(checked, resource=resource)


def _check_no_mask(secret: str) -> None:
    """What is shown instead of a secret is no secret: a tool that copies users would make it one that all know."""
    if secret == MASK:
        raise _refused(f"password {MASK} stands for one that was not shown; only a super user can copy users")


def _refused(remark: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, remark)
