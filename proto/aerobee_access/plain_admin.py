"""Accounts of RocketMQ 4.x changed and shown by request: the codes 50 to 54, as `mqadmin` of 4.9 sends them.

Touches  the files of accounts, through `PlainFiles`.

Where access control of 4.x is off, nothing is changed and nothing shown. Secrets are shown as a mask.
"""

from typing import Final

import msgspec

from aerobee_access.plain_acl import Account, Perm, PlainAcl
from aerobee_access.plain_files import PlainFiles
from aerobee_access.plain_yaml import Value
from aerobee_access.table import MASK
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.headers import RequestHeader
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, UPDATE, on_cluster, ours
from aerobee_service.turns.slices import Steps, in_slices

__all__ = ["PlainHandlers"]

# Codes of answers; newer ones of RocketMQ have the same numbers.
PUT_FAILED: Final = 209
DELETE_FAILED: Final = 210
WHITE_FAILED: Final = 211
CHARS_MAX: Final = 65_536  # of one field


class AccountHeader(RequestHeader, kw_only=True):
    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class AccessKeyHeader(RequestHeader, kw_only=True):
    access_key: str | None = None


class WhiteAddressesHeader(RequestHeader, kw_only=True):
    global_white_addrs: str | None = None
    acl_file_full_path: str | None = None


class PlainHandlers:
    """Handlers of the codes above."""

    def __init__(
        self, files: PlainFiles | None, *, cluster_name: str, broker_name: str, address: str
    ) -> None:
        """`files` None: the access control of 4.x is off."""
        self._known = files
        self._cluster_name = cluster_name
        self._broker_name = broker_name
        self._address = address

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        changes, looks = (ours(on_cluster(UPDATE)),), (ours(on_cluster(GET)),)
        add(code.UPDATE_AND_CREATE_ACL_CONFIG, self.put_account, header=AccountHeader, needs=changes)
        add(code.DELETE_ACL_CONFIG, self.delete_account, header=AccessKeyHeader, needs=changes)
        add(code.GET_BROKER_CLUSTER_ACL_INFO, self.version, needs=looks)
        add(
            code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            self.put_white_addresses,
            header=WhiteAddressesHeader,
            needs=changes,
        )
        add(code.GET_BROKER_CLUSTER_ACL_CONFIG, self.config, needs=looks)

    @property
    def _files(self) -> PlainFiles:
        if self._known is None:
            raise RequestError(ResponseCode.NO_PERMISSION, "the access control of 4.x is off (aclEnable)")
        return self._known

    async def put_account(self, request: Request[AccountHeader]) -> Response:
        header, files = request.header, self._files
        fields: dict[str, Value] = {
            "accessKey": header.access_key,
            "secretKey": header.secret_key,
            "whiteRemoteAddress": header.white_remote_address,
            "admin": header.admin,
            "defaultTopicPerm": header.default_topic_perm,
            "defaultGroupPerm": header.default_group_perm,
            "topicPerms": _split(header.topic_perms),
            "groupPerms": _split(header.group_perms),
        }
        try:
            await files.put_account(fields)
        except (FormatError, OSError) as wrong:
            raise RequestError(PUT_FAILED, str(wrong)) from wrong
        return Response()

    async def delete_account(self, request: Request[AccessKeyHeader]) -> Response:
        name = request.header.access_key or ""
        failed = f"The accesskey[{name}] corresponding to accessConfig has been deleted failed."
        try:
            if not await self._files.delete_account(name):
                raise RequestError(DELETE_FAILED, failed)
        except OSError as wrong:
            raise RequestError(DELETE_FAILED, f"{failed} {wrong}") from wrong
        return Response()

    async def put_white_addresses(self, request: Request[WhiteAddressesHeader]) -> Response:
        header, files = request.header, self._files
        addresses = _split(header.global_white_addrs) or []
        failed = f"The globalWhiteAddresses[{header.global_white_addrs}] has been updated failed."
        path = header.acl_file_full_path or ""
        try:
            done = await files.put_white_addresses([str(one) for one in addresses], path)
        except (FormatError, OSError) as wrong:
            raise RequestError(WHITE_FAILED, f"{failed} {wrong}") from wrong
        if not done:
            raise RequestError(WHITE_FAILED, failed)
        return Response()

    def version(self, _: Request[NoFields]) -> Response:
        files = self._files
        versions = {str(path): files.version_of(path) for path in files.contents}
        return Response(
            ext={
                "allAclFileVersion": "{"
                + ",".join(f"{_json(path)}:{text}" for path, text in versions.items())
                + "}",
                "brokerAddr": self._address,
                "brokerName": self._broker_name,
                "clusterName": self._cluster_name,
                "version": files.version_of(files.path),
            }
        )

    async def config(self, _: Request[NoFields]) -> Response:
        return Response(body=await in_slices(_configs(self._files.acl)))


def _split(text: str | None) -> list[Value] | None:
    if text is not None and len(text) > CHARS_MAX:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"more than {CHARS_MAX} characters in one field")
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _configs(acl: PlainAcl) -> Steps[bytes]:
    accounts = []
    for account in acl.accounts.values():
        accounts.append(_json(_shown(account)))
        yield
    addresses = _json(list(acl.white_addresses))
    return f'{{"globalWhiteAddrs":{addresses},"plainAccessConfigs":[{",".join(accounts)}]}}'.encode()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _shown(account: Account) -> dict[str, object]:
    shown: dict[str, object] = {
        "accessKey": account.access_key,
        "admin": account.is_admin,
        "defaultGroupPerm": _word(account.default_group),
        "defaultTopicPerm": _word(account.default_topic),
        "groupPerms": [f"{name}={_word(perm)}" for name, perm in account.groups.items()],
        "secretKey": MASK,
        "topicPerms": [f"{name}={_word(perm)}" for name, perm in account.topics.items()],
        "whiteRemoteAddress": account.white_address,
    }
    return {name: value for name, value in shown.items() if value not in ("", [])}


def _word(perm: Perm) -> str:
    return "|".join(one.name or "" for one in (Perm.DENY, Perm.PUB, Perm.SUB) if one in perm)
