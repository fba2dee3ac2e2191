"""The part that a broker plays in its set, and where that comes from.

Touches  nothing.

A set is the brokers that share a name; a member is one of them. A process has one life after the other: each is a
broker with one role, which ends when another role is wanted.

    epoch    number of a mastership, one more with each change of the master; 0: a set without an election
    member   the number within the set: brokerId. A master registers as 0 all the same, as clients know masters by that

Invariants
- A role never changes: another role is another life.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from aerobee_broker.settings.config import BrokerConfig
from aerobee_service.settings.settings import apply_changes

__all__ = ["ROLE_KEYS", "Role", "RoleControl", "RoleSource", "settings_of"]

# Settings that a role may bring along, by their outside names. None of them is hot.
ROLE_KEYS: Final = frozenset(
    {"brokerRole", "brokerId", "inSyncReplicas", "minInSyncReplicas", "haMasterAddress"}
)
_ORIGIN: Final = "of the role"


class Role(NamedTuple):
    """What one life is. `settings` are those that come with the role, by their outside names, over those in use."""

    is_master: bool
    epoch: int = 0
    member: int = 0
    # Of a slave: where its master answers requests and gives its log, as far as that is known already; "" is not.
    master_addr: str = ""
    master_ha_addr: str = ""
    settings: tuple[tuple[str, str], ...] = ()


class RoleSource(Protocol):
    """Who decides about roles: the settings and their operator, or an election. It outlives lives."""

    async def first(self) -> Role:
        """The role of the first life."""
        ...

    async def next(self, role: Role) -> Role:
        """Return when a life with this role has to end, with the role of the next one. May be cancelled."""
        ...


class RoleControl(Protocol):
    """Where an operator's wish for another role goes."""

    @property
    def refusal(self) -> str:
        """Why there is to be no change; "": there may be."""
        ...

    async def change(
        self, settings: Mapping[str, str], master_addr: str, master_ha_addr: str, *, is_forced: bool = False
    ) -> str:
        """Let the next life begin soon, with these of ROLE_KEYS. What there is to say about the next start of the
        process: "" when it has the same role. RequestError when there is to be no change. `is_forced`: also where
        messages are lost by it."""
        ...


def settings_of(config: BrokerConfig, role: Role) -> BrokerConfig:
    """The settings of a life with this role, made of those in use. SettingsError when they do not go together.

    A master that was a slave by its settings waits for slaves if these say for how many.
    """
    if role.settings:
        config = apply_changes(config, dict(role.settings), origin=_ORIGIN)
    if role.is_master != config.is_slave:
        return config
    if role.is_master:
        waits = max(config.in_sync_replicas, config.min_in_sync_replicas) > 1
        changes = {"brokerRole": "SYNC_MASTER" if waits else "ASYNC_MASTER"}
    else:
        changes = {"brokerRole": "SLAVE", "brokerId": str(role.member)}
    return apply_changes(config, changes, origin=_ORIGIN)
