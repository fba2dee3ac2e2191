"""The election that the settings ask for, with etcd.

Touches  the identity of the store, which is made at the first start; certificates, reading.
"""

from functools import partial
from typing import Final

from aerobee_broker.election.election import Election
from aerobee_broker.settings.config import BrokerConfig, nameserver_addresses
from aerobee_broker.settings.identity import identity_of_store
from aerobee_proto.errors import AerobeeError
from aerobee_service.tls.contexts import load_client
from aerobee_service.tls.live_context import LiveContext, follow
from aerobee_store.disk.io import DiskIo

__all__ = ["ElectionUnavailable", "election_of"]

CALLS_PER_LEASE: Final = (
    3  # a call that takes longer than its part of the time comes too late for the next renewal
)


class ElectionUnavailable(AerobeeError):
    """There is nothing to ask etcd with."""


def election_of(config: BrokerConfig) -> Election:
    """The election of this broker; nothing is asked yet. To be called in the event loop.

    Raises ElectionUnavailable, TlsUnusable, StoreError, OSError.
    """
    try:
        from aerobee_broker.election.etcd import Etcd
    except ImportError as missing:
        raise ElectionUnavailable(
            f"electionEndpoints needs a package that is not installed ({missing.name}): install aerobee[election]"
        ) from missing
    io = DiskIo()
    root = config.store_path_root_dir
    io.make_folder(root)
    tls = LiveContext("election", partial(load_client, config)) if config.election_tls else None
    etcd = Etcd(
        nameserver_addresses(config.election_endpoints),
        timeout_s=config.election_lease_millis / 1000 / CALLS_PER_LEASE,
        user=config.election_user,
        password=config.election_password.get_secret_value(),
        tls=None if tls is None else tls.context,
    )
    return Election(
        config,
        etcd,
        store=identity_of_store(root, io),
        close_register=etcd.close,
        beside=None if tls is None else lambda: follow([tls]),
    )
