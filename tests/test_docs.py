"""The documents say what the code does: keys, defaults, events, metrics, commands, bytes shown, links, settings."""

import ast
import asyncio
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from urllib.request import urlopen

import pytest
from cyclopts import CycloptsError, MissingArgumentError
from pydantic.fields import FieldInfo

import rooms
from aerobee_broker.lives.seating import ElectionStatistics
from aerobee_broker.settings.config import BrokerConfig
from aerobee_broker.workers.pages import ServicePort
from aerobee_console.main import make_app
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.metrics import MetricsServer as NameserverMetrics
from aerobee_nameserver.server import NameServer
from aerobee_proto.frames import FrameDecoder, decode_command
from aerobee_proto.records import decode_record
from aerobee_service.settings.settings import SettingsModel, load_settings
from programs import free_port
from system.running import running_broker

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SOURCE_ROOTS = ("proto", "broker", "nameserver", "client", "console")
EVENT = re.compile(r"^[a-z]+\.[a-z][a-z0-9_]+$")
METRIC = re.compile(r"`((?:rocketmq|aerobee)_[a-z_]+[a-z])`")
COMMAND = re.compile(
    r"(?:`|^    (?:\$ |[A-Z_]+=\S+ )*)(?:\.venv/bin/|python -m )?aerobee "
    r"([a-z-](?:[^ \n`]| (?! )|\n(?=[^\n]))*)",
    re.MULTILINE,
)
LOGGING = re.compile(r"(?:^|\.)_?log(?:ger)?(?:_\w+|\.(?:info|warning|error|exception|critical))$")
LINK = re.compile(r"\[[^]]*\]\(([^)#:]+)(?:#[^)]*)?\)")

MARKDOWN = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("d*/*.md")), ROOT / "bench/README.md"]
PAGES = pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


# --- architecture.md


def definitions(tree: ast.Module) -> set[str]:
    """Functions and classes of a module, and `Class.method` of its classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = {node.name for node in tree.body if isinstance(node, kinds)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return found | {
        f"{one.name}.{node.name}" for one in classes for node in one.body if isinstance(node, kinds)
    }


def parts_of(name: str, modules: dict[str, ast.Module]) -> list[tuple[str, str]]:
    """Each module that a name may mean, by the end of its own name, and what it names in there."""
    words = name.split(".")
    cuts = [(".".join(words[:at]), ".".join(words[at:])) for at in range(len(words), 0, -1)]
    return [
        (module, inside) for head, inside in cuts for module in modules if f".{module}".endswith(f".{head}")
    ]


def test_architecture_shows_every_room_with_its_purpose() -> None:
    assert rooms.PAGE.shown() == rooms.page_part(), "python tests/rooms.py --write"


@pytest.mark.parametrize(("walk", "at_least"), [("send", 15), ("pull", 10), ("commit", 5)])
def test_the_ways_through_the_house_name_what_is_there(walk: str, at_least: int) -> None:
    modules = {
        name: ast.parse(path.read_text(encoding="utf-8"))
        for package in rooms.SOURCES
        for name, path in rooms.modules(package).items()
    }
    section = text_of("architecture.md").partition(f"## The way of a {walk}\n")[2].partition("\n## ")[0]
    names = re.findall(r"`([a-z_]+(?:\.\w+)+)`", section)
    assert len(names) >= at_least
    for name in names:
        found = [
            module
            for module, inside in parts_of(name, modules)
            if not inside or inside in definitions(modules[module])
        ]
        assert len(found) == 1, (name, found)


def test_the_architecture_names_files_that_are_there() -> None:
    files = [
        f"/{path.relative_to(ROOT)}"
        for top in {"tests", "pipeline", *rooms.SOURCES.values(), "nameserver"}
        for path in (ROOT / top).rglob("*.py")
    ]
    names = re.findall(r"`([\w/]+\.py)`", text_of("architecture.md"))
    assert len(names) > 10
    for name in names:
        assert any(file.endswith(f"/{name}") for file in files), name


def test_a_name_that_is_not_there_is_found() -> None:
    modules = {"a.b.c": ast.parse("class D:\n    def e(self): ...\n\ndef f(): ...")}
    assert definitions(modules["a.b.c"]) == {"D", "D.e", "f"}
    assert parts_of("b.c.D.e", modules) == [("a.b.c", "D.e")]
    assert parts_of("b.c", modules) == [("a.b.c", "")]
    assert parts_of("d.c.f", modules) == []


def hex_lines(text: str) -> bytes:
    """The bytes of indented lines: groups of hex digits at their start, up to two blanks and a word."""
    lines = [re.match(r"    ((?:[0-9a-f]{2,} {1,2})+)", line + " ") for line in text.splitlines()]
    return bytes.fromhex("".join(line[1] for line in lines if line))


# --- configuration.md


def shown_default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True, validated_data={})
    text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
    text = text.replace(str(Path.home()), "~")
    return f"`{text}`" if text else ""


def row_of(info: FieldInfo) -> str:
    """The line of the broker's table for one key."""
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    unit = str(extra.get("unit", ""))
    hot = "yes" if extra.get("hot") else ""
    return f"| `{info.alias}` | {shown_default(info)} | {unit} | {hot} | {info.description} |"


