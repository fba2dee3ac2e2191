"""A master and its slaves under faults, with the link that RocketMQ has."""

import json
from collections.abc import Mapping
from typing import Any, Final

from aerobee_proto.codes import RequestCode
from aerobee_remoting.ends.client import RemotingClient
from simulation.cluster import BrokerHost, BrokerSet
from simulation.copies import Copies
from simulation.ledger import Broken
from simulation.scenario import HEALED_WITHIN_S, Simulation
from simulation.set_faults import SetFaults
from simulation.work import ask_until_answered, group_at

__all__ = ["PairSimulation"]

SET: Final = "set"
TABLES_WITHIN_S: Final = 15.0  # tables of a slave are its master's


class PairSimulation(Simulation):
    """One run of one seed."""

    set: BrokerSet
    copies: Copies

    def make_brokers(self, settings: dict[str, Any]) -> None:
        chance, cluster = self.chance, self.cluster
        copies = chance.choice((1, 2, 2, 2, 3))
        slaves = chance.choice((1, 1, 2)) if copies < 3 else 2
        common = {
            **settings,
            **self.link_settings(),
        }
        of_master: dict[str, Any] = {"broker_role": "SYNC_MASTER" if copies > 1 else "ASYNC_MASTER"}
        if copies > 1:
            of_master |= {
                "in_sync_replicas": copies,
                "min_in_sync_replicas": chance.randint(1, copies),
                "enable_auto_in_sync_replicas": chance.random() < 0.3,
            }
        members = [cluster.add_broker(f"{SET}-0", **common, **of_master)]
        flush = chance.choice(("SYNC_FLUSH", "SYNC_FLUSH", "ASYNC_FLUSH"))
        for number in range(1, slaves + 1):
            role = {"broker_role": "SLAVE", "broker_id": number, "flush_disk_type": flush}
            members.append(cluster.add_broker(f"{SET}-{number}", **common, **role))
        self.set = self.target = BrokerSet(members)
        self.copies = Copies(self.world, self.set, common["mapped_file_size_commit_log"])
        if copies > 1:
            weakened = of_master["enable_auto_in_sync_replicas"]
            self.copies.promised = of_master["min_in_sync_replicas"] if weakened else copies
        self.ledger.witness = self.copies.witness
        self.faults = SetFaults(cluster, self.ledger, self.world.chance("faults"), self.set, self.copies)
        for host in members:
            self.faults.supervise(host, host.start)
        self.copies.look()

    def link_settings(self) -> dict[str, Any]:
        """Those of members that follow each other."""
        chance = self.chance
        return {
            "broker_name": SET,
            "register_name_server_period": 10_000,
            "slave_read_enable": True,
            "ha_send_heartbeat_interval": chance.choice((500, 2000)),
            "ha_housekeeping_interval": chance.choice((3000, 10_000)),
            "ha_transfer_batch_size": chance.choice((1024, 32_768)),
            "slave_timeout": chance.choice((300, 1500)),
        }

    @property
    def master(self) -> BrokerHost:
        return self.set.master

    async def _make_topics(self, remote: RemotingClient) -> None:
        """And groups, for readers that commit at slaves: those make none."""
        await super()._make_topics(remote)
        for host in self.set.members:
            body = json.dumps({"groupName": group_at(host)}).encode()
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await ask_until_answered(remote, self.target.broker_addr, code, {}, body)

    def start_clients(self) -> None:
        super().start_clients()
        for slave in self.set.slaves:
            self.work.start_plain_reader(slave, f"reader of {slave.name}", commits=False, member=slave)

    def check_brokers(self) -> None:
        """Slaves have what their master has: the log, what readers find there, and the tables."""
        slaves = self.set.slaves
        self.until(lambda: all(map(self._has_all, slaves)), HEALED_WITHIN_S, "slaves have the whole log")
        for slave in slaves:
            self.copies.compare(slave, whole=True)
        for slave in slaves:
            if slave.settings["slave_read_enable"]:
                self._compare_queues(slave)
        for slave in slaves:
            self.until(
                lambda slave=slave: not self._differing(slave),  # type: ignore[misc]
                TABLES_WITHIN_S,
                lambda slave=slave: f"{slave.name} has the tables: {self._differing(slave)}",  # type: ignore[misc]
            )

    def _compare_queues(self, slave: BrokerHost) -> None:
        """Broken when readers find something else at the slave than at the master."""
        theirs, _ = self.read_all(self.master)
        while True:
            logs, begins = self.read_all(slave)
            assert slave.serving is not None
            is_partial = slave.serving.parts.store.min_physical_offset > 0  # it began with the last file
            differing = ""
            for queue, records in logs.items():
                expected = theirs[queue]
                if begins[queue] or is_partial:
                    expected = expected[len(expected) - len(records) :]
                if records != expected:
                    differing = (
                        f"{len(records)} messages of {queue} at {slave.name}, {len(expected)} at the master"
                    )
            if not differing:
                return
            before, (theirs, _) = theirs, self.read_all(self.master)
            if theirs == before:  # else a delayed message has come meanwhile
                raise Broken(differing)

    def _differing(self, slave: BrokerHost) -> str:
        theirs, own = _tables(self.master), _tables(slave)
        return "; ".join(
            f"{name}: {key} is {own[name].get(key)}, the master's {value.get(key)}"
            for name, value in theirs.items()
            for key in sorted({*value, *own[name]})
            if own[name].get(key) != value.get(key)
        )

    def _has_all(self, slave: BrokerHost) -> bool:
        ends = [
            host.serving.parts.store.confirmed_offset
            for host in (slave, self.master)
            if host.is_serving and host.serving is not None
        ]
        return len(ends) == 2 and ends[0] == ends[1]


def _tables(host: BrokerHost) -> dict[str, dict[str, Any]]:
    assert host.serving is not None
    parts = host.serving.parts
    tables = (parts.topics, parts.groups, parts.offsets, parts.request_modes, parts.delay_offsets)
    return {
        f"{table.file_name} {name}": {str(key): part for key, part in dict(value).items()}
        if isinstance(value, Mapping)
        else {"": value}
        for table in tables
        for name, value in table.to_json().items()
        if name != "dataVersion"  # of a table without entries it is the time of its making
    }
