"""What an operator can set about access control, under RocketMQ's key names; the same for brokers and nameservers.

Touches  nothing.

All of it is read at the start. Everything is off unless it is turned on, as in RocketMQ.
"""

import json
from typing import Any, Final, Literal

from pydantic import Field, SecretStr, field_validator

from aerobee_remoting.peers.networks import Networks
from aerobee_service.settings.settings import SettingsModel, SettingsPathText

__all__ = ["ACCESS_KEYS", "AccessSettings", "credentials_of", "listed_codes", "listed_names", "user_of"]

AUTH: Final = "org.apache.rocketmq.auth"
PROVIDERS: Final = {
    "authentication_provider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authentication_metadata_provider": (
        f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorization_provider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorization_metadata_provider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
STRATEGIES: Final = {
    "authentication_strategy": "authentication.strategy.{}AuthenticationStrategy",
    "authorization_strategy": "authorization.strategy.{}AuthorizationStrategy",
}
NO_CACHE: Final = "users and policies are in memory, so there is no cache of them"
NO_STATE: Final = (
    "each request is checked, and what is granted is kept for a connection until something changes"
)


def _key(default: Any, description: str, *, unserved: str = "", unit: str = "", **limits: Any) -> Any:
    """A field with what an operator has to know; `unserved`: why it has no effect."""
    extra: dict[str, Any] = {"hot": False}
    if unserved:
        extra["unserved"] = unserved
        description = f"{description} No effect: {unserved}."
    if unit:
        extra["unit"] = unit
    return Field(default, description=description, json_schema_extra=extra, **limits)


class AccessSettings(SettingsModel):
    """The keys of access control."""

    authentication_enabled: bool = _key(False, "Check who asks: requests have to be signed by a user.")
    authentication_provider: str = _key("", "Empty or RocketMQ's default class.")
    authentication_metadata_provider: str = _key("", "Empty or RocketMQ's local class: users are kept here.")
    authentication_strategy: str = _key(
        "", "Empty or one of RocketMQ's two classes: either way each signature is checked."
    )
    authentication_whitelist: str = _key("", "Request codes that need no signature, separated by commas.")
    init_authentication_user: SecretStr = _key(
        SecretStr(""),
        'The first super user, as {"username":"...","password":"..."}; made at the start if the name is not taken.',
    )
    inner_client_authentication_credentials: SecretStr = _key(
        SecretStr(""),
        'Who this server signs as, as {"accessKey":"...","secretKey":"..."}; made a super user in the same way.',
    )
    authorization_enabled: bool = _key(False, "Check what who asks may do, by policies.")
    authorization_provider: str = _key("", "Empty or RocketMQ's default class.")
    authorization_metadata_provider: str = _key(
        "", "Empty or RocketMQ's local class: policies are kept here."
    )
    authorization_strategy: str = _key(
        "", "Empty or one of RocketMQ's two classes: either way changes count at once."
    )
    authorization_whitelist: str = _key("", "Request codes for which policies are not asked.")
    auth_compat: Literal["", "5.3.3"] = _key(
        "",
        "5.3.3: decide as that release does, where it is wrong, too (the order of policies, forgotten codes). Ours.",
    )
    auth_replay_protection: Literal["off", "accepted", "required"] = _key(
        "accepted",
        "accepted: a request that says when it was signed, as clients of Aerobee do, is let in once, and in time; "
        "others are as in RocketMQ. required: there are no others. off: nobody looks. Ours.",
    )
    auth_replay_required_users: str = _key(
        "", "Users for whom it is required in any case, separated by commas. Ours."
    )
    auth_replay_window_millis: int = _key(
        60_000,
        "How far the clocks of client and server may be apart where it is looked at. Ours.",
        unit="ms",
        ge=1_000,
        le=86_400_000,
    )
    access_file_path: SettingsPathText = _key(
        "",
        "File of users and policies. Servers of one machine may share one, and its key. Empty: config/access.json of "
        "the store folder; of a nameserver access.json beside its key-value settings. Ours.",
    )
    access_key_path: SettingsPathText = _key(
        "",
        "Key that seals the secrets of users on disk. Empty: a file beside the folder that holds them. Ours.",
    )
    access_audit_path: SettingsPathText = _key(
        "",
        "Audit log, JSON lines. Empty: a file beside the folder that holds the users; off: none is written. Ours.",
    )
    access_audit_file_size: int = _key(
        64 << 20, "Size at which the audit log begins a new file. Ours.", unit="bytes", ge=4096, le=2**40
    )
    access_audit_files: int = _key(8, "Files of it, the oldest goes. Ours.", ge=1, le=1000)
    proxy_protocol_from: str = _key(
        "",
        "Addresses and networks of proxies, separated by commas: each connection from there has to begin with a PROXY"
        " protocol header, and counts as its source's. Empty: nobody is believed. Ours.",
    )
    metrics_prom_exporter_token_path: SettingsPathText = _key(
        "",
        "File with the token that metrics and the details of health are shown to, mode 0600. Empty: with access control"
        " they are shown to nobody but this machine, where metricsPromExporterHost is it, and to certificates. Ours.",
    )
    user_cache_max_num: int = _key(1_000, "Users in the cache.", unserved=NO_CACHE)
    user_cache_expired_second: int = _key(600, "Age of users there.", unserved=NO_CACHE, unit="s")
    user_cache_refresh_second: int = _key(60, "Pause between looks at them.", unserved=NO_CACHE, unit="s")
    acl_cache_max_num: int = _key(1_000, "Policies in the cache.", unserved=NO_CACHE)
    acl_cache_expired_second: int = _key(600, "Age of policies there.", unserved=NO_CACHE, unit="s")
    acl_cache_refresh_second: int = _key(60, "Pause between looks at them.", unserved=NO_CACHE, unit="s")
    stateful_authentication_cache_max_num: int = _key(
        10_000, "Connections with a known user.", unserved=NO_STATE
    )
    stateful_authentication_cache_expired_second: int = _key(
        60, "How long they are known.", unserved=NO_STATE, unit="s"
    )
    stateful_authorization_cache_max_num: int = _key(10_000, "Decisions that are kept.", unserved=NO_STATE)
    stateful_authorization_cache_expired_second: int = _key(
        60, "How long they are kept.", unserved=NO_STATE, unit="s"
    )

    @field_validator(*PROVIDERS)
    @classmethod
    def _no_plugins(cls, value: str, info: Any) -> str:
        if value not in ("", known := PROVIDERS[info.field_name]):
            raise ValueError(f"plug-ins are not served; leave it empty, or write {known}")
        return value

    @field_validator(*STRATEGIES)
    @classmethod
    def _no_strategies(cls, value: str, info: Any) -> str:
        known = [f"{AUTH}.{STRATEGIES[info.field_name].format(kind)}" for kind in ("Stateless", "Stateful")]
        if value and value not in known:
            raise ValueError(f"must be empty or one of {', '.join(known)}")
        return value

    @field_validator("authentication_whitelist", "authorization_whitelist")
    @classmethod
    def _codes(cls, value: str) -> str:
        listed_codes(value)
        return value

    @field_validator("proxy_protocol_from")
    @classmethod
    def _proxies(cls, value: str) -> str:
        Networks(value)
        return value

    @field_validator("init_authentication_user")
    @classmethod
    def _user(cls, value: SecretStr) -> SecretStr:
        user_of(value)
        return value

    @field_validator("inner_client_authentication_credentials")
    @classmethod
    def _credentials(cls, value: SecretStr) -> SecretStr:
        credentials_of(value)
        return value


# Wire names of all of them: who could change them by request could turn access control off.
ACCESS_KEYS: Final = frozenset(info.alias or name for name, info in AccessSettings.model_fields.items())


def listed_codes(text: str) -> frozenset[int]:
    """Request codes, separated by commas. ValueError names what is none."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if not part.isascii() or not part.isdigit():
            raise ValueError(f"{part!r} is not a request code; write numbers, separated by commas")
    return frozenset(map(int, parts))


def listed_names(text: str) -> frozenset[str]:
    """Names, separated by commas."""
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def user_of(text: SecretStr) -> tuple[str, str] | None:
    """Name and secret of the first user; None when none is set."""
    return _pair(text, "username", "password")


def credentials_of(text: SecretStr) -> tuple[str, str] | None:
    """Access key and secret key of a server; None when none are set."""
    return _pair(text, "accessKey", "secretKey")


def _pair(text: SecretStr, *names: str) -> tuple[str, str] | None:
    """Two texts of a JSON object. The value is not shown in what is raised."""
    plain = text.get_secret_value()
    if not plain.strip():
        return None
    form = "{" + ",".join(f'"{name}":"..."' for name in names) + "}"
    try:
        read = json.loads(plain)
        first, second = [read[name] for name in names]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"is not JSON of the form {form}") from None
    if not all(isinstance(one, str) and one.strip() for one in (first, second)):
        raise ValueError(f"needs two texts that are not blank, as {form}")
    return first, second
