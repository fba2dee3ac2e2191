"""Settings: what an operator wrote, checked once, handed over as one typed value.

Nameserver and broker read the same four layers; a later one wins over an earlier one, key by key:

    defaults of the model  <  settings file  <  environment  <  --set key=value

The file is Java properties (`broker.conf`) or, when its name ends in `.toml`, TOML. Keys are RocketMQ's
camelCase names (`listenPort`); the model's own snake_case names are understood too. Environment variables are
the prefix and the snake_case name in capitals (`AEROBEE_BROKER_LISTEN_PORT`).

Touches  the settings file and the environment mapping it is given, nothing else.

Invariants
- Nothing that was written is dropped in silence: a key is used, or named in a warning (RocketMQ knows it, it
  has no effect here), or it is an error that names the nearest key.
- All problems are collected before any is raised, each with key, value, where it stands, what is allowed.
- Only the winning layer's value of a key is checked: a broken value that is overridden does no harm.
- A default goes through the same checks as a value that was written.
- A path (`SettingsPath`, `SettingsPathText`) never holds a `~`: it names the same place from every folder that a
  program may be started in, unless it was written as a relative one.
"""

import dataclasses
import difflib
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeVar

import javaproperties
import structlog
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationError
from pydantic.alias_generators import to_camel

from aerobee_proto.errors import AerobeeError

__all__ = [
    "SettingsError",
    "SettingsModel",
    "SettingsPath",
    "SettingsPathText",
    "SettingsProblem",
    "apply_changes",
    "canonical_keys",
    "dump_settings",
    "load_settings",
    "read_properties",
    "used_values",
]

SHOWN_VALUE_CHARS_MAX: Final = 80
SETTINGS_FILE_BYTES_MAX: Final = 1 << 20
ALMOST: Final = 0.85  # how like a name of ours a variable has to be to be taken for a slip of the pen
PROPERTIES_LINES_MAX: Final = 500  # of one request that changes settings
SUGGESTIONS_MAX: Final = 10  # each takes half a millisecond
SUGGESTED_CHARS_MAX: Final = 100  # no key of ours has as many
SECRET_WORDS: Final = ("password", "secret", "token", "credentials", "authenticationuser")

log = structlog.get_logger()

M = TypeVar("M", bound=BaseModel)


def _whole_path(path: Path) -> Path:
    """The path with the home folder in place of ~. ValueError for one that would name another place than it says."""
    text = str(path)
    if text.startswith("$") or "${" in text:
        raise ValueError(
            "variables are not replaced in a path here; write it in full, or ~/... for the home folder"
        )
    try:
        return path.expanduser()
    except RuntimeError:
        account = path.parts[0]
        raise ValueError(
            f"this user (number {os.geteuid()}) has no home folder; write a path without ~, or set HOME"
            if account == "~"
            else f"there is no user {account[1:]!r} whose home folder {account} could be; write a path without ~"
        ) from None


def _not_empty(path: object) -> object:
    """The path of no letters is the current folder, which nobody means by it."""
    if path == "":
        raise ValueError(
            "must be the path of a file or folder, and is empty; leave the key out for its default"
        )
    return path


def _whole_path_text(text: str) -> str:
    return str(_whole_path(Path(text))) if text else ""


# What fields of paths are made of; the text may be empty.
SettingsPath = Annotated[Path, BeforeValidator(_not_empty), AfterValidator(_whole_path)]
SettingsPathText = Annotated[str, AfterValidator(_whole_path_text)]


