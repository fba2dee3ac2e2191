"""The keys of access control."""

import json

import pytest
from pydantic import SecretStr

from aerobee_access.settings import AccessSettings, credentials_of, listed_codes, user_of
from aerobee_service.settings.settings import SettingsError, dump_settings, load_settings

LOCAL = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
STATEFUL = "org.apache.rocketmq.auth.authorization.strategy.StatefulAuthorizationStrategy"


def read(**overrides: str) -> AccessSettings:
    return load_settings(AccessSettings, file=None, environ_prefix="X_", overrides=overrides, environ={})


def test_everything_is_off_at_first() -> None:
    settings = read()
    assert not settings.authentication_enabled
    assert not settings.authorization_enabled
    assert user_of(settings.init_authentication_user) is None
    assert credentials_of(settings.inner_client_authentication_credentials) is None


def test_the_official_classes_may_be_named() -> None:
    assert read(authenticationMetadataProvider=LOCAL, authorizationStrategy=STATEFUL)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("authenticationProvider", "com.example.Mine", "plug-ins are not served"),
        ("authorizationStrategy", "Sometimes", "must be empty or one of"),
        ("authenticationWhitelist", "310,all", "'all' is not a request code"),
        ("initAuthenticationUser", '{"username":"geheim"', "is not JSON of the form"),
        ("initAuthenticationUser", '{"username":"geheim"}', "is not JSON of the form"),
        ("initAuthenticationUser", '{"username":"geheim","password":" "}', "needs two texts"),
        ("innerClientAuthenticationCredentials", '["geheim"]', "is not JSON of the form"),
        ("innerClientAuthenticationCredentials", '{"accessKey":"geheim","secretKey":5}', "needs two texts"),
        ("authCompat", "4.9.7", "must be"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_showing_a_secret(key: str, value: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason) as refused:
        read(**{key: value})
    assert "geheim" not in str(refused.value)


def test_secrets_are_hidden_wherever_settings_are_shown() -> None:
    settings = read(
        initAuthenticationUser=json.dumps({"username": "a", "password": "geheim"}),
        innerClientAuthenticationCredentials=json.dumps({"accessKey": "b", "secretKey": "geheim"}),
    )
    assert "geheim" not in f"{settings!r}{settings}{dump_settings(settings)}{settings.model_dump()}"
    assert user_of(settings.init_authentication_user) == ("a", "geheim")
    assert dump_settings(settings)["initAuthenticationUser"] == "***"


def test_codes_are_listed_with_blanks_around() -> None:
    assert listed_codes("105, 310,34 ,") == {105, 310, 34}
    assert user_of(SecretStr("  ")) is None