@pytest.mark.parametrize("name", BrokerConfig.model_fields)
def test_every_broker_key_is_documented(name: str) -> None:
    row = row_of(BrokerConfig.model_fields[name])
    assert row in text_of("configuration.md").splitlines(), f"docs/configuration.md needs this line:\n{row}"


@pytest.mark.parametrize("name", NameserverConfig.model_fields)
def test_every_nameserver_key_is_documented(name: str) -> None:
    info = NameserverConfig.model_fields[name]
    start = f"| `{info.alias}` | {shown_default(info)} |"
    assert start in text_of("configuration.md"), f"docs/configuration.md needs a line that starts:\n{start}"


def test_no_key_is_documented_that_is_gone() -> None:
    known = {info.alias for model in (BrokerConfig, NameserverConfig) for info in model.model_fields.values()}
    documented = set(re.findall(r"^\| `([A-Za-z0-9]+)` \|", text_of("configuration.md"), re.MULTILINE))
    assert documented - known == set()


# --- deploy/


def settings(model: type[SettingsModel], name: str) -> SettingsModel:
    return load_settings(model, file=ROOT / "deploy" / name, environ_prefix="NONE_", overrides={}, environ={})


def test_the_example_settings_are_right_and_say_the_same() -> None:
    assert settings(BrokerConfig, "broker.conf") == settings(BrokerConfig, "broker.toml")


def test_the_image_is_built_from_everything_that_the_distribution_holds() -> None:
    """The folder of the pipeline was left out, and the command that needs it gave advice that could not help."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        packages = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    folders = {package.partition("/")[0] for package in packages}
    assert "pipeline" in folders
    copied = re.findall(r"^COPY (\w+) \1$", (ROOT / "deploy/Containerfile").read_text(), re.MULTILINE)
    let_in = re.findall(r"^!(\w+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert folders <= set(copied)
    assert folders <= set(let_in)


# --- operations.md


def events() -> Iterator[tuple[str, Path]]:
    """Every event name that the programs log above debug, with the file that does."""
    for root in SOURCE_ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for name in ast.walk(naming_part(node)):
                    if isinstance(name, ast.Constant) and EVENT.match(str(name.value)):
                        yield str(name.value), path.relative_to(ROOT)


def naming_part(node: ast.AST) -> ast.AST:
    """The part of a statement that names an event: a log call's first argument, what `event` is set to."""
    match node:
        case ast.Call(func=function, args=[first, *_]) if LOGGING.search(ast.unparse(function)):
            return first
        case ast.Assign(targets=[ast.Name(id="event")], value=value):
            return value
    return ast.Pass()


def test_every_event_is_documented() -> None:
    documented = set(re.findall(r"`([a-z]+\.[a-z0-9_]+)`", text_of("operations.md")))
    missing = {name: str(path) for name, path in events() if name not in documented}
    assert not missing, f"docs/operations.md says nothing about: {missing}"


def levels() -> dict[str, set[str]]:
    """The levels with which each event is logged by the servers, as far as a call says it by its name."""
    found: dict[str, set[str]] = {}
    for root in ("proto", "broker", "nameserver"):
        for path in (ROOT / root).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(
                        func=ast.Attribute(attr="info" | "warning" | "error" | "exception" as level),
                        args=[ast.Constant(value=str(name)), *_],
                    ) if EVENT.match(name):
                        found.setdefault(name, set()).add("error" if level == "exception" else level)
    return found


def test_the_level_of_an_event_is_the_one_that_is_documented() -> None:
    """A full disk was an error on the page and a warning in the log; three warnings stood in the table of ordinary
    events."""
    known = levels()
    assert len(known) > 80
    calling, ordinary = text_of("operations.md").split("### Events of ordinary life")
    wrong: dict[str, set[str]] = {}
    for line in (calling + ordinary.split("In programs that use")[0]).splitlines():
        if line.startswith("| `"):
            names, level = line[2:].split(" | ")[:2]
            stated = level if line in calling else "info" + level
            logged = set(re.findall("error|warning|info", stated))
            wrong |= {
                name: known[name]
                for name in re.findall(r"`([a-z]+\.[a-z0-9_]+)`", names)
                if not known.get(name, set()) <= logged
            }
    assert wrong == {}


def test_no_event_is_documented_that_is_gone() -> None:
    documented = set(re.findall(r"^\| `([a-z]+\.[a-z0-9_]+)` \|", text_of("operations.md"), re.MULTILINE))
    assert documented - {name for name, _ in events()} == set()