class SettingsModel(BaseModel):
    """Base of the settings models: camelCase names outside, snake_case inside, never changed in place.

    `UNSUPPORTED` maps keys that RocketMQ has and we do not to one line that says why; they are warned about. Those of
    them that are in `PROMISES` too ask for something that must not be ignored: they are refused with the reason there,
    unless their value is the one that asks for nothing.
    A field whose `json_schema_extra` holds `{"env": ["NAMESRV_ADDR"]}` is also read from those variables; `allowed`
    there says in words what a value may be, where its type does not say it (a pattern).
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        validate_default=True,  # a default of ~/store has to become the home folder, too
    )

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {}
    PROMISES: ClassVar[Mapping[str, tuple[str, str]]] = {}


@dataclass(slots=True, frozen=True)
class SettingsProblem:
    """One thing that is wrong: what was written, where, and what would be right."""

    key: str
    value: str  # as shown to people: shortened, secrets hidden
    origin: str  # "broker.conf line 3", "environment variable X", "--set"
    reason: str  # why it is refused, what is allowed

    def __str__(self) -> str:
        written = f"{self.key} = {self.value}" if self.value else self.key
        return f"{written} ({self.origin}): {self.reason}"


class SettingsError(AerobeeError):
    """The settings cannot be used; `problems` has every reason, not only the first."""

    def __init__(self, problems: list[SettingsProblem]) -> None:
        self.problems = tuple(problems)
        count = len(problems)
        title = "1 setting is wrong:" if count == 1 else f"{count} settings are wrong:"
        super().__init__("\n  ".join([title, *map(str, problems)]))


@dataclass(slots=True, frozen=True)
class _Given:
    """A value as one layer gave it."""

    key: str
    value: Any
    origin: str


@dataclass(slots=True)
class _Found:
    """What there is to say about what was written."""

    problems: list[SettingsProblem] = dataclasses.field(default_factory=list)
    # Events and their facts, to log when logs are set up.
    notices: list[tuple[str, dict[str, str]]] = dataclasses.field(default_factory=list)

    def log_notices(self) -> None:
        for event, facts in self.notices:
            log.warning(event, **facts)


class _Keys:
    """The names of a model: which field a written key means, and which key somebody probably meant."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.model = model
        self.alias_of = {name: info.alias or name for name, info in model.model_fields.items()}
        self.field_of = {name: name for name in self.alias_of}
        self.field_of |= {alias: name for name, alias in self.alias_of.items()}
        self.unsupported: Mapping[str, str] = getattr(model, "UNSUPPORTED", {})
        self.promises: Mapping[str, tuple[str, str]] = getattr(model, "PROMISES", {})
        self._suggestions_left = SUGGESTIONS_MAX

    def broken_promise(self, given: "_Given") -> str:
        """Why a key that means nothing here is refused with this value; empty when it may be ignored."""
        harmless, reason = self.promises.get(given.key, ("", ""))
        return "" if str(given.value).strip().lower() in ("", harmless.lower()) else reason

    def nearest(self, key: str) -> str | None:
        """The known key that looks most like this one, letter case aside."""
        known = {alias.lower(): alias for alias in [*self.alias_of.values(), *self.unsupported]}
        close = difflib.get_close_matches(key.replace("_", "").lower(), known, n=1, cutoff=0.6)
        return known[close[0]] if close else None

    def unknown(self, key: str) -> str:
        """The text for a key that nobody knows; the first of them are compared with those that are known."""
        if not self._suggestions_left or len(key) > SUGGESTED_CHARS_MAX:
            return "unknown key"
        self._suggestions_left -= 1
        near = self.nearest(key)
        return (
            f"unknown key; did you mean {near}?" if near else "unknown key; nothing here has a name like it"
        )

    def allowed(self, field: str) -> str:
        """What values a field takes, in words; empty when the validator's own message says it better."""
        extra = self.model.model_fields[field].json_schema_extra
        if isinstance(extra, dict) and "allowed" in extra:
            return str(extra["allowed"])
        schema = _schema_of(self.model)
        return _describe(schema["properties"][self.alias_of[field]], schema.get("$defs", {}))

    def default(self, field: str) -> _Given | None:
        """What a field has when nobody sets it; None when somebody has to."""
        info = self.model.model_fields[field]
        if info.is_required():
            return None
        value = info.get_default(call_default_factory=True, validated_data={})
        return _Given(self.alias_of[field], str(value), "the default")

    def is_secret(self, key: str) -> bool:
        field = self.field_of.get(key)
        typed = field is not None and "SecretStr" in str(self.model.model_fields[field].annotation)
        # Where a secret is written down is none.
        return typed or (
            not key.lower().endswith("path") and any(word in key.lower() for word in SECRET_WORDS)
        )

    def shown(self, given: _Given) -> str:
        """The value for a message: one short line, secrets hidden."""
        if self.is_secret(given.key):
            return "***"
        text = given.value if isinstance(given.value, str) else repr(given.value)
        text = text.replace("\n", "\\n")
        return text if len(text) <= SHOWN_VALUE_CHARS_MAX else text[:SHOWN_VALUE_CHARS_MAX] + "…"

    def problem(self, given: _Given, reason: str) -> SettingsProblem:
        return SettingsProblem(given.key, self.shown(given), given.origin, reason)


@cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Made once: 20 ms for a model of a hundred keys."""
    return model.model_json_schema(by_alias=True)


def load_settings(
    model: type[M],
    *,
    file: Path | None,
    environ_prefix: str,
    overrides: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    ready: Callable[[M], None] | None = None,
) -> M:
    """Read all layers and return a checked instance of `model`.

    `environ` is `os.environ` unless given; an empty variable counts as absent. A variable with the prefix that is
    nearly one of ours is refused. The others that mean nothing are warned about: orchestrators inject names of
    their own.

    `ready` is called with the instance before anything is logged, so that a program can set up its logs by it.

    Raises SettingsError with every problem found.
    """
    found = _Found()
    keys = _Keys(model)
    layers = [
        *(_from_file(file) if file is not None else ()),
        *_from_environ(keys, os.environ if environ is None else environ, environ_prefix, found),
        *(_Given(key.strip(), value.strip(), "--set") for key, value in overrides.items()),
    ]
    chosen = _choose(keys, layers, found)
    instance = _validate(keys, model, chosen, found.problems)
    if ready is not None:
        ready(instance)
    found.log_notices()
    return instance


def apply_changes(current: M, changes: Mapping[str, str], *, origin: str) -> M:
    """A new instance with these keys changed, as an admin request asks for it. Raises SettingsError."""
    model = type(current)
    keys = _Keys(model)
    chosen = {
        name: _Given(keys.alias_of[name], getattr(current, name), "in use")
        for name in current.model_fields_set
    }
    found = _Found()
    given = [_Given(key.strip(), changes[key].strip(), origin) for key in changes]
    changed = _choose(keys, given, found)
    instance = _validate(keys, model, chosen | changed, found.problems)
    found.log_notices()
    return instance


def dump_settings(instance: BaseModel) -> dict[str, str]:
    """Every key and its value as properties text, sorted by key; secrets are hidden, unset is empty."""
    keys = _Keys(type(instance))
    values = {alias: getattr(instance, name) for name, alias in keys.alias_of.items()}
    return {
        alias: "***" if keys.is_secret(alias) and values[alias] else _as_text(values[alias])
        for alias in sorted(values)
    }


def canonical_keys(model: type[BaseModel], changes: Mapping[str, str]) -> dict[str, str]:
    """The same changes under the model's outside names; keys that are not known stay as written."""
    keys = _Keys(model)
    return {
        keys.alias_of[keys.field_of[key]] if key in keys.field_of else key: value
        for key, value in changes.items()
    }


def used_values(instance: BaseModel, names: Iterable[str]) -> dict[str, object]:
    """Outside name to the value in use, for these outside names; secrets are given as they are."""
    keys = _Keys(type(instance))
    values = {name: getattr(instance, keys.field_of[name]) for name in names}
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in values.items()
    }


def read_properties(text: str) -> dict[str, str]:
    """Keys and values of properties text that a peer sent, the last of a repeated key.

    ValueError when an escape is broken or there are more than PROPERTIES_LINES_MAX lines.
    """
    lines = len(text.splitlines())
    if lines > PROPERTIES_LINES_MAX:
        raise ValueError(f"{lines} lines; at most {PROPERTIES_LINES_MAX} are read at once")
    return {key: value.strip() for key, value in javaproperties.loads(text).items()}


def _choose(keys: _Keys, layers: list[_Given], found: _Found) -> dict[str, _Given]:
    """Field name to the value that wins (later is stronger); keys that mean nothing are noted in `found`."""
    chosen: dict[str, _Given] = {}
    for given in layers:
        field = keys.field_of.get(given.key)
        if field is not None:
            chosen[field] = given
        elif promise := keys.broken_promise(given):
            found.problems.append(keys.problem(given, promise))
        elif given.key in keys.unsupported:
            event = "settings.key_ignored"
            facts = {"key": given.key, "origin": given.origin, "reason": keys.unsupported[given.key]}
            found.notices.append((event, facts))
        else:
            found.problems.append(keys.problem(given, keys.unknown(given.key)))
    return chosen


def _validate(
    keys: _Keys, model: type[M], chosen: Mapping[str, _Given], problems: list[SettingsProblem]
) -> M:
    """Build the instance; raise SettingsError with the problems known before and those found now."""
    found = list(problems)
    instance: M | None = None
    try:
        instance = model.model_validate({keys.alias_of[name]: given.value for name, given in chosen.items()})
    except ValidationError as error:
        found += [
            _problem_of(keys, chosen, detail["loc"], detail["type"], detail["msg"])
            for detail in error.errors()
        ]
    if instance is None or found:
        raise SettingsError(found)
    return instance


