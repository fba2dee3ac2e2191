"""The role of the settings, and its change."""

import asyncio
from pathlib import Path

import pytest

from aerobee_broker.lives.fixed_role import FixedRole
from aerobee_broker.lives.role import Role, settings_of
from aerobee_broker.main import load_config
from aerobee_broker.settings.config import BrokerConfig
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_service.settings.settings import SettingsError

AS_SLAVE = {"brokerRole": "SLAVE", "brokerId": "2"}


async def changed(roles: FixedRole, settings: dict[str, str]) -> str:
    return await roles.change(settings, "10.0.0.2:10911", "10.0.0.2:10912")


async def test_it_is_that_of_the_settings_until_an_operator_wants_another() -> None:
    roles = FixedRole(BrokerConfig())
    first = await roles.first()
    assert first == Role(True)
    waiting = asyncio.create_task(roles.next(first))
    await asyncio.sleep(0)
    assert not waiting.done()
    said = await changed(roles, AS_SLAVE)
    assert "no settings file" in said
    assert "--set brokerId=2 --set brokerRole=SLAVE" in said
    role = await waiting
    assert role[:5] == (False, 0, 2, "10.0.0.2:10911", "10.0.0.2:10912")
    config = settings_of(BrokerConfig(), role)
    assert (config.is_slave, config.broker_id) == (True, 2)


@pytest.mark.parametrize("name", ["broker.conf", "broker.toml"])
async def test_the_file_says_the_new_role_so_that_the_next_start_has_it(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("# ours\nbrokerId = 0\n")
    roles = FixedRole(load_config(file, {}), file, read_again=lambda: load_config(file, {}))
    assert await changed(roles, AS_SLAVE) == ""
    again = load_config(file, {})
    assert (again.broker_role, again.broker_id) == ("SLAVE", 2)
    assert "# ours" in file.read_text()
    assert await changed(roles, {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}) == ""
    assert load_config(file, {}).in_sync_replicas == 2


async def test_who_asks_is_told_that_the_command_line_says_something_else(tmp_path: Path) -> None:
    file, words = tmp_path / "broker.conf", {"brokerRole": "ASYNC_MASTER"}
    file.write_text("")
    roles = FixedRole(load_config(file, words), file, read_again=lambda: load_config(file, words))
    assert "the command line says something else for brokerRole:" in await changed(roles, AS_SLAVE)


async def test_what_cannot_be_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerId = 0\n")
    roles = FixedRole(load_config(file, {}), file)
    for settings in ({"brokerRole": "SLAVE"}, {"brokerRole": "KING"}, {"listenPort": "1"}):
        with pytest.raises(RequestError) as refused:
            await changed(roles, settings)
        assert refused.value.code == ResponseCode.INVALID_PARAMETER
    assert file.read_text() == "brokerId = 0\n"
    gone = FixedRole(BrokerConfig(), tmp_path)  # a folder
    with pytest.raises(RequestError, match="the role stays: "):
        await changed(gone, AS_SLAVE)
    assert await gone.first() == await roles.first() == Role(True)


async def test_a_worker_of_a_service_keeps_its_role() -> None:
    with pytest.raises(RequestError, match="workers") as refused:
        await changed(FixedRole(BrokerConfig(), refusal="one of several workers"), AS_SLAVE)
    assert refused.value.code == ResponseCode.NO_PERMISSION


def test_a_master_that_was_a_slave_waits_for_slaves_as_its_settings_say() -> None:
    alone = BrokerConfig(broker_role="SLAVE", broker_id=3)
    assert settings_of(alone, Role(True)).broker_role == "ASYNC_MASTER"
    paired = alone.model_copy(update={"in_sync_replicas": 2})
    assert settings_of(paired, Role(True, epoch=4)).broker_role == "SYNC_MASTER"
    assert settings_of(paired, Role(False, member=3)) is paired
    of_master = settings_of(BrokerConfig(), Role(False, member=7))
    assert (of_master.broker_role, of_master.broker_id) == ("SLAVE", 7)
    with pytest.raises(SettingsError, match="brokerId"):
        settings_of(BrokerConfig(), Role(False, member=0))
