"""Arguments of the public calls, checked against their signatures: a wrong one is an InvalidMessage that names it.

    @checked                      before anything is done: for calls that are not made for each message
    explain(function, values)     after something has failed: names the argument that is to blame, if one is

The annotations are the rule, so a call cannot be documented in one way and checked in another. Numbers whose names end
with `_s` are spans of time besides: finite, and not negative. What cannot be told from outside (the kind of a codec's
values, what a function takes) is let through.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache, wraps
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin

from aerobee.errors import InvalidMessage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Rule", "all_checked", "check_fields", "checked", "explain", "is_span", "rule_of", "rules_of"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

SHOWN_MAX: Final = 60  # characters of a wrong value
# Names that annotations of this package use and do not import when it runs.
HOMES: Final = {
    "AnyCodec": "aerobee.messages.codecs",
    "RangeConfig": "aerobee.consuming.ranges",
    "ReplayConfig": "aerobee.producing.replay",
    "Topics": "aerobee.messages.subscriptions",
}
WORDS: Final[dict[object, str]] = {
    str: "text",
    bytes: "bytes",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    NoneType: "None",
}


SECONDS: Final = "a number of seconds, 0 or more"


class Rule(NamedTuple):
    """What a value has to be: a test, and words for it. `fits` is None where anything will do."""

    fits: Callable[[object], bool] | None
    words: tuple[str, ...]


ANYTHING: Final = Rule(None, ("anything",))


def checked(function: F) -> F:
    """Have each call of `function` looked at before it is made."""

    def check(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        rules, names, rest = rules_of(function)
        for position, value in enumerate(args):
            name = names[position] if position < len(names) else rest
            if name in rules:
                _look_at(name, value, rules[name])
        for name, value in kwargs.items():
            if name in rules:
                _look_at(name, value, rules[name])

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def later(*args: object, **kwargs: object) -> object:
            check(args, kwargs)
            return await function(*args, **kwargs)

        return cast("F", later)

    @wraps(function)
    def now(*args: object, **kwargs: object) -> object:
        check(args, kwargs)
        return function(*args, **kwargs)

    return cast("F", now)


def all_checked(kind: type[T]) -> type[T]:
    """`checked` for every public method of a class."""
    for name, function in list(vars(kind).items()):
        if inspect.isfunction(function) and not name.startswith("_"):
            setattr(kind, name, checked(function))
    return kind


def explain(function: Callable[..., object], values: Mapping[str, object]) -> None:
    """InvalidMessage for the first of these arguments that does not fit; nothing when all do."""
    rules, _, _ = rules_of(function)
    for name, rule in rules.items():
        if name in values:
            _look_at(name, values[name], rule)


def check_fields(settings: "DataclassInstance") -> None:
    """The same for the fields of a dataclass."""
    explain(type(settings), {field.name: getattr(settings, field.name) for field in fields(settings)})


def _look_at(name: str, value: object, rule: Rule) -> None:
    if rule.fits is not None and not rule.fits(value):
        raise InvalidMessage(f"{name} is {_shown(value)}; it has to be {_either(rule.words)}")


@lru_cache(maxsize=1024)
def rules_of(function: Callable[..., object]) -> tuple[dict[str, Rule], list[str], str]:
    """Rules by name of the argument, the names in order, and the name of those that take the rest."""
    rules: dict[str, Rule] = {}
    names: list[str] = []
    rest = ""
    given = vars(sys.modules[function.__module__])
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = parameter.name
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            names.append(parameter.name)
        if parameter.annotation is not parameter.empty:
            rule = rule_of(_resolved(parameter.annotation, given))
            if parameter.name.endswith("_s") and WORDS[float] in rule.words:
                rule = _of_time(rule)
            if rule.fits is not None:
                rules[parameter.name] = rule
    return rules, names, rest


def is_span(value: float) -> bool:
    """Whether a number can be waited for: not negative, nor infinite, nor none at all (NaN)."""
    return 0 <= value <= sys.float_info.max


def _of_time(rule: Rule) -> Rule:
    return Rule(
        lambda value: (
            _fits(rule, value) and (value is None or (isinstance(value, int | float) and is_span(value)))
        ),
        tuple(SECONDS if word == WORDS[float] else word for word in rule.words),
    )


def rule_of(annotation: object) -> Rule:
    """What a type says about a value."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is NoneType:
        return Rule(lambda value: value is None, ("None",))
    if origin in (Union, UnionType):
        return _any_of([rule_of(one) for one in inner])
    if origin is Literal:
        return Rule(lambda value: any(value == one for one in inner), tuple(f'"{one}"' for one in inner))
    kind = origin or annotation
    if kind is Any or not isinstance(kind, type) or kind is object:
        return ANYTHING  # Any, a type variable, a name that is not known here
    return _rule_of_class(kind, inner)


