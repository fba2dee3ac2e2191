"""A store on a simulated disk, and nothing else: for tests of one store that need a kernel which forgets."""

from aerobee_store.store import MessageStore
from simulation.disk import SimDisk, SimIo
from simulation.threads import Threads
from simulation.world import Process, World
from store.workload import Clock, config

__all__ = ["Machine"]


class Machine:
    """One disk, and a store in one process after the other."""

    def __init__(self, seed: int) -> None:
        self._world = World(seed)
        self._clock = Clock()
        self.disk = SimDisk(self._world.chance("disk"))
        self.process = Process(self._world, "store", "host")

    def start(self) -> MessageStore:
        """An open store."""
        process = self.process = Process(self._world, "store", "host")
        store = MessageStore(config(), io=SimIo(self.disk, process, Threads(self._world)), clock=self._clock)
        store.open()
        return store

    def kill_and_start(self) -> MessageStore:
        """What the last store has left, opened anew."""
        self.process.kill()
        self.disk.process_ended()
        return self.start()