async def test_the_metrics_of_the_page_are_those_that_are_served(tmp_path: Path) -> None:
    """Eleven that are made of the broker's state (`aerobee_broker_...`) were served and not documented."""
    nameserver = NameserverMetrics(
        NameServer(
            NameserverConfig.model_validate({"bindAddress": "127.0.0.1", "metricsPromExporterPort": 0}),
            keep_kv=False,
        )
    )
    broker_port = free_port()
    workers = ServicePort([])
    await nameserver.start()
    await workers.start(BrokerConfig(metrics_prom_exporter_port=free_port()))
    try:
        served = await metrics_of(nameserver.port) | await metrics_of(workers.port)
        async with running_broker(
            tmp_path, metrics_exporter_type="PROM", metrics_prom_exporter_port=broker_port
        ):
            served |= await metrics_of(broker_port)
            # Those of a set with an election: `aerobee_broker_` and the name of the figure.
            served |= {f"aerobee_broker_{field.name}" for field in fields(ElectionStatistics)}
    finally:
        await workers.close()
        await nameserver.close()
    page, missing = text_of("operations.md").split("Of RocketMQ's own metrics these are missing")
    assert {name for name in served if not name.startswith("process_")} == set(METRIC.findall(page))
    assert served.isdisjoint(METRIC.findall(" ".join(re.findall(r"^\|[^|]*", missing, re.MULTILINE))))


async def metrics_of(port: int) -> set[str]:
    """The names of all series that the page at a port may have."""
    text = await asyncio.to_thread(
        lambda: str(urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read(), "utf-8")
    )
    families = re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE)
    return {
        name if kind != "counter" or name.endswith("_total") else f"{name}_total" for name, kind in families
    }


# --- commands


def shown_commands(page: Path) -> Iterator[str]:
    """The commands `aerobee ...` of a page: in backticks, or on indented lines up to two blanks."""
    text = page.read_text(encoding="utf-8").replace("\\\n", "")
    for found in COMMAND.finditer(text):
        yield " ".join(found[1].split())


def words_of(command: str) -> list[str]:
    """What a reader types: an option in brackets too, a value for each placeholder."""
    for shown, typed in {
        r"\[(-[^]]*)\]": r"\1",
        r"\$\(.*?\)": "90s",
        r"KEY=VALUE": "key=value",
        r"\bN\b": "4",
    }.items():
        command = re.sub(shown, typed, command)
    return shlex.split(command.rstrip(".,;:"), comments=True)


@PAGES
def test_every_command_that_a_page_shows_is_one(page: Path) -> None:
    """Its name and options are the program's. An argument may be left out, where a page speaks of the command."""
    app = make_app()
    for command in shown_commands(page):
        try:
            app.parse_args(words_of(command), exit_on_error=False, print_error=False)
        except MissingArgumentError:
            continue
        except CycloptsError as wrong:
            pytest.fail(f"{page.name} shows `aerobee {command}`: {wrong}")


def test_a_command_that_is_none_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`aerobee topci list`, and\n\n    aerobee send T hello --delay 3    level 3\n"
        "    .venv/bin/aerobee dev --sotre x\n"
    )
    wrong, right, misspelt = shown_commands(page)
    assert (wrong, right, misspelt) == ("topci list", "send T hello --delay 3", "dev --sotre x")
    for command in (wrong, misspelt, "store foo"):
        with pytest.raises(CycloptsError):
            make_app().parse_args(words_of(command), exit_on_error=False, print_error=False)


# --- bytes


def test_the_record_drawn_in_the_docs_is_one() -> None:
    drawn = text_of("data-files.md").split("## A record, byte by byte")[1]
    record = decode_record(hex_lines(drawn))
    assert (record.topic, record.body, record.physical_offset) == ("T1", b"hi", 1000)
    assert record.property_map == {"TAGS": "TagA"}


def test_the_request_drawn_in_the_docs_is_the_same_in_both_codecs() -> None:
    drawn = text_of("wire.md").split("The same request in both official codecs")[1].split("## ")[0]
    in_json = re.search(r"([0-9a-f]{8}) ([0-9a-f]{8}) (\{.*\})", drawn, re.DOTALL)
    assert in_json
    text = re.sub(r"\n +", "", in_json[3])
    stream = bytes.fromhex(in_json[1] + in_json[2]) + text.encode() + hex_lines(drawn.replace(in_json[0], ""))
    first, second = [decode_command(frame) for frame in FrameDecoder().feed(stream)]
    assert (first.code, first.ext, first.opaque) == (105, {"topic": "T1"}, 7)
    assert (second.code, second.ext, second.opaque) == (first.code, first.ext, first.opaque)


@PAGES
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@PAGES
def test_links_lead_to_headings_that_are_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [
        f"{target}#{name}" for target, name in links if name not in anchors(page.parent, target or page.name)
    ] == []


def anchors(folder: Path, page: str) -> set[str]:
    """What a link into a page may name: its headings, as they are made into anchors."""
    headings = re.findall(r"^#+ (.*)$", (folder / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@PAGES
def test_what_is_to_be_installed_is_the_checkout(page: Path) -> None:
    """docs/pipeline.md asked a registry for `aerobee`: the project is on none: somebody else may have the name."""
    installed = re.findall(r"pip install [^\n`]*", page.read_text(encoding="utf-8"))
    assert [words for words in installed if re.search(r"[\s'\"]aerobee\b", words)] == []