def _rule_of_class(kind: type, inner: tuple[object, ...]) -> Rule:
    if kind is int or kind is float:
        number = int if kind is int else int | float
        return Rule(lambda value: isinstance(value, number) and not isinstance(value, bool), (WORDS[kind],))
    if kind.__module__ == "collections.abc" and kind.__name__ == "Callable":
        return Rule(callable, ("a function",))
    if getattr(kind, "_is_protocol", False) and kind.__module__.startswith("aerobee"):
        methods = [name for name, what in vars(kind).items() if callable(what) and not name.startswith("_")]
        return Rule(
            lambda value: all(callable(getattr(value, name, None)) for name in methods),
            (f"an object with {' and '.join(methods)}",),
        )
    if issubclass(kind, Mapping):
        of = [rule_of(one) for one in inner] or [ANYTHING, ANYTHING]
        return Rule(
            lambda value: (
                isinstance(value, Mapping)
                and all(_fits(of[0], k) and _fits(of[1], v) for k, v in value.items())
            ),
            ("a mapping" + (f" of {_either(of[0].words)} to {_either(of[1].words)}" if inner else ""),),
        )
    if kind in (Iterable, Sequence, list, set, frozenset) or (kind is tuple and inner[1:] == (...,)):
        return _rule_of_several(kind, rule_of(inner[0]) if inner else ANYTHING)
    return Rule(lambda value: isinstance(value, kind), (WORDS.get(kind) or _a(kind.__name__),))


def _rule_of_several(kind: type, of: Rule) -> Rule:
    def fits(value: object) -> bool:
        if not isinstance(value, kind) or isinstance(value, str | bytes | Mapping):
            return False  # a mapping would be its names alone
        # What can be walked only once is not looked into.
        return of.fits is None or not isinstance(value, Collection) or all(_fits(of, one) for one in value)

    return Rule(fits, ("several" + (f", each {_either(of.words)}" if of.fits is not None else ""),))


def _any_of(rules: list[Rule]) -> Rule:
    tests = [rule.fits for rule in rules]
    if None in tests:
        return ANYTHING
    words = tuple(dict.fromkeys(word for rule in rules for word in rule.words))
    return Rule(lambda value: any(_fits(rule, value) for rule in rules), words)


def _fits(rule: Rule, value: object) -> bool:
    return rule.fits is None or rule.fits(value)


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "AEIO" else f"a {name}"


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) > SHOWN_MAX:
        text = f"{text[:SHOWN_MAX]}..."
    return (
        text if value is None or isinstance(value, str | bytes | bool) else f"{text} ({type(value).__name__})"
    )


class _Names(dict[str, object]):
    """Names of annotations: those of the module that has them, then those of this package."""

    def __init__(self, given: Mapping[str, object]) -> None:
        super().__init__()
        self._given = given

    def __missing__(self, name: str) -> object:
        if name in self._given:
            return self._given[name]
        try:
            return getattr(import_module(HOMES.get(name, "aerobee")), name)
        except AttributeError:
            raise KeyError(name) from None


def _resolved(annotation: object, given: Mapping[str, object]) -> object:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, {}, _Names(given))  # noqa: S307  # our own source, as typing.get_type_hints does
    except (NameError, ImportError):
        return Any
