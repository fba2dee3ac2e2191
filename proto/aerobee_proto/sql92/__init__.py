"""SQL92 filters: an expression over a message's properties, compiled once, evaluated for each message.

Touches  nothing.
Use      sql = compile_sql("price BETWEEN 3 AND 9 AND region IN ('eu', 'us')"); sql.matches({"price": "4", ...})
Rooms    tokens (text to words) -> parser (words to a tree) -> tree (nodes and what may stand where)
         -> closures (tree to a Python function), values (texts as Java reads numbers)

Grammar, from loose to tight; words in any case, names exactly as written:

    or          and { OR and }
    and         equality { AND equality }
    equality    comparison { = comparison | <> comparison | IS [NOT] NULL }
    comparison  unary { > unary | >= unary | < unary | <= unary | [NOT] BETWEEN unary AND unary
                      | [NOT] IN ( 'text' {, 'text'} ) | [NOT] CONTAINS 'text' | [NOT] STARTSWITH 'text'
                      | [NOT] ENDSWITH 'text' }
    unary       + unary | - unary | NOT unary | literal | name | ( or )
    literal     'text' with '' for one quote | 17 | 17L | 1.5 | .5 | 1e3 | TRUE | FALSE | NULL
    name        a letter, _ or $, then letters, digits, _ and $
    comments    -- to the end of its line | /* ... */

Invariants
- Verdicts are those of RocketMQ's own filter (compared with it in tests/interop/test_sql92.py), oddities included: NOT
  binds tighter than =, properties are texts that become numbers only beside a number, what follows a complete
  expression is not looked at (`SqlExpression.ignored_from` says where that starts).
- Whatever the text, compile_sql returns or raises SqlError; whatever the properties, evaluate returns True, False
  or None (unknown) or raises SqlValueError.
- An expression has at most EXPRESSION_CHARS_MAX characters and DEPTH_MAX levels; evaluating it takes at most
  `cost` steps.
"""

from aerobee_proto.sql92.expression import SqlExpression, compile_sql
from aerobee_proto.sql92.parser import DEPTH_MAX, EXPRESSION_CHARS_MAX
from aerobee_proto.sql92.tokens import SqlError
from aerobee_proto.sql92.values import SqlValueError

__all__ = [
    "DEPTH_MAX",
    "EXPRESSION_CHARS_MAX",
    "SqlError",
    "SqlExpression",
    "SqlValueError",
    "compile_sql",
]
