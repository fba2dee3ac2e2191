"""The routes that a client knows: asked for once, kept, and asked for again from time to time.

Touches  the nameservers.

Invariants
- One question per topic is on its way at a time; everybody who needs the route waits for that one.
- A known route is only replaced by a newer answer, never dropped because nameservers are silent.
- A route made from the template is kept where somebody wants to send, not where somebody wanted to read.
- Where one topic has another master, the routes of other topics at the old one are asked for, too.
- A nameserver that tells a route again that has led nowhere is not asked first the next time: it may be cut off itself.
"""

import asyncio
from collections.abc import Callable
from itertools import islice

from aerobee.errors import (
    UNKNOWN_TOPIC,
    ClientError,
    NameserverAnswer,
    NoBroker,
    NoRoute,
    NotPermitted,
)
from aerobee.net.answers import body_of
from aerobee.net.peers import Nameservers
from aerobee.terms.routes import (
    MASTER_ID,
    Route,
    master_addrs,
    near_names,
    plan_route,
    plan_template_route,
)
from aerobee_proto.bodies import TopicList, TopicRouteData
from aerobee_proto.codes import RequestCode
from aerobee_proto.names import TEMPLATE_TOPIC
from aerobee_service.logs.event_log import event_logger
from aerobee_service.turns.tasks import look_at

__all__ = ["RouteTable"]

# Until the nameservers know a topic that a send has made.
NEW_TOPIC_PAUSES_S = (0.02, 0.05, 0.1, 0.3)
OTHERS_MAX = 256  # routes that are asked for at once; more of them are, with time

log = event_logger("aerobee.client")


