"""What a caller must be allowed to do for a request: declared with its code, worked out for each request.

Touches  nothing.

    on_topic("topic", PUB)                          what the header field names; absent or empty: nothing
    on_topic("topic", SUB, of_retry=())             a retry topic is left out; else it counts as the group it belongs to
    on_groups("filter_groups", ",", GET)            each of a list
    on_cluster(UPDATE, "cluster_name")              the cluster named there, without a name this server's own
    on_groups_in(LockBatchBody, lambda body: [body.consumer_group], SUB)        what the body names
    ours(on_cluster(GET))                           asked by us: RocketMQ 5.3.3 asks nothing for it
    Open("why")                                  nothing at all

Of the actions of one need one is enough; of several needs each must be granted. The body is read once
(`Incoming.read`): what is judged is what the handler then works on.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple, TypeVar

import msgspec

from aerobee_proto.bodies import JsonBody
from aerobee_proto.names import RETRY_PREFIX, is_retry_topic
from aerobee_proto.requests import AnyIncoming

__all__ = [
    "CREATE",
    "DELETE",
    "GET",
    "PUB",
    "SUB",
    "UPDATE",
    "Action",
    "Kind",
    "Need",
    "Needs",
    "Open",
    "Rule",
    "need_of_topic",
    "needs_of",
    "on_cluster",
    "on_group",
    "on_groups",
    "on_groups_in",
    "on_topic",
    "on_topics",
    "on_topics_in",
    "ours",
]

B = TypeVar("B", bound=JsonBody)


class Kind(Enum):
    """Kinds of resources, as policies name them."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Action(Enum):
    """What may be done with a resource, as policies name it."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"


PUB: Final = Action.PUB
SUB: Final = Action.SUB
CREATE: Final = Action.CREATE
UPDATE: Final = Action.UPDATE
DELETE: Final = Action.DELETE
GET: Final = Action.GET


class Need(NamedTuple):
    """One of these actions on one resource. A cluster without a name is the one of the server that is asked."""

    kind: Kind
    name: str
    actions: tuple[Action, ...]


def need_of_topic(name: str, *actions: Action) -> Need:
    """One of these actions on a topic; a retry topic counts as the group whose it is."""
    if is_retry_topic(name):  # POP's newer ones have the topic behind the group, after a plus sign
        return Need(Kind.GROUP, name.removeprefix(RETRY_PREFIX).partition("+")[0], actions)
    return Need(Kind.TOPIC, name, actions)


class Rule(NamedTuple):
    """Where a request code names a resource, and what must be allowed there."""

    kind: Kind
    actions: tuple[Action, ...]
    field: str = ""  # of the typed header; "" without one
    separator: str = ""  # between the names in that field; "" when it holds one
    names: Callable[[AnyIncoming], Iterable[str]] | None = None  # that the body holds
    # Actions on the group whose retry topic is named; () leaves such a topic out, None: those on topics.
    of_retry: tuple[Action, ...] | None = None
    ours: bool = False  # RocketMQ 5.3.3 does not ask for it
    # Field of the group that RocketMQ 5.3.3 asks for instead of that whose retry topic is named, if it names one.
    official_group: str = ""

    def needed(self, request: AnyIncoming, *, as_official: bool = False) -> Iterator[Need]:
        """What this request needs by this rule. RequestError when a body cannot be read.

        `as_official`: as RocketMQ 5.3.3 asks, where ours asks for something else.
        """
        if self.names is not None:
            found = self.names(request) if request.body else ()
        elif self.field:
            text = getattr(request.header, self.field) or ""
            found = text.split(self.separator) if self.separator else (text,)
        else:
            found = ()
        nameless = self.kind is Kind.CLUSTER
        for name in found or ("",):
            if not name and not nameless:
                continue
            if self.kind is not Kind.TOPIC:
                yield Need(self.kind, name, self.actions)
            elif self.of_retry is None or not is_retry_topic(name):
                yield need_of_topic(name, *self.actions)
            elif self.of_retry:
                group = getattr(request.header, self.official_group) if self.official_group else ""
                if as_official and group and not group.isspace():
                    yield Need(Kind.GROUP, group, self.of_retry)
                else:
                    yield need_of_topic(name, *self.of_retry)

    def __str__(self) -> str:
        """For people, and for the table in docs/wire.md."""
        where = self.field or ("its own" if self.kind is Kind.CLUSTER else "of the body")
        if self.separator:
            where = f"each of {where}"
        text = f"{self.kind.value} ({where}): {_listed(self.actions)}"
        if self.of_retry is not None:
            text += f"; group of a retry topic: {_listed(self.of_retry) or 'nothing'}"
        return text


class Open(NamedTuple):
    """Nothing is needed, and why. `unsigned`: nor need the caller be known."""

    reason: str
    unsigned: bool = False


Needs = tuple[Rule, ...] | Open
"""What a request code declares; never an empty tuple."""


def on_topic(
    field: str, *actions: Action, of_retry: tuple[Action, ...] | None = None, official_group: str = ""
) -> Rule:
    """The topic that a header field names."""
    return Rule(Kind.TOPIC, actions, field, of_retry=of_retry, official_group=official_group)


def on_topics(field: str, separator: str, *actions: Action) -> Rule:
    """Each topic that a header field lists."""
    return Rule(Kind.TOPIC, actions, field, separator)


def on_topics_in(
    form: type[B],
    names: Callable[[B], Iterable[str]],
    *actions: Action,
    of_retry: tuple[Action, ...] | None = None,
) -> Rule:
    """Each topic that the body names."""
    return Rule(Kind.TOPIC, actions, names=lambda request: names(request.read(form)), of_retry=of_retry)


def on_group(field: str, *actions: Action) -> Rule:
    """The group that a header field names."""
    return Rule(Kind.GROUP, actions, field)


def on_groups(field: str, separator: str, *actions: Action) -> Rule:
    """Each group that a header field lists."""
    return Rule(Kind.GROUP, actions, field, separator)


def on_groups_in(form: type[B], names: Callable[[B], Iterable[str]], *actions: Action) -> Rule:
    """Each group that the body names."""
    return Rule(Kind.GROUP, actions, names=lambda request: names(request.read(form)))


def on_cluster(action: Action, field: str = "") -> Rule:
    """The cluster that a header field names; this server's own without a field or without a name in it."""
    return Rule(Kind.CLUSTER, (action,), field)


def ours(rule: Rule) -> Rule:
    """The same, marked as ours: whoever must decide as RocketMQ 5.3.3 does leaves it out."""
    return rule._replace(ours=True)


def needs_of(needs: Needs, request: AnyIncoming) -> Iterator[Need]:
    """Everything that this request needs. RequestError when a body cannot be read."""
    if not isinstance(needs, Open):
        for rule in needs:
            yield from rule.needed(request)


def check_needs(needs: Needs, header: type[msgspec.Struct]) -> None:
    """ValueError when a code would be declared with needs that nobody could work out, or with none."""
    if isinstance(needs, Open):
        if not needs.reason:
            raise ValueError("a request that needs nothing says why")
        return
    if not needs:
        raise ValueError("a request declares what its caller needs, or that it is open and why")
    for rule in needs:
        if not rule.actions:
            raise ValueError(f"{rule.kind.value} without an action")
        if rule.field and rule.field not in header.__struct_fields__:
            raise ValueError(f"{header.__name__} has no field {rule.field}")


def _listed(actions: tuple[Action, ...]) -> str:
    return " or ".join([action.value for action in actions])
