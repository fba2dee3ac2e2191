"""The command `aerobee`: the tree of sub-commands, and the one place where errors become text and exit codes.

Touches  the process: arguments, standard streams, exit code. Sub-commands are imported when one is called, so
         `aerobee --help` and `--version` load neither client nor broker.

Exit codes  see `aerobee_console.terminal.failures`.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from aerobee_console.terminal.failures import OK, USAGE, describe, exit_code_of
from aerobee_console.terminal.program_name import program_name
from aerobee_service.program.interrupts import INTERRUPTED, loading_ends_quietly

if TYPE_CHECKING:
    from cyclopts import App

__all__ = ["main", "make_app"]

HELP: Final = "A message broker that speaks RocketMQ's protocol: run it, send, read, look inside."
EPILOGUE: Final = (
    "Start with `aerobee dev`, then `aerobee send greetings hello` in a second terminal.\n\n"
    "Exit codes: 0 well, 1 damage or a fault was found, 2 wrong arguments, settings or files, 3 a server did not "
    "answer, 4 a server refused, 5 not found. `--debug` shows where an error comes from."
)

# name, module:function, one line of help, group. `topic`, `group` and `store` are apps of their own.
COMMANDS: Final = (
    ("dev", "servers.dev:dev", "Run a nameserver and a broker in one process, to try things out.", "Servers"),
    ("nameserver", "servers.daemons:nameserver", "Run a nameserver.", "Servers"),
    ("broker", "servers.daemons:broker", "Run a broker.", "Servers"),
    ("send", "traffic.sending:send", "Send one message, or one a line from a file.", "Messages"),
    (
        "consume",
        "traffic.reading:consume",
        "Print the messages of a topic, for a group or for nobody.",
        "Messages",
    ),
    ("tail", "traffic.reading:tail", "Print the newest messages of a topic.", "Messages"),
    ("query", "traffic.querying:query", "Find messages by key or id.", "Messages"),
    ("topic", "cluster.topics:app", "List, create, describe, alter and delete topics.", "Cluster"),
    (
        "group",
        "cluster.groups:app",
        "List, describe, alter and reset consumer groups; look into members.",
        "Cluster",
    ),
    ("cluster", "cluster.cluster:app", "List the brokers; show figures and settings of one.", "Cluster"),
    ("access", "access.commands:app", "Certificates; accounts of RocketMQ 4.x as users.", "Cluster"),
    (
        "doctor",
        "checks.doctor:doctor",
        "Look for what usually goes wrong, and say how to mend it.",
        "Cluster",
    ),
    ("store", "offline.store_commands:app", "Verify, dump or repair a store folder.", "Files"),
    ("pipeline", "jobs.pipelines:app", "Archive, restore, audit and measure messages with Spark.", "Files"),
)


def make_app() -> "App":
    """The command tree. Nothing of a sub-command is imported before it is called.

    ModuleNotFoundError where the extra of the command line is not installed.
    """
    from cyclopts import App, Group

    app = App(
        "aerobee",
        help=HELP,
        help_epilogue=EPILOGUE,
        version=_version,
        version_flags=["--version"],
        help_flags=["--help", "-h"],
        help_format="plaintext",
        result_action="return_value",
    )
    groups = {name: Group.create_ordered(name) for name in ("Servers", "Messages", "Cluster", "Files")}
    for position, (name, target, help_text, group) in enumerate(COMMANDS):
        # The epilogue is for the first page; an app of its own says so itself.
        more = {} if target.endswith(":app") else {"help_epilogue": ""}
        app.command(
            f"aerobee_console.{target}",
            name=name,
            help=help_text,
            group=groups[group],
            sort_key=position,
            **more,
        )
    app.register_install_completion_command(group=groups["Files"])
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; no error leaves as an exception unless `--debug` asks for it."""
    words, debug = split_debug(list(sys.argv[1:] if arguments is None else arguments))
    with loading_ends_quietly():
        return _run(words, debug)


def _run(words: list[str], debug: bool) -> int:
    words = [at_home(word) for word in words]
    if debug:
        os.environ["AEROBEE_DEBUG"] = "1"  # for the logs of the client, which are set up by the command
    # Loading modules makes many objects that stay: looking through them for garbage is an eighth of a start.
    gc.set_threshold(100_000, 50, 50)
    try:
        result = make_app()(words or ["--help"], exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_is_gone()
    except Exception as failed:
        if _is_misused(failed):
            _complain(f"{_misuse(failed, words)}\nsee: {program_name()} {_command_of(words)}--help")
            return USAGE
        if debug:
            raise
        _complain(describe(failed))
        return exit_code_of(failed)
    return result if isinstance(result, int) else OK


def _is_misused(failed: Exception) -> bool:
    """Whether the arguments do not fit the command. The library that finds it is an extra, so its errors are known by
    name."""
    return any(kind.__name__ == "CycloptsError" for kind in type(failed).__mro__)


def _misuse(failed: Exception, words: list[str]) -> str:
    """What does not fit, in words of ours where the library's are its own jargon."""
    unused = getattr(failed, "unused_tokens", None)
    if not unused or type(failed).__name__ != "UnusedCliTokensError":
        return str(failed)
    return f"{_command_of(words).strip() or 'this'} takes no further argument: {' '.join(unused)}"


def split_debug(words: list[str]) -> tuple[list[str], bool]:
    """The arguments without `--debug`, which any command takes; what follows `--` is left alone."""
    options = words[: words.index("--")] if "--" in words else words
    if "--debug" not in options:
        return words, False
    words = words.copy()
    words.remove("--debug")
    return words, True


def at_home(word: str) -> str:
    """`--store=~/store` as it is meant: shells replace a ~ at the beginning of a word only."""
    option, equals, value = word.partition("=~/")
    if not equals or not option.startswith("--") or "=" in option:
        return word
    home = os.path.expanduser("~/")  # noqa: PTH111  # Path would raise where there is none
    return f"{option}={home}{value}"


def _command_of(words: list[str]) -> str:
    """The command whose help to read: the leading words that are names of commands and sub-commands."""
    chain = make_app().parse_commands(words)[0]
    return "".join(f"{name} " for name in chain if not name.startswith("-"))


def _complain(text: str) -> None:
    """An error for people: `aerobee: what is wrong`, further facts on lines of their own."""
    sys.stderr.write(f"aerobee: {text.strip()}\n")


def _reader_is_gone() -> int:
    """`aerobee tail ... | head` is no error: end in silence, as programs that SIGPIPE ends do."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _version() -> str:
    from importlib.metadata import version

    return version("aerobee")
