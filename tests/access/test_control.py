"""Access control as it is put together from settings."""

import json
from pathlib import Path

import pytest

from aerobee_access.control import AccessControl
from aerobee_access.settings import AccessSettings
from aerobee_access.signature import signed_with
from aerobee_proto.headers import TopicHeader
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.gate import Row
from aerobee_remoting.exchange.needs import CREATE, GET, UPDATE, Open, on_cluster

INNER = json.dumps({"accessKey": "inner", "secretKey": "inner secret"})


def control(folder: Path, **settings: object) -> AccessControl:
    return AccessControl(AccessSettings.model_validate(settings), cluster_name="C", folder=folder / "store")


def test_without_settings_nothing_is_checked_and_no_key_is_made(tmp_path: Path) -> None:
    made = control(tmp_path)
    assert not made.is_on
    assert not made.bootstrap()
    assert made.signer is None
    assert list(tmp_path.iterdir()) == []


def test_the_users_of_the_settings_are_made_once(tmp_path: Path) -> None:
    first = json.dumps({"username": "root", "password": "old"})
    made = control(tmp_path, initAuthenticationUser=first, innerClientAuthenticationCredentials=INNER)
    assert made.bootstrap()
    assert [(user.name, user.is_super) for user in made.table.users()] == [("inner", True), ("root", True)]
    made.table.update_user("root", "new")
    assert not made.bootstrap()
    user = made.table.user("root")
    assert user is not None
    assert user.secret == "new"  # a password in the settings does not take the place of a changed one


def test_a_server_signs_with_its_credentials(tmp_path: Path) -> None:
    signer = control(tmp_path, innerClientAuthenticationCredentials=INNER).signer
    assert signer is not None
    for header in (TopicHeader(topic="T"), {"topic": "T"}, None):
        fields = signer({})(17, header, b"body")
        assert fields["AccessKey"] == "inner"
        assert signed_with(b"inner secret", fields, 479, b"body")


def test_the_key_may_be_elsewhere(tmp_path: Path) -> None:
    made = control(tmp_path, accessKeyPath=str(tmp_path / "far" / "k"))
    made.table.create_user("a", "b")
    assert (tmp_path / "far" / "k").exists()


def test_secrets_are_shown_to_who_has_proved_to_be_a_super_user(tmp_path: Path) -> None:
    users = {"initAuthenticationUser": json.dumps({"username": "root", "password": "p"})}
    for on, expected in ((True, True), (False, False)):
        made = control(tmp_path, authenticationEnabled=on, authorizationEnabled=True, **users)
        made.bootstrap()
        assert made.shows_secrets_to("root") is expected
        assert not made.shows_secrets_to("nobody")


def test_administration_that_anybody_may_do_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Codes of clients may be on a white list, and those that nobody serves; what is off says nothing."""
    rows = {
        code: Row(code, "h", NoFields, needs)
        for code, needs in (
            (25, (on_cluster(UPDATE),)),
            (26, (on_cluster(GET),)),
            (17, (on_cluster(CREATE),)),
            (105, Open("routes")),
        )
    }
    settings = {"authenticationEnabled": True, "authenticationWhitelist": "105,25,26,9999"}
    control(tmp_path, **settings).check_white_lists(rows)
    control(tmp_path, authorizationWhitelist="17").check_white_lists(rows)
    control(tmp_path, authorizationEnabled=True, authorizationWhitelist="17").check_white_lists(rows)
    assert [(record.__dict__["setting"], record.__dict__["codes"]) for record in caplog.records] == [
        ("authenticationWhitelist", [25, 26]),
        ("authorizationWhitelist", [17]),
    ]
