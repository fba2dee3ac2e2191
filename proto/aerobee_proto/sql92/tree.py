"""The tree of an SQL92 filter: its nodes, and the rules for what may stand where.

Properties are texts and literals are written out, so what a node gives is known before any message is seen: its
`type`. Any node but a literal may also give None, which means unknown.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from aerobee_proto.sql92.tokens import SqlError

__all__ = [
    "ORDER_SIGNS",
    "Equal",
    "In",
    "Literal",
    "Logic",
    "Negative",
    "Node",
    "Not",
    "Order",
    "Property",
    "Search",
    "Truth",
    "Type",
    "as_condition",
    "between",
    "equal",
    "height_of",
    "is_condition",
    "is_in",
    "negative",
    "order",
]


class Type(Enum):
    """What a node gives when it is not None. The numbers are Java's int, long and double."""

    TEXT = "text"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOL = "truth value"
    NULL = "nothing"


NUMBERS: Final = frozenset({Type.INT, Type.LONG, Type.DOUBLE})
ORDER_SIGNS: Final = frozenset({">", ">=", "<", "<="})


@dataclass(slots=True, frozen=True)
class Literal:
    """A value written in the expression."""

    type: Type
    value: str | int | float | bool | None
    height: int = field(default=1, init=False)

    def __str__(self) -> str:
        return "NULL" if self.value is None else repr(self.value)


@dataclass(slots=True, frozen=True)
class Property:
    """The value of a property, None when the message has none of that name."""

    name: str
    type: Type = field(default=Type.TEXT, init=False)
    height: int = field(default=1, init=False)

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, frozen=True)
class Negative:
    """`- operand`: a number with the other sign; unknown for everything else, texts among them."""

    operand: "Node"
    type: Type  # kept, not asked for: a chain of signs would ask twice at every level
    height: int

    def __str__(self) -> str:
        return f"-{self.operand}"


@dataclass(slots=True, frozen=True)
class _Condition:
    """What is true, false or unknown."""

    height: int
    type: Type = field(default=Type.BOOL, init=False)

    def __str__(self) -> str:
        return "a condition"


@dataclass(slots=True, frozen=True)
class Truth(_Condition):
    """A property where a condition is needed: false whatever it says, unknown when it is missing."""

    operand: Property


@dataclass(slots=True, frozen=True)
class Not(_Condition):
    """The other truth value."""

    operand: "Node"


@dataclass(slots=True, frozen=True)
class Logic(_Condition):
    """AND or OR over two conditions or more, tried from the left."""

    is_and: bool
    operands: tuple["Node", ...]


@dataclass(slots=True, frozen=True)
class Equal(_Condition):
    """Equality; IS NULL is equality with NULL."""

    left: "Node"
    right: "Node"


@dataclass(slots=True, frozen=True)
class Order(_Condition):
    """A comparison by size; `sign` is one of ORDER_SIGNS."""

    sign: str
    left: "Node"
    right: "Node"


@dataclass(slots=True, frozen=True)
class In(_Condition):
    """Whether a property is one of some texts."""

    operand: Property
    texts: frozenset[str]
    negated: bool


@dataclass(slots=True, frozen=True)
class Search(_Condition):
    """CONTAINS, STARTSWITH or ENDSWITH, as `how` says."""

    how: str
    operand: "Node"
    text: str
    negated: bool


Node = Literal | Property | Negative | Truth | Not | Logic | Equal | Order | In | Search


def height_of(*nodes: Node) -> int:
    """Levels of a node that has these as its parts."""
    return 1 + max(node.height for node in nodes)


def is_condition(node: Node) -> bool:
    """Whether the node is a condition by its form: TRUE, FALSE and NULL are, a property is not."""
    return isinstance(node, _Condition) or (isinstance(node, Literal) and node.type in (Type.BOOL, Type.NULL))


def negative(operand: Node) -> Node:
    """`- operand`."""
    kind = operand.type if operand.type in NUMBERS else Type.NULL
    return Negative(operand, kind, height_of(operand))


def as_condition(node: Node) -> Node:
    """The node where a condition is needed; SqlError when it can be none."""
    if isinstance(node, Property):
        return Truth(height_of(node), node)
    if is_condition(node):
        return node
    raise SqlError(f"{node} is no condition: compare it with something")


def equal(left: Node, right: Node) -> Node:
    """`left = right`; SqlError beside NULL, and for TRUE or FALSE compared with another kind of literal."""
    for node in (left, right):
        if isinstance(node, Literal) and node.value is None:
            raise SqlError("nothing equals NULL; write IS NULL or IS NOT NULL")
    if isinstance(left, Literal) and isinstance(right, Literal) and is_condition(left) > is_condition(right):
        raise SqlError(f"{left} cannot be compared with {right}")
    return Equal(height_of(left, right), left, right)


def order(sign: str, left: Node, right: Node) -> Node:
    """A comparison by size; SqlError for texts, truth values and conditions, which have none."""
    for node in (left, right):
        if is_condition(node) or (isinstance(node, Literal) and node.type not in NUMBERS):
            raise SqlError(f"{node} cannot be compared with {sign}: only numbers and properties can")
    return Order(height_of(left, right), sign, left, right)


def between(value: Node, low: Node, high: Node, *, negated: bool) -> Node:
    """`value [NOT] BETWEEN low AND high`; SqlError for literal bounds that no value lies between."""
    if negated:
        parts = order("<", value, low), order(">", value, high)
        return Logic(height_of(*parts), is_and=False, operands=parts)
    parts = order(">=", value, low), order("<=", value, high)
    if isinstance(low, Literal) and isinstance(high, Literal):
        assert isinstance(low.value, int | float)  # order() has seen to it
        assert isinstance(high.value, int | float)
        if high.value < low.value:
            raise SqlError(f"BETWEEN {low} AND {high}: the first must not be greater than the second")
    return Logic(height_of(*parts), is_and=True, operands=parts)


def is_in(operand: Node, texts: frozenset[str], *, negated: bool) -> Node:
    """`operand [NOT] IN (texts)`; SqlError when it is no property."""
    if not isinstance(operand, Property):
        raise SqlError(f"IN looks at a property, not at {operand}")
    return In(height_of(operand), operand, texts, negated)
