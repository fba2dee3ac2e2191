"""A compiled SQL92 filter."""

from collections.abc import Iterator, Mapping

from aerobee_proto.sql92.closures import closure
from aerobee_proto.sql92.parser import parse
from aerobee_proto.sql92.tree import In, Literal, Logic, Negative, Node, Not, Property, Search, Truth
from aerobee_proto.sql92.values import SqlValueError

__all__ = ["SqlExpression", "compile_sql"]


class SqlExpression:
    """One expression, ready for any number of messages. Made by compile_sql()."""

    __slots__ = ("_evaluate", "cost", "ignored_from", "names", "text", "tree")

    def __init__(self, text: str, tree: Node, ignored_from: int | None) -> None:
        self.text = text
        self.tree = tree
        # Where in `text` begins what does not belong to the expression and is not looked at; None: nowhere.
        self.ignored_from = ignored_from
        nodes = list(_walk(tree))
        # Nodes, so steps that evaluating it takes at most.
        self.cost = len(nodes)
        # Properties that it looks at.
        self.names = frozenset(node.name for node in nodes if isinstance(node, Property))
        self._evaluate = closure(tree)

    def __repr__(self) -> str:
        return f"SqlExpression({self.text!r})"

    @property
    def ignored(self) -> str:
        """The text behind the expression that is not looked at, usually empty."""
        return "" if self.ignored_from is None else self.text[self.ignored_from :]

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """True, False, or None for unknown; SqlValueError when a value cannot be compared as is asked."""
        verdict: bool | None = self._evaluate(properties)
        return verdict

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties passes: only when the expression is true."""
        try:
            return self._evaluate(properties) is True
        except SqlValueError:
            return False


def compile_sql(text: str) -> SqlExpression:
    """The filter that `text` is; SqlError when it is none, is too long or too deeply nested."""
    return SqlExpression(text, *parse(text))


def _walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case Literal() | Property():
                pass
            case Negative() | Truth() | Not() | In() | Search():
                waiting.append(node.operand)
            case Logic():
                waiting.extend(node.operands)
            case _:
                waiting += (node.left, node.right)
