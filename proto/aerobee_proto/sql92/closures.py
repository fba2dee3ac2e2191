"""From the tree of an SQL92 filter to one Python function: a closure for each node, chosen by the types of its parts.

A comparison with a literal, the usual case, takes less than a microsecond; nothing is interpreted as messages pass.
Each function maps the properties of a message to the node's value, None when it is unknown, or raises
SqlValueError.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from aerobee_proto.sql92.tree import (
    NUMBERS,
    Equal,
    In,
    Literal,
    Logic,
    Negative,
    Node,
    Not,
    Order,
    Property,
    Search,
    Truth,
    Type,
)
from aerobee_proto.sql92.values import (
    INT_RANGE,
    LONG_RANGE,
    SqlValueError,
    order_doubles,
    text_to_bool,
    text_to_double,
    text_to_whole,
)

__all__ = ["Evaluate", "closure"]

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Any]
Compare = Callable[[Any, Any], int]  # below 0, 0, above 0

SIGNS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": lambda value, text: text in value,
    "STARTSWITH": lambda value, text: value.startswith(text),
    "ENDSWITH": lambda value, text: value.endswith(text),
}


def closure(node: Node) -> Evaluate:
    """The function of a node."""
    match node:
        case Literal(value=value):
            return lambda properties: value
        case Property(name=name):
            return lambda properties: properties.get(name)
        case Negative():
            return _negative(node)
        case Truth(operand=operand):
            name = operand.name
            return lambda properties: False if name in properties else None
        case Not(operand=operand):
            return _not(closure(operand))
        case Logic():
            parts = tuple(closure(operand) for operand in node.operands)
            return _all(parts) if node.is_and else _any(parts)
        case Equal():
            return _equal(node)
        case Order():
            return _order(node)
        case In():
            return _in(node)
        case Search():
            return _search(node)


def _negative(node: Negative) -> Evaluate:
    operand = closure(node.operand)
    if node.type is Type.NULL:

        def nothing(properties: Properties) -> None:
            operand(properties)  # may find that a value cannot be compared

        return nothing

    def negative(properties: Properties) -> Any:
        return -operand(properties)

    return negative


def _not(operand: Evaluate) -> Evaluate:
    def negated(properties: Properties) -> bool | None:
        value = operand(properties)
        return None if value is None else not value

    return negated


def _all(parts: tuple[Evaluate, ...]) -> Evaluate:
    def every(properties: Properties) -> bool | None:
        result: bool | None = True
        for part in parts:
            value = part(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result

    return every


def _any(parts: tuple[Evaluate, ...]) -> Evaluate:
    def some(properties: Properties) -> bool | None:
        result: bool | None = False
        for part in parts:
            value = part(properties)
            if value is None:
                result = None
            elif value:
                return True
        return result

    return some


def _in(node: In) -> Evaluate:
    name, texts, negated = node.operand.name, node.texts, node.negated

    def is_in(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in texts) is not negated

    return is_in


def _search(node: Search) -> Evaluate:
    """An empty text, a missing property and what is no text give false, in the negated form too."""
    if not node.text:
        return lambda properties: False
    operand, text, negated = closure(node.operand), node.text, node.negated
    found = SEARCHES[node.how]

    def search(properties: Properties) -> bool:
        value = operand(properties)
        return isinstance(value, str) and found(value, text) is not negated

    return search


# --- comparisons ----------------------------------------------------------------------------------------------


def _order(node: Order) -> Evaluate:
    left, right, holds = closure(node.left), closure(node.right), SIGNS[node.sign]
    compare = (
        _double_texts if node.left.type is node.right.type is Type.TEXT else _compare(node.left, node.right)
    )

    def ordered(properties: Properties) -> bool | None:
        low = left(properties)
        if low is None:
            return None
        high = right(properties)
        return None if high is None else holds(compare(low, high), 0)

    return ordered


def _equal(node: Equal) -> Evaluate:
    if isinstance(node.left, Property) and isinstance(node.right, Literal) and node.right.type is Type.TEXT:
        return _is_text(node.left.name, node.right.value)
    left, right, compare = closure(node.left), closure(node.right), _compare(node.left, node.right)

    def equal(properties: Properties) -> bool | None:
        first, second = left(properties), right(properties)
        if first is None:
            return True if second is None else None
        return second is not None and compare(first, second) == 0

    return equal


def _is_text(name: str, text: object) -> Evaluate:
    def is_text(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else value == text

    return is_text


def _compare(left: Node, right: Node) -> Compare:
    """How values of these nodes are compared; both are there when it is called."""
    first, second = left.type, right.type
    if first is second:
        return _same_type(first)
    if first in NUMBERS and second in NUMBERS:
        if Type.DOUBLE in (first, second):
            return lambda one, other: order_doubles(float(one), float(other))
        return operator.sub
    if first is Type.TEXT:
        read, compare = _reader(second), _same_type(second)
        return lambda text, other: compare(read(text), other)
    if second is Type.TEXT and first in NUMBERS:
        read, compare = _reader(first), _same_type(first)
        return lambda other, text: compare(other, read(text))
    if second is Type.TEXT and first is Type.BOOL:
        return _truth_with_text
    return lambda one, other: -1  # a number and a truth value


def _same_type(kind: Type) -> Compare:
    if kind is Type.DOUBLE:
        return order_doubles
    if kind is Type.TEXT:
        return lambda one, other: 0 if one == other else -1  # only ever asked whether they are equal
    return operator.sub


def _reader(kind: Type) -> Callable[[str], Any]:
    """How a text becomes what it is compared with."""
    match kind:
        case Type.INT:
            return lambda text: text_to_whole(text, INT_RANGE)
        case Type.LONG:
            return lambda text: text_to_whole(text, LONG_RANGE)
        case Type.DOUBLE:
            return text_to_double
        case Type.BOOL:
            return text_to_bool
    return lambda text: text


def _double_texts(left: str, right: str) -> int:
    return order_doubles(text_to_double(left), text_to_double(right))


def _truth_with_text(left: bool, right: str) -> int:
    raise SqlValueError(
        f"a condition (now {left}) cannot equal the text {right[:40]!r}; write the text first"
    )