class RouteTable:
    """Topic -> Route."""

    def __init__(self, nameservers: Nameservers) -> None:
        self._nameservers = nameservers
        self._routes: dict[str, Route] = {}
        self._asking: dict[str, asyncio.Task[Route]] = {}
        # Called with each route that is new or has changed.
        self.listeners: list[Callable[[Route], None]] = []

    def cached(self, topic: str) -> Route | None:
        """The route if it is known already."""
        return self._routes.get(topic)

    def cached_publish(self, topic: str) -> Route | None:
        """The route if it is known already and has queues to publish to."""
        route = self._routes.get(topic)
        return route if route is not None and route.publish else None

    async def for_publish(self, topic: str) -> Route:
        """A route with queues to publish to.

        A topic that does not exist yet gets one made from the template topic, where a broker offers that.
        NoRoute or NoBroker otherwise.
        """
        route = self._routes.get(topic)
        if route is None or not route.publish:
            route = await self._ask_once(topic)
            if route.from_template:
                route = self._routes.get(topic) or self._keep(route)
        if not route.publish and not route.may_write:
            raise NotPermitted(topic, "queue that may be written", list(route.brokers), "w")
        if not route.publish:
            raise NoBroker(topic, "queue that may be written on a broker with a master", list(route.brokers))
        return route

    async def for_subscribe(self, topic: str) -> Route:
        """A route with queues to read from; NoRoute or NoBroker when there is none."""
        route = self._routes.get(topic)
        if route is None or not route.subscribe:
            route = await self._ask_once(topic, template=False)
        if not route.subscribe and not route.may_read:
            raise NotPermitted(topic, "queue that may be read", list(route.brokers), "r")
        if not route.subscribe:
            raise NoBroker(topic, "queue that may be read", list(route.brokers))
        return route

    def may_come_back(self, missing: NoRoute | NoBroker) -> bool:
        """Whether a route that is missing now may be there in a moment.

        A client that no nameserver has ever answered is not made to wait: its address is more likely to be wrong. A
        topic that there was a route for is not given up at once: while a set changes its master, all of its members
        may be away from the nameserver for a moment.
        """
        if isinstance(missing, NoBroker):
            return not isinstance(missing, NotPermitted)
        return self._nameservers.answered and (not missing.is_final or missing.topic in self._routes)

    def no_answer(self, topic: str) -> NoRoute:
        """What a caller is told whose time was over before a nameserver had answered."""
        return NoRoute(
            topic, [NameserverAnswer(addr, "no answer in time") for addr in self._nameservers.addrs]
        )

    def master_addr(self, topic: str, broker_name: str) -> str:
        """Address of the broker's master; NoBroker when the known route has none."""
        route = self._routes.get(topic)
        addr = route.brokers.get(broker_name, {}).get(MASTER_ID) if route else None
        if addr is None:
            raise NoBroker(topic, f"master of broker {broker_name}", list(route.brokers) if route else [])
        return addr

    def masters(self) -> set[str]:
        """Addresses of all masters known."""
        return master_addrs(self._routes.values())

    def all_addrs(self, *, of_templates: bool = True) -> set[str]:
        """Addresses of all brokers known, slaves included. Not all of a template's brokers get a topic that is made, so
        that one which leaves with the template is still there: without `of_templates` only those count that
        nameservers tell for the topics themselves."""
        return {
            addr
            for route in self._routes.values()
            if of_templates or not route.from_template
            for addrs in route.brokers.values()
            for addr in addrs.values()
        }

    def broker_name_of(self, addr: str) -> str | None:
        """Name of the broker at an address, if a known route has it."""
        for route in self._routes.values():
            for broker_name, addrs in route.brokers.items():
                if addr in addrs.values():
                    return broker_name
        return None

    async def refresh(self, topic: str) -> Route | None:
        """Ask again; the known route stays when nobody answers better. Never raises ClientError."""
        before = self._routes.get(topic)
        try:
            route = await self._ask_once(topic)
        except ClientError as failed:
            log.debug("client.route_not_refreshed", topic=topic, reason=str(failed))
            return before
        self._doubt(before, route)
        return route

    async def ask_again(self, topic: str) -> Route:
        """The route as nameservers tell it now; NoRoute when those that answer do not know the topic any more.

        For programs that must notice that a topic has gone; `refresh` goes on with what was known.
        """
        data, answers = await self._question(topic)
        if data is None:
            raise await self._no_route(topic, answers, creates_topics=None)
        return self._keep(plan_route(topic, data))

    def refresh_soon(self, topic: str) -> None:
        """Ask again without anybody waiting for it."""
        before = self._routes.get(topic)

        def done(task: asyncio.Task[Route]) -> None:
            if not task.cancelled() and task.exception() is None:
                self._doubt(before, task.result())

        self._ask_task(topic).add_done_callback(done)

    def _doubt(self, before: Route | None, now: Route) -> None:
        """Who asked again had a reason; the same answer as before is no help, and another nameserver may know more."""
        if before is not None and now == before:
            self._nameservers.turn()

    async def refresh_all(self) -> None:
        """Ask again for every known route."""
        for topic in list(self._routes):
            try:
                await self._ask_once(topic)
            except ClientError as failed:
                log.debug("client.route_not_refreshed", topic=topic, reason=str(failed))

    async def close(self) -> None:
        """Stop asking."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _ask_task(self, topic: str) -> asyncio.Task[Route]:
        """The question that is on its way, or a new one."""
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(topic), name=f"route of {topic}")
            self._asking[topic] = task
            task.add_done_callback(lambda _: self._asking.pop(topic, None))
            task.add_done_callback(look_at)  # who waited may have given up, and a failed refresh is no news
        return task

    async def _ask_once(self, topic: str, *, template: bool = True) -> Route:
        # This program sends to it, so it may be there: not every nameserver hears of it before the first answer leaves.
        pauses = () if template or topic not in self._routes else NEW_TOPIC_PAUSES_S
        route = await asyncio.shield(self._ask_task(topic))
        if not route.from_template or template:
            return route
        for pause_s in pauses:
            await asyncio.sleep(pause_s)
            route = await asyncio.shield(self._ask_task(topic))
            if not route.from_template:
                return route
        raise await self._no_route(topic, [], creates_topics=True)

    async def _ask(self, topic: str) -> Route:
        data, answers = await self._question(topic)
        if data is not None:
            return self._keep(plan_route(topic, data))
        if topic in self._routes and not self._routes[topic].from_template:
            return self._routes[topic]
        template, _ = await self._question(TEMPLATE_TOPIC)
        if template is not None:
            route = plan_template_route(topic, template)
            if route.publish:
                return self._keep(route) if topic in self._routes else route
        raise await self._no_route(topic, answers, creates_topics=self._template_offer(answers, template))

    async def _question(self, topic: str) -> tuple[TopicRouteData | None, list[NameserverAnswer]]:
        what = f"look up the route of topic {topic!r}"
        answer, answers = await self._nameservers.ask_until(
            what,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true"},
        )
        if answer is None:
            return None, answers
        return body_of(TopicRouteData, answer, what), answers

    def _keep(self, route: Route) -> Route:
        before = self._routes.get(route.topic)
        if before != route:
            self._routes[route.topic] = route
            if before is not None:
                self._look_at_others(before, route)
            for listener in list(self.listeners):
                listener(route)
        return route

    def _look_at_others(self, before: Route, now: Route) -> None:
        """A broker's master is that of all its topics."""
        moved = {
            name: addrs[MASTER_ID]
            for name, addrs in before.brokers.items()
            if MASTER_ID in addrs
            and now.brokers.get(name, {}).get(MASTER_ID, addrs[MASTER_ID]) != addrs[MASTER_ID]
        }
        others = (
            other.topic
            for other in self._routes.values()
            if any(other.brokers.get(name, {}).get(MASTER_ID) == addr for name, addr in moved.items())
        )
        for topic in list(islice(others, OTHERS_MAX)):
            self.refresh_soon(topic)

    @staticmethod
    def _template_offer(answers: list[NameserverAnswer], template: TopicRouteData | None) -> bool | None:
        return template is not None if _somebody_answered(answers) else None

    async def _no_route(
        self, topic: str, answers: list[NameserverAnswer], *, creates_topics: bool | None
    ) -> NoRoute:
        if not answers:
            answers = [NameserverAnswer(addr, UNKNOWN_TOPIC) for addr in self._nameservers.addrs]
        known = await self._known_topics() if _somebody_answered(answers) else None
        near = near_names(topic, known) if known else []
        return NoRoute(topic, answers, near, creates_topics, None if known is None else len(known))

    async def _known_topics(self) -> list[str] | None:
        try:
            answer = await self._nameservers.call(
                "list topics", RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
            )
        except ClientError:
            return None  # the question was about a route; that nobody lists topics is in its answers already
        return body_of(TopicList, answer).topic_list


def _somebody_answered(answers: list[NameserverAnswer]) -> bool:
    return any(answer.outcome == UNKNOWN_TOPIC for answer in answers)