def _problem_of(
    keys: _Keys, chosen: Mapping[str, _Given], location: tuple[int | str, ...], kind: str, message: str
) -> SettingsProblem:
    """Turn one finding of the validator into words an operator can act on."""
    message = message.removeprefix("Value error, ")
    field = keys.field_of.get(str(location[0])) if location else None
    if field is None:
        return SettingsProblem("settings", "", "taken together", message)
    given = chosen.get(field) or keys.default(field)
    if given is None:
        return SettingsProblem(keys.alias_of[field], "", "not set", "required")
    if kind == "value_error":  # a rule of ours, in its own words
        return keys.problem(given, message)
    allowed = keys.allowed(field)
    return keys.problem(given, f"must be {allowed}" if allowed else message)


def _describe(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """A JSON schema of one value in words."""
    if "$ref" in schema:
        return _describe(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        parts = [_describe(part, definitions) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(part for part in parts if part)
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    kind = schema.get("type")
    if kind == "boolean":
        return "true or false"
    if kind in ("integer", "number"):
        return _describe_number(schema, "an integer" if kind == "integer" else "a number")
    if kind == "string" and schema.get("format") == "path":
        return "the path of a file or folder"
    if kind == "string":
        longest = schema.get("maxLength")
        return f"text of at most {longest} characters" if longest else "text"
    return ""


def _describe_number(schema: Mapping[str, Any], noun: str) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{noun} from {low} to {high}"
    if low is not None:
        return f"{noun}, {low} or more"
    return f"{noun}, {high} or less" if high is not None else noun


def _from_file(path: Path) -> Iterator[_Given]:
    text = _read_text(path)
    yield from _from_toml(path, text) if path.suffix == ".toml" else _from_properties(path, text)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(SETTINGS_FILE_BYTES_MAX + 1)
        if len(data) > SETTINGS_FILE_BYTES_MAX:
            raise _file_error(path, f"is larger than {SETTINGS_FILE_BYTES_MAX} bytes; is it a settings file?")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise _file_error(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _file_error(path, f"is not UTF-8 at byte {error.start}") from error


def _file_error(path: Path, reason: str) -> SettingsError:
    return SettingsError([SettingsProblem(str(path), "", "settings file", reason)])


def _from_properties(path: Path, text: str) -> Iterator[_Given]:
    line_number = 1
    try:
        for element in javaproperties.parse(StringIO(text)):
            if isinstance(element, javaproperties.KeyValue):
                yield _Given(element.key, element.value.strip(), f"{path} line {line_number}")
            line_number += element.source.count("\n")
    except javaproperties.InvalidUEscapeError as error:
        raise _file_error(path, f"line {line_number}: {error}") from error


def _from_toml(path: Path, text: str) -> Iterator[_Given]:
    try:
        table = tomllib.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # the latter, and a plain ValueError: nested deeply, long numbers
        raise _file_error(path, f"is not valid TOML: {error}") from error
    lines = [line.split("=")[0].strip().strip("\"'") for line in text.splitlines()]
    for key, value in table.items():
        place = f"{path} line {lines.index(key) + 1}" if key in lines else str(path)
        yield _Given(key, value, place)


def _from_environ(keys: _Keys, environ: Mapping[str, str], prefix: str, found: _Found) -> Iterator[_Given]:
    fields = _environ_names(keys, prefix)
    plain = {field.replace("_", ""): field for field in keys.alias_of}
    for name, value in environ.items():
        if not value:
            continue
        field = fields.get(name)
        if field is None and prefix and name.startswith(prefix):
            # However it is cut into words and capitals: LISTENPORT, listen_port.
            written = name.removeprefix(prefix).replace("_", "").lower()
            field = plain.get(written)
            if field is None:
                near = difflib.get_close_matches(written, plain, n=1, cutoff=ALMOST)
                if near:
                    reason = f"unknown variable; did you mean {prefix}{plain[near[0]].upper()}?"
                    found.problems.append(
                        keys.problem(_Given(name, value.strip(), "environment variable"), reason)
                    )
                else:
                    event = "settings.variable_ignored"
                    found.notices.append((event, {"variable": name}))
        if field is not None:
            yield _Given(keys.alias_of[field], value.strip(), f"environment variable {name}")


def _environ_names(keys: _Keys, prefix: str) -> dict[str, str]:
    """Variable name to field name; variables of the prefix come on top of a field's own extra ones."""
    names: dict[str, str] = {}
    for field, info in keys.model.model_fields.items():
        extra = info.json_schema_extra
        others = extra.get("env") if isinstance(extra, dict) else None
        names |= {str(other): field for other in others} if isinstance(others, list) else {}
        names[prefix + field.upper()] = field
        names[prefix + keys.alias_of[field]] = field
    return names


def _as_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, SecretStr):
        return "***"
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, default=str, separators=(",", ":"))
    return str(getattr(value, "value", value))
