"""A network of the test's own, whose members can be cut off as if their cables were pulled, both ways or one way.

Touches  network namespaces and a bridge of this machine, all of which go away with the block; needs Linux, root, `ip`.

    hub     this machine's own end: tests, clients, nameservers (`hub`), and etcd at an address of its own (`etcd`)
    member  a namespace (`space(member)`) with one address

A cut is silent: what is sent goes nowhere, and nobody is told. One way it is made by giving the sender a neighbour
that is not there; both ways by taking the member's end off the bridge.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

__all__ = ["Network", "network", "why_no_network"]

NOWHERE: Final = "02:00:00:00:00:fe"  # the address of no machine
# Without one of its own a bridge takes that of one of its cables, and another one whenever a cable goes: members then
# do not reach the hub for up to 45 s, until they ask anew where it is.
HUB: Final = "02:00:00:00:00:01"


class NoNetwork(Exception):
    """Namespaces cannot be made here; the text says why."""


class Network:
    """Members are numbers from 1 on."""

    def __init__(self, members: Sequence[int]) -> None:
        number = os.getpid()
        self._name = f"ae{number:x}"
        self._subnet = f"10.{210 + number % 40}.{number // 40 % 250}"
        self._members = list(members)
        self.hub = f"{self._subnet}.1"
        self.etcd = f"{self._subnet}.2"

    def open(self) -> None:
        """Make it. NoNetwork."""
        bridge = self._name
        _ip("link", "add", bridge, "address", HUB, "type", "bridge", "stp_state", "0", "forward_delay", "0")
        for address in (self.hub, self.etcd):
            _ip("addr", "add", f"{address}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for member in self._members:
            space, here = self.space(member), self._cable(member)
            _ip("netns", "add", space)
            _ip("link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", here, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(member)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")

    def close(self) -> None:
        """Whatever of it there is goes."""
        for member in self._members:
            _ip("link", "del", self._cable(member), must=False)
            _ip("netns", "del", self.space(member), must=False)
        _ip("link", "del", self._name, must=False)

    def space(self, member: int) -> str:
        """The name of its namespace."""
        return f"{self._name}-{member}"

    def _cable(self, member: int) -> str:
        return f"{self._name}-{member}"

    def address(self, member: int) -> str:
        """Where a member is."""
        return f"{self._subnet}.{10 + member}"

    # --- cuts -------------------------------------------------------------------------------------------------

    def cut(self, member: int) -> None:
        """Both ways, from everybody."""
        _ip("link", "set", self._cable(member), "nomaster")

    def cut_what_it_says(self, member: int) -> None:
        """It hears everybody, and nobody hears it."""
        for address in self._others(member):
            self._lose(member, address)

    def cut_what_it_hears(self, member: int) -> None:
        """Everybody hears it, and it hears nobody."""
        self._lose(None, self.address(member))
        for other in self._members:
            if other != member:
                self._lose(other, self.address(member))

    def cut_from_etcd(self, member: int) -> None:
        """It hears etcd, and is not heard there; everybody else is as before."""
        self._lose(member, self.etcd)

    def heal(self, member: int) -> None:
        """Everything is as at the beginning, for this member."""
        _ip("link", "set", self._cable(member), "master", self._name)
        for address in self._others(member):
            self._find(member, address)
        for other in (None, *(one for one in self._members if one != member)):
            self._find(other, self.address(member))

    def _others(self, member: int) -> list[str]:
        return [self.hub, self.etcd, *(self.address(one) for one in self._members if one != member)]

    def _lose(self, member: int | None, address: str) -> None:
        _ip(
            *self._at(member),
            "neigh",
            "replace",
            address,
            "lladdr",
            NOWHERE,
            "nud",
            "permanent",
            "dev",
            self._device(member),
        )

    def _find(self, member: int | None, address: str) -> None:
        _ip(*self._at(member), "neigh", "del", address, "dev", self._device(member), must=False)

    def _at(self, member: int | None) -> list[str]:
        return [] if member is None else ["-n", self.space(member)]

    def _device(self, member: int | None) -> str:
        return self._name if member is None else "eth0"


def _ip(*words: str, must: bool = True) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode and must:
        raise NoNetwork(f"ip {' '.join(words)}: {done.stderr.strip()}")


def why_no_network() -> str | None:
    """Why networks cannot be cut here; None: they can."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "network namespaces are Linux's, and made with `ip` (iproute2), which is not here"
    if os.geteuid() != 0:
        return "network namespaces are made by root alone"
    tried = Network([1])
    try:
        tried.open()
    except NoNetwork as refused:
        return f"network namespaces are not allowed here: {refused}"
    finally:
        tried.close()
    return None


@contextmanager
def network(members: Sequence[int]) -> Iterator[Network]:
    """One for these members. NoNetwork."""
    made = Network(members)
    try:
        made.open()
        yield made
    finally:
        made.close()
