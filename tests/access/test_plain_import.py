"""Accounts of 4.x become users and policies."""

from pathlib import Path

import pytest

from access.support import empty_table
from aerobee_access.control import AccessControl
from aerobee_access.decision import Verdict, decide
from aerobee_access.plain_acl import Account, Perm, read_plain_acl
from aerobee_access.plain_files import PlainAclDamaged
from aerobee_access.plain_import import import_accounts
from aerobee_access.policies import Action
from aerobee_access.settings import AccessSettings

FILE = """accounts:
- accessKey: gamanager
  secretKey: sk-gamanager
  admin: true
- accessKey: gareader
  secretKey: sk-gareader
  whiteRemoteAddress: 10.0.0.*
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
  topicPerms: [secret=DENY, both=PUB|SUB]
  groupPerms: ['%RETRY%own=SUB', none=DENY]
"""


def test_users_may_what_their_accounts_could(tmp_path: Path) -> None:
    """Asked for every topic and group that the file names, and one that it does not."""
    acl, table = read_plain_acl(FILE), empty_table(tmp_path)
    done = import_accounts(acl, table)
    assert done.users == ["gamanager", "gareader"]
    assert done.with_addresses == ["gareader"]
    manager, reader = table.user("gamanager"), table.user("gareader")
    assert manager is not None
    assert manager.is_super
    assert reader is not None
    assert (reader.is_super, reader.secret) == (False, "sk-gareader")
    account: Account = acl.accounts["gareader"]
    for kind, names in (("Topic", ["secret", "both", "other"]), ("Group", ["%RETRY%own", "none", "other"])):
        for name in names:
            for perm, action in ((Perm.PUB, Action.PUB), (Perm.SUB, Action.SUB)):
                named = {name: perm}
                before = not (account.refusal(named, {}) if kind == "Topic" else account.refusal({}, named))
                bare = name.removeprefix("%RETRY%")
                after = decide(table.acl("gareader"), kind, bare, frozenset({action}), "10.0.0.1")
                assert (after is Verdict.ALLOWED) is before, (kind, name, perm)


def test_users_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    table = empty_table(tmp_path)
    table.create_user("gareader", "another")
    done = import_accounts(read_plain_acl(FILE), table)
    assert (done.users, done.known) == (["gamanager"], ["gareader"])
    user = table.user("gareader")
    assert user is not None
    assert user.secret == "another"
    assert table.acl("gareader") is None


def control(folder: Path) -> AccessControl:
    settings = AccessSettings(authentication_enabled=True)
    return AccessControl(
        settings, cluster_name="C", folder=folder / "store", imports=folder / "plain_acl.yml"
    )


def test_a_server_imports_at_its_start_once(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(FILE)
    made = control(tmp_path)
    assert made.bootstrap()
    assert [user.name for user in made.table.users()] == ["gamanager", "gareader"]
    assert not made.bootstrap()


def test_what_is_to_be_imported_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(PlainAclDamaged, match="it is not there"):
        control(tmp_path).bootstrap()
