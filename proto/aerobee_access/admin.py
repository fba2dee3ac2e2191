"""Users and policies changed and shown by request: the codes 3001 to 3010, as `mqadmin` sends them.

Touches  the file of the table, through `save`.

Answers and remarks are those of RocketMQ 5.3.3, with what it forgot: a secret is shown to super users alone, others see
a mask in its place, the last super user that is enabled cannot be removed, and who is no super user can neither grant
rights, which could be its own, nor take the name of somebody else by giving it another secret.
"""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import msgspec
from msgspec import field

from aerobee_access.policies import Acl, Entry, PolicyType, entry_of, resource_of
from aerobee_access.signature import ACCESS_KEY
from aerobee_access.table import MASK, AccessTable
from aerobee_access.users import Status, User, UserType, named
from aerobee_proto.bodies import JsonBody
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import RequestHeader
from aerobee_remoting.exchange.handlers import AnyRequest, HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, UPDATE, on_cluster
from aerobee_service.turns.slices import Steps, in_slices

__all__ = [
    "ACL_BODY_SIZE_MAX",
    "USER_BODY_SIZE_MAX",
    "AccessHandlers",
    "AskMaster",
    "Changing",
    "saved_after",
]

USER_BODY_SIZE_MAX: Final = 16 * 1024
ACL_BODY_SIZE_MAX: Final = 128 * 1024
DONE: Final = "not set any response code"
UNFIT: Final = "An system error occurred, please try again later."
SUBJECT: Final = "User:"


# Of a slave: what its master answers to a change, which is here, too, behind it; None: it may be made here.
AskMaster = Callable[[AnyRequest], Awaitable[Response | None]]
# What a change is made in: before it the table is what is in force, behind it the change is kept.
Changing = Callable[[], AbstractAsyncContextManager[None]]


def saved_after(save: Callable[[], Awaitable[None]]) -> Changing:
    """Of a table that nobody else changes."""

    @asynccontextmanager
    async def changing() -> AsyncIterator[None]:
        yield
        await save()

    return changing


class UserHeader(RequestHeader, kw_only=True):
    username: str | None = None


class UserFilterHeader(RequestHeader, kw_only=True):
    filter: str | None = None


class SubjectHeader(RequestHeader, kw_only=True):
    subject: str | None = None


class DeleteAclHeader(RequestHeader, kw_only=True):
    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class AclFilterHeader(RequestHeader, kw_only=True):
    subject_filter: str | None = None
    resource_filter: str | None = None


class UserInfo(JsonBody, kw_only=True):
    """A user as it is asked for and shown."""

    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None


class EntryInfo(JsonBody, kw_only=True):
    actions: list[str] = field(default_factory=list)
    decision: str | None = None
    resource: str | None = None
    source_ips: list[str] = field(default_factory=list)


class PolicyInfo(JsonBody, kw_only=True):
    entries: list[EntryInfo] = field(default_factory=list)
    policy_type: str | None = None


class AclInfo(JsonBody, kw_only=True):
    policies: list[PolicyInfo] = field(default_factory=list)
    subject: str | None = None


