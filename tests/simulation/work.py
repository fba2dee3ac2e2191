"""What clients do all the time, each in a process of its own: they send, read, commit, pop and end transactions.

Some are plain requests with one try, whose outcome is known exactly; the others are the product's own client.
All of them go on until `Work.is_closing`, whatever becomes of brokers, nameservers and connections.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from aerobee.client import Client
from aerobee.errors import ClientError
from aerobee.messages.message import Message, SendStatus
from aerobee.producing.producer import Producer
from aerobee.terms.config import ClientConfig
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from aerobee_proto.records import StoredRecord, decode_records
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from aerobee_remoting.peers.errors import ConnectFailed, RemotingError
from simulation.cluster import BrokerHost, Cluster, Host, Target
from simulation.ledger import Broken, Ledger, Queue, Sent
from system.popping import Popper, extra_infos
from system.running import Talker, send_request, text_of

__all__ = [
    "DELAYED",
    "GROUPED",
    "PLAIN",
    "POPPED",
    "QUEUES",
    "TRANSACTED",
    "Work",
    "ask_until_answered",
    "group_at",
    "read_queue",
]

# Topics by what they are for; each has as many queues.
PLAIN, BOUND, GROUPED, POPPED, DELAYED, TRANSACTED = (
    "Plain",
    "Bound",
    "Grouped",
    "Popped",
    "Delayed",
    "Transacted",
)
QUEUES: Final = {PLAIN: 2, BOUND: 1, GROUPED: 2, POPPED: 1, DELAYED: 1, TRANSACTED: 1}
READERS: Final = "plain-readers"
MEMBERS: Final = "members"
POPPERS: Final = "poppers"
GIVEN: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})  # of offsets
NONE_HERE: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)


class Work:
    """All clients of one simulation."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self.cluster = cluster
        self.ledger = ledger
        self.is_sending = True
        self.is_closing = False
        self._bodies = 0
        # Mean seconds between two sends of a client.
        self.pause_s = 0.15
        self.poll_s = 0.2  # of readers where no pulls are held
        self.busy = 0  # senders with a message whose outcome is open

    def body(self, chance: Random, who: str) -> bytes:
        self._bodies += 1
        size = chance.choice((0, 0, 20, 20, 100, 100, 400, 1500))
        return f"{who}-{self._bodies}-".encode() + chance.randbytes(size // 2).hex().encode()

    def _has_begun(self, task: "asyncio.Task[None]") -> None:
        """This one has a message, or will have."""
        self.busy += 1

        def over(_: object) -> None:
            self.busy -= 1

        task.add_done_callback(over)

    # --- plain requests ---------------------------------------------------------------------------------------

    def start_plain_sender(self, broker: Target, number: int) -> Host:
        name = f"sender-{number}"
        chance = self.cluster.world.chance(name)

        async def main() -> None:
            remote = RemotingClient(
                config=RemotingClientConfig(codec=chance.choice(("json", "rocketmq", "auto")))
            )
            sending: set[asyncio.Task[None]] = set()
            while self.is_sending:
                await asyncio.sleep(chance.expovariate(1 / self.pause_s))
                if self.is_sending and len(sending) < 16:
                    kind = self._send_batch if chance.random() < 0.3 else self._send_one
                    task = asyncio.create_task(kind(remote, broker, name, chance))
                    sending.add(task)
                    self._has_begun(task)
                    task.add_done_callback(sending.discard)
            await asyncio.gather(*sending)
            await remote.close()

        return self.cluster.start_client(name, main)

    async def _send_one(self, remote: RemotingClient, broker: Target, who: str, chance: Random) -> None:
        topic = chance.choice((PLAIN, PLAIN, GROUPED, POPPED))
        queue_id = chance.randrange(QUEUES[topic])
        body = self.body(chance, who)
        keys = {"KEYS": f"key-{chance.randrange(9)}", "UNIQ_KEY": f"U{self._bodies:030}"}
        request = send_request(topic, body, queue_id=queue_id, properties=text_of(keys))
        sent = self.ledger.sending(body, topic)
        if chance.random() < 0.05:
            await _tell(remote, broker, request)
            return
        answer = await self._ask(remote, broker, request, [sent])
        if answer is not None:
            self._acknowledge([sent], broker, topic, answer)

    async def _send_batch(self, remote: RemotingClient, broker: Target, who: str, chance: Random) -> None:
        topic, queue_id = PLAIN, chance.randrange(QUEUES[PLAIN])
        bodies = [self.body(chance, who) for _ in range(chance.randrange(2, 9))]
        sent = [self.ledger.sending(body, topic) for body in bodies]
        request = send_request(
            topic, encode_batch([BatchEntry(0, body, "") for body in bodies]), queue_id=queue_id, batch="true"
        )
        request.code = RequestCode.SEND_BATCH_MESSAGE
        answer = await self._ask(remote, broker, request, sent)
        if answer is not None:
            self._acknowledge(sent, broker, topic, answer)

    async def _ask(
        self, remote: RemotingClient, broker: Target, request: Command, sent: list[Sent]
    ) -> Command | None:
        """The answer that says where the messages are; None when there is none."""
        self.busy += 1
        try:
            answer = await remote.request(
                broker.broker_addr, request.code, request.ext_fields, request.body, timeout=3.0
            )
        except RemotingError as failed:
            for one in sent:
                self.ledger.lose_sight(one, failed)
            return None
        finally:
            self.busy -= 1
        if answer.code != ResponseCode.SUCCESS:
            for one in sent:
                self.ledger.lose_sight(one, answer.remark)
            return None
        return answer

    def _acknowledge(self, sent: list[Sent], broker: Target, topic: str, answer: Command) -> None:
        first = int(answer.ext["queueOffset"])
        for number, (one, stored_as) in enumerate(zip(sent, answer.ext["msgId"].split(","), strict=True)):
            place = (broker.broker_name, topic, int(answer.ext["queueId"]), first + number)
            self.ledger.acknowledge(one, place, stored_as)

    def start_plain_reader(
        self,
        broker: Target,
        name: str = "reader",
        *,
        topics: tuple[str, ...] = (PLAIN, BOUND),
        commits: bool = True,
        member: BrokerHost | None = None,
        saw: Callable[[StoredRecord], None] = lambda record: None,
    ) -> Host:
        """Reads every queue of these topics from its beginning, and commits how far it is; what reads at a slave, which
        holds no pulls while it has its master, does not, but commits at this `member` for a group of its own. `saw` is
        told of each message."""
        chance = self.cluster.world.chance(name)
        floors: dict[Queue, tuple[object, int]] = {}

        async def follow(remote: RemotingClient, topic: str, queue_id: int) -> None:
            offset = 0
            queue = (broker.broker_name, topic, queue_id)
            while not self.is_closing:
                try:
                    answer = await remote.request(
                        broker.broker_addr,
                        RequestCode.PULL_MESSAGE,
                        Talker.pull_request(
                            topic,
                            offset,
                            queueId=queue_id,
                            consumerGroup=READERS,
                            maxMsgNums=chance.choice((1, 8, 32)),
                            sysFlag=6,
                            suspendTimeoutMillis=1000,
                        ).ext_fields,
                        timeout=6.0,
                    )
                    if answer.code == ResponseCode.SUCCESS:
                        for record in decode_records(answer.body):
                            saw(record)
                            self.ledger.read((*queue, record.queue_offset), record.body)
                        offset = int(answer.ext["nextBeginOffset"])
                    elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
                        # A slave that is new has less than its master; one that was behind has more by and by.
                        offset = max(offset, int(answer.ext["nextBeginOffset"]))
                        await asyncio.sleep(0.2)
                    elif answer.code not in NONE_HERE or not commits:
                        await asyncio.sleep(self.poll_s)
                    if commits and chance.random() < 0.3:
                        await self._commit(remote, broker, queue, offset)
                    if member is not None and chance.random() < 0.1:
                        await self._commit_at(remote, member, queue, offset, floors)
                except RemotingError:
                    await asyncio.sleep(chance.random())

        async def main() -> None:
            remote = RemotingClient(config=RemotingClientConfig(codec="json"))
            await asyncio.gather(
                *(follow(remote, topic, queue_id) for topic in topics for queue_id in range(QUEUES[topic]))
            )
            await remote.close()

        return self.cluster.start_client(name, main)

    async def _commit(
        self, remote: RemotingClient, broker: Target, queue: tuple[str, str, int], offset: int
    ) -> None:
        fields = {"consumerGroup": READERS, "topic": queue[1], "queueId": str(queue[2])}
        asked_of = broker.process
        answer = await remote.request(broker.broker_addr, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        if answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND) and broker.process is asked_of:
            found = int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else None
            self.ledger.found_committed(READERS, queue, found)
        self.ledger.committing(READERS, queue, offset)
        answer = await remote.request(
            broker.broker_addr, RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": str(offset)}
        )
        if answer.code == ResponseCode.SUCCESS:
            self.ledger.committed(READERS, queue, offset)

    async def _commit_at(
        self,
        remote: RemotingClient,
        member: BrokerHost,
        queue: Queue,
        offset: int,
        floors: dict[Queue, tuple[object, int]],
    ) -> None:
        """Commit at one member of a set, which may be a slave. Broken: a group is not where it was there a moment ago,
        though nothing has ended since."""
        group = group_at(member)
        fields = {"consumerGroup": group, "topic": queue[1], "queueId": str(queue[2])}
        standing = self._standing_of(member)
        answer = await remote.request(member.broker_addr, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        known, floor = floors.get(queue, (None, 0))
        if known == standing == self._standing_of(member) and answer.code in GIVEN:
            found = int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else -1
            if found < floor:
                raise Broken(f"group {group} was at {floor} of {queue} at {member.name}, and is at {found}")
        answer = await remote.request(
            member.broker_addr, RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": str(offset)}
        )
        if answer.code == ResponseCode.SUCCESS and self._standing_of(member) == standing:
            floors[queue] = (standing, offset)

    def _standing_of(self, member: BrokerHost) -> object:
        """Another one after each end of a broker: what was committed a moment before may be forgotten by it."""
        return member.serving, sum(host.starts - host.is_up for host in self.cluster.brokers)

    def start_popper(self, broker: Target) -> Host:
        """Pops, and acknowledges most of what it gets."""
        name = "popper"
        chance = self.cluster.world.chance(name)

        async def main() -> None:
            remote = RemotingClient(config=RemotingClientConfig(codec="json"))
            while not self.is_closing:
                try:
                    await self._pop(remote, broker, chance)
                except RemotingError:
                    await asyncio.sleep(chance.random())
            await remote.close()

        return self.cluster.start_client(name, main)

    async def _pop(self, remote: RemotingClient, broker: Target, chance: Random) -> None:
        fields = Popper.fields(
            POPPED,
            consumerGroup=POPPERS,
            queueId=-1,
            maxMsgNums=chance.choice((1, 8, 32)),
            invisibleTime=2000,
            pollTime=1000,
            bornTime=0,
            initMode=0,
            order="false",
        )
        answer = await remote.request(broker.broker_addr, RequestCode.POP_MESSAGE, fields, timeout=6.0)
        if answer.code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.1)
            return
        for record in decode_records(answer.body):
            self.ledger.handled(POPPERS, record.body)
        if chance.random() < 0.1:
            return  # it comes back
        topics = {record.topic for record in decode_records(answer.body)}
        if topics != {POPPED}:
            return  # what came back is left: it comes once more
        for info in extra_infos(answer, POPPED, broker_name=broker.broker_name):
            parts = info.split()
            ext = Popper.fields(
                POPPED, consumerGroup=POPPERS, extraInfo=info, queueId=parts[-2], offset=parts[-1]
            )
            await remote.request(broker.broker_addr, RequestCode.ACK_MESSAGE, ext)

    # --- the product's client ---------------------------------------------------------------------------------

    def start_program(self, name: str, main: Callable[[Client, Random], Awaitable[None]]) -> Host:
        """A process with a client of ours."""
        cluster = self.cluster
        chance = cluster.world.chance(name)

        async def whole() -> None:
            config = ClientConfig(route_poll_s=5.0, heartbeat_s=5.0)
            async with Client(";".join(cluster.nameserver_addrs), config=config) as client:
                await main(client, chance)

        return cluster.start_client(name, whole)

    def start_administrator(self, made: dict[str, int]) -> Host:
        """Makes topics, and changes how many queues they have: `made` has what was answered with success."""

        async def main(client: Client, chance: Random) -> None:
            count = 0
            while not self.is_closing:
                await asyncio.sleep(chance.uniform(0.02, 0.3))
                try:
                    if not made or chance.random() < 0.7:
                        name, queues = f"Made{count}", chance.randint(1, 4)
                        count += 1
                        await client.admin.create_topic(name, queues=queues)
                    else:
                        name = chance.choice(sorted(made))
                        queues = made.pop(name) + 1  # if it fails nobody knows how many there are
                        await client.admin.update_topic(name, queues=queues)
                except ClientError:
                    continue
                made[name] = queues

        return self.start_program("administrator", main)

    def start_producer(self, number: int) -> Host:
        """Sends in all the ways that programs have."""
        name = f"producer-{number}"

        async def main(client: Client, chance: Random) -> None:
            ended: dict[bytes, bool] = {}

            def check(message: Message) -> bool | None:
                return ended.get(message.body)

            sending: set[asyncio.Task[None]] = set()
            producer = client.producer(
                f"{name}-group", check=check, send_timeout_s=chance.choice((3.0, 15.0))
            )
            async with producer:
                while not self.is_closing:
                    await asyncio.sleep(chance.expovariate(1 / self.pause_s))
                    if self.is_sending and len(sending) < 16:
                        task = asyncio.create_task(self._produce(producer, name, chance, ended))
                        sending.add(task)
                        self._has_begun(task)
                        task.add_done_callback(sending.discard)
                await asyncio.gather(*sending)

        return self.start_program(name, main)

    async def _produce(self, producer: Producer, who: str, chance: Random, ended: dict[bytes, bool]) -> None:
        body = self.body(chance, who)
        kind = chance.random()
        self.busy += 1
        try:
            if kind < 0.15:
                await self._transact(producer, body, chance, ended)
            elif kind < 0.3:
                sent = self.ledger.sending(body, DELAYED, None)
                if chance.random() < 0.5:
                    result = await producer.send(DELAYED, body, delay_level=chance.choice((1, 2)))
                else:
                    result = await producer.send(DELAYED, body, deliver_after=chance.choice((0.5, 1.5)))
                if result.status is SendStatus.OK:
                    self.ledger.acknowledge_somewhere(sent)
                else:
                    self.ledger.lose_sight(sent, result.status)
            else:
                topic, queue = chance.choice(((PLAIN, None), (BOUND, 0), (GROUPED, None)))
                sent = self.ledger.sending(body, topic, None)
                result = await producer.send(topic, body, queue=queue)
                if result.status is not SendStatus.OK:
                    self.ledger.lose_sight(sent, result.status)
                    return
                queue_of = result.queue
                place = (queue_of.broker_name, queue_of.topic, queue_of.queue_id, result.queue_offset)
                self.ledger.acknowledge(sent, place, result.offset_message_id)
        except ClientError as failed:
            self.ledger.lose_sight(self.ledger.sent[body], failed)
        finally:
            self.busy -= 1

    async def _transact(
        self, producer: Producer, body: bytes, chance: Random, ended: dict[bytes, bool]
    ) -> None:
        sent = self.ledger.sending(body, TRANSACTED, None)
        commits = chance.random() < 0.7
        sent.is_forbidden = not commits
        try:
            async with producer.transaction(TRANSACTED, body):
                ended[body] = commits
                if not commits:
                    raise _RolledBack  # noqa: TRY301  # that is how a program rolls back
        except _RolledBack:
            return
        self.ledger.acknowledge_somewhere(sent)

    def start_member(self, number: int) -> Host:
        """A member of a group."""
        name = f"member-{number}"

        async def main(client: Client, chance: Random) -> None:
            while not self.is_closing:
                try:
                    async with client.consumer(
                        MEMBERS, GROUPED, wait_for_topics=True, commit_s=1.0, rebalance_s=5.0, hold_s=1.0
                    ) as consumer:
                        waiting = asyncio.create_task(self._closing())
                        messages = asyncio.create_task(self._handle(consumer, chance))
                        await asyncio.wait({waiting, messages}, return_when=asyncio.FIRST_COMPLETED)
                        for task in (waiting, messages):
                            task.cancel()
                        await asyncio.gather(waiting, messages, return_exceptions=True)
                except ClientError:
                    await asyncio.sleep(1.0)

        return self.start_program(name, main)

    async def _handle(self, consumer: Any, chance: Random) -> None:
        async for message in consumer:
            self.ledger.handled(MEMBERS, message.body)
            if chance.random() < 0.02:
                await asyncio.sleep(chance.random())

    async def _closing(self) -> None:
        while not self.is_closing:  # noqa: ASYNC110  # whoever closes has no event loop
            await asyncio.sleep(0.25)


def group_at(member: BrokerHost) -> str:
    """The group that commits at this member alone."""
    return f"readers-at-{member.name}"


class _RolledBack(Exception):
    pass


async def _tell(remote: RemotingClient, broker: Target, request: Command) -> None:
    try:
        await remote.oneway(broker.broker_addr, request.code, request.ext_fields, request.body)
    except (ConnectFailed, RemotingError):
        return


async def ask_until_answered(
    remote: RemotingClient,
    addr: str,
    code: int,
    ext: dict[str, str],
    body: bytes = b"",
    within_s: float = 60.0,
) -> Command:
    """The first answer that is no refusal; TimeoutError when there is none."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                answer = await remote.request(addr, code, ext, body)
                if answer.code in (ResponseCode.SUCCESS, *NONE_HERE):
                    return answer
            except RemotingError:
                pass
            await asyncio.sleep(0.2)


async def read_queue(
    remote: RemotingClient, addr: str, topic: str, queue_id: int
) -> tuple[int, list[tuple[int, bytes]]]:
    """The first offset of a queue, and everything in it: offsets and bodies."""
    fields = {"topic": topic, "queueId": str(queue_id)}
    begin = int((await ask_until_answered(remote, addr, RequestCode.GET_MIN_OFFSET, fields)).ext["offset"])
    end = int((await ask_until_answered(remote, addr, RequestCode.GET_MAX_OFFSET, fields)).ext["offset"])
    found: list[tuple[int, bytes]] = []
    offset = begin
    while offset < end:
        ext = Talker.pull_request(topic, offset, queueId=queue_id, consumerGroup="checkers").ext_fields
        assert ext is not None
        answer = await ask_until_answered(remote, addr, RequestCode.PULL_MESSAGE, ext)
        if answer.code == ResponseCode.SUCCESS:
            found += [(record.queue_offset, record.body) for record in decode_records(answer.body)]
        following = int(answer.ext["nextBeginOffset"])
        assert following > offset, f"{topic} {queue_id}: {answer.code} at {offset} leads to {following}"
        offset = following
    return begin, found
