"""From the words of an SQL92 filter to its tree: one method for each level of the grammar.

The grammar is drawn in the package. Like the official parser this one stops where a complete expression ends.
"""

from typing import Final

from aerobee_proto.sql92.tokens import Kind, SqlError, Tokens
from aerobee_proto.sql92.tree import (
    ORDER_SIGNS,
    Equal,
    Literal,
    Logic,
    Node,
    Not,
    Property,
    Search,
    Type,
    as_condition,
    between,
    equal,
    height_of,
    is_in,
    negative,
    order,
)
from aerobee_proto.sql92.values import INT_RANGE, LONG_RANGE

__all__ = ["DEPTH_MAX", "EXPRESSION_CHARS_MAX", "parse"]

EXPRESSION_CHARS_MAX: Final = 8192
DEPTH_MAX: Final = 64  # levels of parentheses and of operators inside each other; AND and OR chains are one
SEARCHES: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
WORDS_AS_LITERALS: Final = {
    "TRUE": Literal(Type.BOOL, True),
    "FALSE": Literal(Type.BOOL, False),
    "NULL": Literal(Type.NULL, None),
}
OPERAND: Final = "a property, a literal or ("


def parse(expression: str) -> tuple[Node, int | None]:
    """The tree of an expression, and where the text begins that no longer belongs to it (None: nowhere).

    SqlError when it is no filter, or passes one of the bounds.
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise SqlError(
            f"the filter expression has {len(expression)} characters; at most {EXPRESSION_CHARS_MAX} are allowed"
        )
    parser = _Parser(expression)
    condition = as_condition(parser.either())
    rest = parser.tokens.current
    return condition, None if rest.kind is Kind.END else rest.position


class _Parser:
    """Reads one expression; each method leaves the first token that it does not use in hand."""

    def __init__(self, expression: str) -> None:
        self.tokens = Tokens(expression)
        self._depth = 0  # parentheses open around the token in hand

    # --- levels of the grammar ------------------------------------------------------------------------------

    def either(self) -> Node:
        """Conditions joined by OR, or a single node of any kind."""
        return self._chain("OR")

    def _both(self) -> Node:
        return self._chain("AND")

    def _chain(self, word: str) -> Node:
        part = self._both if word == "OR" else self._equality
        node = part()
        if not self._at(word):
            return node
        operands = [as_condition(node)]
        while self._skip(word):
            operands.append(as_condition(part()))
        return self._bounded(Logic(height_of(*operands), word == "AND", tuple(operands)))

    def _equality(self) -> Node:
        node = self._comparison()
        while True:
            if self._skip("="):
                node = equal(node, self._comparison())
            elif self._skip("<>"):
                same = equal(node, self._comparison())
                node = Not(height_of(same), same)
            elif self._skip("IS"):
                negated = self._skip("NOT")
                self._need("NULL")
                null = WORDS_AS_LITERALS["NULL"]
                node = Equal(height_of(node), node, null)
                node = Not(height_of(node), node) if negated else node
            else:
                return node
            self._bounded(node)

    def _comparison(self) -> Node:
        node = self._unary()
        while True:
            token = self.tokens.current
            if token.kind is Kind.SIGN and token.text in ORDER_SIGNS:
                self.tokens.take()
                node = order(token.text, node, self._unary())
            elif self._skip("NOT"):
                node = self._range_or_search(node, negated=True)
            elif token.kind is Kind.KEYWORD and token.text in {"BETWEEN", "IN", *SEARCHES}:
                node = self._range_or_search(node, negated=False)
            else:
                return node
            self._bounded(node)

    def _range_or_search(self, node: Node, *, negated: bool) -> Node:
        """What may follow NOT behind an operand, and stand there without it."""
        word = self.tokens.current.text
        if self._skip("BETWEEN"):
            low = self._unary()
            self._need("AND")
            return between(node, low, self._unary(), negated=negated)
        if self._skip("IN"):
            return is_in(node, self._texts(), negated=negated)
        for search in SEARCHES:
            if self._skip(search):
                return Search(height_of(node), word, node, self._text(), negated)
        raise self.tokens.fault("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")

    def _texts(self) -> frozenset[str]:
        self._need("(")
        texts = [self._text()]
        while self._skip(","):
            texts.append(self._text())
        self._need(")")
        return frozenset(texts)

    def _unary(self) -> Node:
        prefixes = []
        while (token := self.tokens.current).text in ("+", "-", "NOT") and token.kind in (
            Kind.SIGN,
            Kind.KEYWORD,
        ):
            prefixes.append(self.tokens.take())
            self._check_depth(len(prefixes))
        node = self._primary()
        for prefix in reversed(prefixes):
            if prefix.text == "-":
                node = negative(node)
            elif prefix.text == "NOT":
                condition = as_condition(node)
                node = Not(height_of(condition), condition)
        return self._bounded(node)

    def _primary(self) -> Node:
        tokens = self.tokens
        token = tokens.current
        if self._skip("("):
            self._depth += 1
            self._check_depth(self._depth)
            node = self.either()
            self._need(")")
            self._depth -= 1
            return node
        match token.kind:
            case Kind.NAME:
                node = Property(token.text)
            case Kind.TEXT:
                node = Literal(Type.TEXT, token.text)
            case Kind.INTEGER:
                node = _whole(token.text, token.position)
            case Kind.DECIMAL:
                node = _decimal(token.text, token.position)
            case Kind.KEYWORD if token.text in WORDS_AS_LITERALS:
                node = WORDS_AS_LITERALS[token.text]
            case _:
                raise tokens.fault(OPERAND)
        tokens.take()
        return node

    # --- single tokens --------------------------------------------------------------------------------------

    def _at(self, text: str) -> bool:
        token = self.tokens.current
        return token.text == text and token.kind in (Kind.KEYWORD, Kind.SIGN)

    def _skip(self, text: str) -> bool:
        if self._at(text):
            self.tokens.take()
            return True
        return False

    def _need(self, text: str) -> None:
        if not self._skip(text):
            raise self.tokens.fault(text)

    def _text(self) -> str:
        if self.tokens.current.kind is not Kind.TEXT:
            raise self.tokens.fault("a text in single quotes")
        return self.tokens.take().text

    # --- bounds ---------------------------------------------------------------------------------------------

    def _bounded(self, node: Node) -> Node:
        self._check_depth(node.height)
        return node

    def _check_depth(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise SqlError(
                f"the filter expression is nested more than {DEPTH_MAX} levels deep",
                self.tokens.current.position,
            )


def _whole(text: str, position: int) -> Literal:
    value = int(text.rstrip("lL")) if len(text) <= 20 else LONG_RANGE.stop
    if value not in LONG_RANGE:
        raise SqlError(f"the whole number at character {position + 1} does not fit 64 bits", position)
    return Literal(Type.INT if value in INT_RANGE else Type.LONG, value)


def _decimal(text: str, position: int) -> Literal:
    value = float(text)
    if value == 0 or value == float("inf"):
        kind = "zero; write 0" if value == 0 else "greater than any double"
        raise SqlError(f"the decimal number at character {position + 1} is {kind}", position)
    return Literal(Type.DOUBLE, value)