class AccessHandlers:
    """Handlers of the codes above."""

    def __init__(
        self,
        table: AccessTable,
        changing: Changing,
        *,
        is_on: bool,
        is_shared: Callable[[], bool] = lambda: False,
        shows_secrets_to: Callable[[str], bool],
        ask_master: AskMaster | None = None,
        as_official: bool = False,
    ) -> None:
        """Unless access control `is_on` nothing can be changed: anybody could make the first super user.
        `as_official`: whoever may change the cluster may grant rights, as in 5.3.3.
        `shows_secrets_to` says whether who names this AccessKey is known to be a super user. `is_shared`: other servers
        have the same table, and tools tell each of them every change; who makes what is there already, or deletes what
        has gone, is told that it is done. `ask_master`: this is a slave, and changes are its master's."""
        self._table = table
        self._changing = changing
        self._is_shared = is_shared
        self._ask_master = ask_master
        self._as_official = as_official
        self._is_on = is_on
        self._shows_secrets_to = shows_secrets_to

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        changes, looks = (on_cluster(UPDATE),), (on_cluster(GET),)
        user_max, acl_max = USER_BODY_SIZE_MAX, ACL_BODY_SIZE_MAX
        add(code.AUTH_CREATE_USER, self.create_user, header=UserHeader, needs=changes, body_size_max=user_max)
        add(code.AUTH_UPDATE_USER, self.update_user, header=UserHeader, needs=changes, body_size_max=user_max)
        add(code.AUTH_DELETE_USER, self.delete_user, header=UserHeader, needs=changes)
        add(code.AUTH_GET_USER, self.user, header=UserHeader, needs=looks)
        add(code.AUTH_LIST_USER, self.users, header=UserFilterHeader, needs=looks)
        add(code.AUTH_CREATE_ACL, self.write_acl, header=SubjectHeader, needs=changes, body_size_max=acl_max)
        add(code.AUTH_UPDATE_ACL, self.write_acl, header=SubjectHeader, needs=changes, body_size_max=acl_max)
        add(code.AUTH_DELETE_ACL, self.delete_acl, header=DeleteAclHeader, needs=changes)
        add(code.AUTH_GET_ACL, self.acl, header=SubjectHeader, needs=looks)
        add(code.AUTH_LIST_ACL, self.acls, header=AclFilterHeader, needs=looks)

    # --- users ------------------------------------------------------------------------------------------------

    async def create_user(self, request: Request[UserHeader]) -> Response:
        self._check_on()
        name, info = _named_user(request)
        kind = named(UserType, info.user_type) or UserType.NORMAL
        status = named(Status, info.user_status) or Status.ENABLE

        def check() -> None:
            self._check_super(request, kind=kind, done="create")

        if (answered := await self._of_master(request, check)) is not None:
            return answered
        async with self._change():
            check()
            if not (
                self._is_shared() and self._may_see(request) and self._is_there(name, info, kind, status)
            ):
                self._table.create_user(name, info.password or "", kind, status)
        return Response(remark=DONE)

    async def update_user(self, request: Request[UserHeader]) -> Response:
        self._check_on()
        name, info = _named_user(request)
        kind = named(UserType, info.user_type)

        def check() -> None:
            self._check_super(request, name, kind)
            self._check_grants(request, name)

        if (answered := await self._of_master(request, check)) is not None:
            return answered
        async with self._change():
            check()
            self._table.update_user(name, info.password, kind, named(Status, info.user_status))
        return Response(remark=DONE)

    async def delete_user(self, request: Request[UserHeader]) -> Response:
        self._check_on()
        name = request.header.username or ""
        if not name.strip():
            raise _refused("username can not be blank")

        def check() -> None:
            self._check_super(request, name)

        if (answered := await self._of_master(request, check)) is not None:
            return answered
        async with self._change():
            check()
            self._table.delete_user(name)
        return Response(remark=DONE)

    def user(self, request: Request[UserHeader]) -> Response:
        name = request.header.username or ""
        if not name.strip():
            raise RequestError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._table.user(name)
        if user is None:
            return Response(remark=DONE)
        return Response(remark=DONE, body=_json(self._shown(user, self._may_see(request))))

    async def users(self, request: Request[UserFilterHeader]) -> Response:
        sought, sees = request.header.filter or "", self._may_see(request)
        found = (self._shown(user, sees) for user in self._table.users() if sought in user.name)
        return Response(remark=DONE, body=await in_slices(_listed(found)))

    # --- policies ---------------------------------------------------------------------------------------------

    async def write_acl(self, request: Request[SubjectHeader]) -> Response:
        """Create or update: what is written for a resource takes the place of what was there."""
        self._check_on()
        info = request.read(AclInfo) if request.body else AclInfo()
        if not info.policies:
            raise _failed("The body of acl is null")
        name = _user_of(info.subject or request.header.subject)
        if name is None:
            raise _failed(UNFIT)
        policies = [
            (
                named(PolicyType, policy.policy_type) or PolicyType.CUSTOM,
                [_entry(entry) for entry in policy.entries],
            )
            for policy in info.policies
            if policy.entries
        ]
        if not policies:
            raise _refused("The policies is empty.")

        def check() -> None:
            self._check_grants(request)

        if (answered := await self._of_master(request, check)) is not None:
            return answered
        async with self._change():
            check()
            self._table.write_acl(name, policies)
        return Response(remark=DONE)

    async def delete_acl(self, request: Request[DeleteAclHeader]) -> Response:
        self._check_on()
        header: DeleteAclHeader = request.header
        name = _user_of(header.subject)
        if name is None:
            raise _refused("The subject is null.")
        kind = named(PolicyType, header.policy_type) or PolicyType.CUSTOM

        def check() -> None:
            self._check_grants(request)

        if (answered := await self._of_master(request, check)) is not None:
            return answered
        async with self._change():
            check()
            if not (
                self._is_shared() and self._table.user(name) is not None and self._table.acl(name) is None
            ):
                self._table.delete_acl(name, kind, resource_of(header.resource))
        return Response(remark=DONE)

    def acl(self, request: Request[SubjectHeader]) -> Response:
        name = _user_of(request.header.subject)
        if name is None:
            raise _failed("the subject of a policy is User:name")
        if self._table.user(name) is None:
            raise _refused("The subject is not exist.")
        acl = self._table.acl(name)
        return Response(remark=DONE, body=_json(_written(name, acl)) if acl is not None else b"")

    async def acls(self, request: Request[AclFilterHeader]) -> Response:
        return Response(remark=DONE, body=await in_slices(_listed(self._sought_acls(request.header))))

    def _sought_acls(self, header: AclFilterHeader) -> Iterator[AclInfo]:
        subject, resource = header.subject_filter or "", header.resource_filter or ""
        for name, acl in self._table.acls():
            if subject and subject not in SUBJECT + name:
                continue
            sought = "" if resource in SUBJECT + name else resource
            shown = _written(name, acl, sought)
            if shown.policies:
                yield shown

    # --- helpers ----------------------------------------------------------------------------------------------

    def _check_on(self) -> None:
        if not self._is_on:
            raise _refused(
                "access control is off: set authenticationEnabled=true and initAuthenticationUser first"
            )

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        revision = self._table.revision
        try:
            async with self._changing():
                yield
        except OSError as error:
            done = (
                "in effect until the next start"
                if self._table.revision != revision
                else "nothing was changed"
            )
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{done}; the file was not written: {error}"
            ) from error

    def _is_there(self, name: str, info: UserInfo, kind: UserType, status: Status) -> bool:
        """Whether there is just this user. Told to who may see secrets alone: others could try them one by one."""
        user = self._table.user(name)
        return (
            user is not None
            and (user.type, user.status) == (kind, status)
            and hmac.compare_digest(user.secret.encode(), (info.password or "").encode())
        )

    def _is_normal(self, request: AnyRequest) -> bool:
        """Whether who asks is no super user; without a name there is no access control that says so."""
        name = _asker(request)
        user = self._table.user(name) if name else None
        return bool(name) and not (user is not None and user.is_super)

    async def _of_master(self, request: AnyRequest, check: Callable[[], None]) -> Response | None:
        """Of a slave the answer of its master, who is asked in this broker's own name: so `check` refuses here who may
        not. None: the change is to be made here."""
        if self._ask_master is None:
            return None
        check()
        return await self._ask_master(request)

    def _check_super(
        self, request: AnyRequest, name: str = "", kind: UserType | None = None, done: str = "update"
    ) -> None:
        """RequestError when this makes a super user, or changes one, and who asks is none."""
        if kind is UserType.SUPER and self._is_normal(request):
            raise _failed(f"The super user can only be {done} by super user")
        user = self._table.user(name)
        if user is not None and user.is_super and self._is_normal(request):
            raise _refused("The super user can only be update by super user")

    def _check_grants(self, request: AnyRequest, name: str = "") -> None:
        """RequestError when who asks is no super user, and this changes what others may do, or who they are. `name`:
        the user that is changed; each may change itself."""
        if not self._as_official and self._is_normal(request) and name != _asker(request):
            raise _refused("What others may do and how they sign is changed by super users alone")

    def _may_see(self, request: AnyRequest) -> bool:
        return self._shows_secrets_to(_asker(request))

    def _shown(self, user: User, sees: bool) -> UserInfo:
        return UserInfo(
            password=user.secret if sees else MASK,
            user_status=user.status.name.lower(),
            user_type=user.type.name.capitalize(),
            username=user.name,
        )


