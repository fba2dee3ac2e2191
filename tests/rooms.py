"""The rooms inside each package, and which of them may import which: read from the source, compared with a table.

A room is a folder with a one-sentence purpose, the docstring of its `__init__.py`. What lies beside the folders is the
face of the package, but for the modules in LOOSE, which are rooms of one module.
`python tests/rooms.py` prints the house with its arrows; `--write` puts the rooms into docs/architecture.md.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from made_parts import MadePart

ROOT: Final = Path(__file__).resolve().parent.parent
FACE: Final = "face"
# Between them the page has what page_part() makes.
PAGE: Final = MadePart(
    ROOT / "docs" / "architecture.md",
    "<!-- Made by `python tests/rooms.py --write`. -->\n",
    "<!-- End of the rooms. -->\n",
)
SOURCES: Final = {
    "aerobee_broker": "broker",
    "aerobee_store": "broker",
    "aerobee_remoting": "proto",
    "aerobee_service": "proto",
    "aerobee_access": "proto",
    "aerobee_proto": "proto",
    "aerobee": "client",
    "aerobee_console": "console",
}
LOOSE: Final[dict[str, frozenset[str]]] = {
    "aerobee": frozenset({"errors"}),
    "aerobee_service": frozenset({"clock", "file_rights", "giving_way", "neighbours"}),
    "aerobee_broker": frozenset({"stats"}),
}
# Modules whose arrows are not counted yet. To become empty: whoever takes the bag apart takes its name away here.
UNCOUNTED: Final = frozenset[tuple[str, str]]()

# Room -> the rooms of its package that it imports, from the highest floor to the lowest.
HOUSE: Final[dict[str, dict[str, set[str]]]] = {
    "aerobee_broker": {
        "face": {
            "catalog",
            "cluster",
            "election",
            "in_process",
            "lives",
            "members",
            "messages",
            "metrics",
            "native",
            "pop",
            "process",
            "reading",
            "remoting_api",
            "replication",
            "schedule",
            "settings",
            "stats",
            "transactions",
            "upkeep",
            "workers",
        },
        "remoting_api": {
            "catalog",
            "lives",
            "members",
            "messages",
            "metrics",
            "native",
            "pop",
            "reading",
            "schedule",
            "settings",
            "stats",
            "transactions",
        },
        "in_process": {"catalog", "messages"},
        "cluster": {"catalog", "settings"},
        "pop": {"catalog", "members", "messages", "reading", "settings"},
        "schedule": {"catalog", "messages", "reading", "settings", "stats"},
        "transactions": {"catalog", "messages", "reading", "settings"},
        "replication": {"catalog", "settings"},
        "catalog": {"settings"},
        "metrics": {"catalog", "reading", "settings", "stats"},
        "upkeep": {"members", "settings"},
        "messages": {"catalog", "members", "reading", "settings", "stats"},
        "workers": {"process", "settings"},
        "members": set(),
        "reading": set(),
        "settings": set(),
        "native": set(),
        "election": {"lives", "settings"},
        "lives": {"settings"},
        "process": set(),
        "stats": set(),
    },
    "aerobee_store": {
        "face": {
            "checking",
            "cleaning",
            "disk",
            "faults",
            "index",
            "log",
            "queues",
            "reading",
            "recovery",
            "replicas",
            "terms",
            "timer",
            "walking",
            "writing",
        },
        "offline": {"disk", "faults", "index", "log", "queues", "records", "timer", "walking"},
        "checking": {"disk", "faults", "index", "log", "queues", "records", "terms", "walking"},
        "reading": {"disk", "faults", "index", "log", "queues", "terms", "walking", "writing"},
        "recovery": {"disk", "faults", "index", "log", "queues", "records", "terms", "walking"},
        "replicas": {"disk", "faults", "index", "log", "queues", "records", "terms", "walking", "writing"},
        "cleaning": {"disk", "index", "log", "queues", "records", "timer"},
        "walking": {"disk", "index", "log", "queues", "records"},
        "writing": {"faults", "index", "log", "queues", "records", "terms"},
        "log": {"disk", "faults", "records"},
        "queues": {"disk", "faults", "records"},
        "index": {"disk", "faults"},
        "records": {"disk"},
        "timer": {"disk", "faults"},
        "disk": {"faults"},
        "terms": {"faults"},
        "faults": set(),
    },
    "aerobee_remoting": {
        "ends": {"exchange", "peers"},
        "exchange": {"peers"},
        "peers": set(),
    },
    "aerobee_service": {
        "operators": {"neighbours", "program"},
        "tls": {"settings"},
        "program": {"logs"},
        "clock": set(),
        "neighbours": set(),
        "logs": set(),
        "settings": {"file_rights", "giving_way"},
        "file_rights": set(),
        "giving_way": set(),
        "turns": set(),
    },
    "aerobee": {
        "face": {"admin", "consuming", "errors", "messages", "producing", "session", "terms"},
        "session": {"admin", "consuming", "errors", "messages", "net", "producing", "terms"},
        "consuming": {"errors", "messages", "net", "producing", "terms"},
        "admin": {"errors", "messages", "net", "terms"},
        "producing": {"errors", "messages", "net", "terms"},
        "messages": {"errors", "terms"},
        "net": {"errors", "terms"},
        "terms": {"errors"},
        "errors": set(),
    },
    "aerobee_console": {
        "checks": {"cluster", "folder", "servers", "terminal"},
        "offline": {"folder", "servers", "terminal"},
        "servers": {"folder", "terminal"},
        "cluster": {"terminal"},
        "face": {"terminal"},
        "folder": {"terminal"},
        "jobs": {"terminal"},
        "traffic": {"terminal"},
        "access": {"folder", "terminal"},
        "terminal": set(),
    },
}
# Rooms, floors, arrows.
COUNTS: Final = {
    "aerobee_broker": (21, 6, 69),
    "aerobee_store": (17, 7, 85),
    "aerobee_remoting": (3, 3, 3),
    "aerobee_service": (10, 3, 6),
    "aerobee": (9, 7, 32),
    "aerobee_console": (10, 4, 16),
}

# Rooms of the broker that may see connections and requests: everywhere else use cases take and give values.
WIRE_ROOMS: Final = frozenset({FACE, "remoting_api", "cluster", "replication"})


def modules(package: str) -> dict[str, Path]:
    """Dotted name -> file, of all modules of a package."""
    source = ROOT / SOURCES[package]
    names = {
        ".".join(path.relative_to(source).with_suffix("").parts): path
        for path in sorted((source / package).rglob("*.py"))
    }
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def room_of(module: str, path: Path) -> str:
    """The room of a module, or of a package's folder of modules."""
    parts = module.split(".")
    if len(parts) > 2 or (len(parts) == 2 and path.name == "__init__.py"):
        return parts[1]
    return parts[1] if len(parts) == 2 and parts[1] in LOOSE.get(parts[0], ()) else FACE


