"""Accounts of RocketMQ 4.x as users and policies of 5.x.

Touches  nothing.

An account becomes a user of its name and secret, an administrator a super user. Named permissions become custom
policies, the defaults become default ones. White addresses are lost: they let in who does not sign.
"""

from collections.abc import Mapping
from typing import NamedTuple

from aerobee_access.plain_acl import Account, Perm, PlainAcl
from aerobee_access.policies import Entry, PolicyType, entry_of
from aerobee_access.table import AccessTable
from aerobee_access.users import UserType
from aerobee_proto.errors import RequestError
from aerobee_proto.names import RETRY_PREFIX

__all__ = ["Imported", "import_accounts", "policies_of"]


class Imported(NamedTuple):
    """What became of the accounts: their names; of those that could not be taken over, with the reason."""

    users: list[str]
    known: list[str]  # there was a user of that name: nothing was changed
    failed: dict[str, str]
    with_addresses: list[str]  # whose white address is lost


def import_accounts(acl: PlainAcl, table: AccessTable) -> Imported:
    """Make a user with policies of each account for which there is none yet."""
    done = Imported([], [], {}, [])
    for account in acl.accounts.values():
        name = account.access_key
        if table.user(name) is not None:
            done.known.append(name)
            continue
        try:
            policies = policies_of(account)
            table.create_user(
                name, account.secret_key, UserType.SUPER if account.is_admin else UserType.NORMAL
            )
            if policies:
                table.write_acl(name, policies.items())
        except RequestError as refused:
            done.failed[name] = refused.remark
            continue
        done.users.append(name)
        if account.white_address:
            done.with_addresses.append(name)
    return done


def policies_of(account: Account) -> Mapping[PolicyType, list[Entry]]:
    """The policies that say the same. RequestError for a name that cannot be one."""
    named = [_entry(f"Topic:{topic}", perm) for topic, perm in account.topics.items()]
    named += [_entry(f"Group:{_group(group)}", perm) for group, perm in account.groups.items()]
    default = [
        _entry(resource, perm)
        for resource, perm in (("Topic:*", account.default_topic), ("Group:*", account.default_group))
        if perm is not Perm.DENY  # who is granted nothing is refused all the same
    ]
    found = {PolicyType.CUSTOM: named, PolicyType.DEFAULT: default}
    return {kind: entries for kind, entries in found.items() if entries}


def _entry(resource: str, perm: Perm) -> Entry:
    if Perm.DENY in perm:
        return entry_of(resource, ["All"], None, "Deny")
    actions = [word for one, word in ((Perm.PUB, "Pub"), (Perm.SUB, "Sub")) if one in perm]
    return entry_of(resource, actions, None, "Allow")


def _group(name: str) -> str:
    return name.removeprefix(RETRY_PREFIX)