def _asker(request: AnyRequest) -> str:
    """Who has signed, or whom the certificate of the connection names."""
    return request.ext.get(ACCESS_KEY) or request.connection.subject


def _named_user(request: Request[UserHeader]) -> tuple[str, UserInfo]:
    """The name, which is that of the header, and what to do with the user."""
    name = request.header.username
    if not name:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name, request.read(UserInfo)


def _user_of(subject: str | None) -> str | None:
    """The user's name in `User:name`; None when it is not a user."""
    kind, colon, name = (subject or "").partition(":")
    return name if colon and kind.lower() == "user" else None


def _entry(info: EntryInfo) -> Entry:
    return entry_of(info.resource, info.actions, info.source_ips, info.decision)


def _written(name: str, acl: Acl, sought: str = "") -> AclInfo:
    """Policies as they are shown: those of their entries whose resource contains `sought`."""
    policies = [
        PolicyInfo(
            policy_type=kind.name.capitalize(),
            entries=[_shown_entry(entry) for entry in entries if sought in str(entry.resource)],
        )
        for kind, entries in acl.policies.items()
    ]
    return AclInfo(subject=SUBJECT + name, policies=[policy for policy in policies if policy.entries])


def _shown_entry(entry: Entry) -> EntryInfo:
    return EntryInfo(
        actions=[action.word for action in entry.actions],
        decision=entry.decision.name.capitalize(),
        resource=str(entry.resource),
        source_ips=list(entry.addresses),
    )


def _listed(infos: Iterable[JsonBody]) -> Steps[bytes]:
    """A list, written one by one; nothing at all for an empty one."""
    texts = []
    for info in infos:
        texts.append(_json(info))
        yield
    return b"[" + b",".join(texts) + b"]" if texts else b""


def _json(value: JsonBody) -> bytes:
    """As RocketMQ writes it: compact, members in the order of their names, without what is not set."""
    return msgspec.json.encode(_plain(value))


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, JsonBody):
        return value
    members = zip(value.__struct_encode_fields__, msgspec.structs.astuple(value), strict=True)
    return {name: _plain(member) for name, member in sorted(members) if member not in (None, [])}


def _refused(remark: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, remark)


def _failed(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)