def imported(path: Path, known: Mapping[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and name of every module of `known` that a file imports, in any place."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in known:
                    yield node.lineno, whole
                elif node.module in known:
                    yield node.lineno, node.module


def arrows(package: str) -> dict[str, dict[str, list[str]]]:
    """Room -> room -> the places (`file:line`) that import it."""
    known = modules(package)
    found: dict[str, dict[str, list[str]]] = {}
    # A package may have no face but its `__init__.py`.
    faceless = all(room_of(name, path) != FACE for name, path in known.items() if name != package)
    for name, path in known.items():
        room = room_of(name, path)
        if (package, room) in UNCOUNTED or (name == package and faceless):
            continue
        targets = found.setdefault(room, defaultdict(list))
        for line, other in imported(path, known):
            target = room_of(other, known[other])
            if target != room and (package, target) not in UNCOUNTED:
                targets[target].append(f"{path.relative_to(ROOT)}:{line}")
    return found


def floors(rooms: Mapping[str, set[str]]) -> dict[str, int]:
    """The floor of each room, 1 the lowest; rooms of a circle, and those above one, have none."""
    found: dict[str, int] = {}
    left = {room: set(targets) for room, targets in rooms.items()}
    while ready := [room for room, targets in left.items() if targets <= found.keys()]:
        for room in ready:
            found[room] = 1 + max((found[target] for target in left.pop(room)), default=0)
    return found


def purpose(package: str, room: str) -> str:
    folder = ROOT / SOURCES[package] / package / room
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def sentence(package: str, room: str) -> str:
    """The first sentence of what a room says of itself; of the face, what the package says."""
    words = " ".join(purpose(package, "" if room == FACE else room).split())
    found = re.match(r".*?\.(?= |$)", words)
    return found[0] if found else words


def page_part() -> str:
    """All rooms with floors and purposes, the highest first, as docs/architecture.md shows them."""
    lines = []
    for package, targets in HOUSE.items():
        floor = floors(targets)
        count = sum(map(len, targets.values()))
        lines += ["", f"    {package}: {len(targets)} rooms, {max(floor.values())} floors, {count} arrows"]
        for room in sorted(targets, key=lambda one: (-floor[one], one)):
            name = "(face)" if room == FACE else room
            lines.append(f"      {floor[room]} {name:13} {sentence(package, room)}")
    return "\n".join([*lines, "", ""])


def main() -> None:
    if "--write" in sys.argv:
        PAGE.write(page_part())
        return
    for package in HOUSE:
        found = {room: set(targets) for room, targets in arrows(package).items()}
        floor = floors(found)
        count = sum(len(targets) for targets in found.values())
        print(f"{package}: {len(found)} rooms, {max(floor.values())} floors, {count} arrows")
        for room in sorted(found, key=lambda one: (-floor.get(one, 0), one)):
            words = purpose(package, room).partition("\n")[0] if room != FACE else ""
            print(
                f"  {floor.get(room, '?')} {room:14} {words}\n{'':18}-> {', '.join(sorted(found[room])) or 'nothing'}"
            )


if __name__ == "__main__":
    main()
