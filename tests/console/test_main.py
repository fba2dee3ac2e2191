"""The command tree, help, and how errors come out."""

import subprocess
import sys

import pytest

from aerobee_console import main as module
from aerobee_console.main import COMMANDS, main
from aerobee_console.terminal.program_name import program_name
from console.support import Runner, environment, program

SUBCOMMANDS = {
    "topic": ["list", "describe", "route", "create", "alter", "delete"],
    "group": ["list", "describe", "create", "delete"],
    "cluster": ["status", "config"],
    "store": ["verify", "dump"],
}
PATHS = [
    *([name] for name, *_ in COMMANDS),
    *([name, verb] for name, verbs in SUBCOMMANDS.items() for verb in verbs),
]


def test_help_names_every_command(aerobee: Runner) -> None:
    shown = aerobee("--help")
    assert shown.code == 0
    assert all(f" {name} " in shown.out for name, *_ in COMMANDS)
    assert "Exit codes" in shown.out


def test_no_arguments_at_all_show_the_help(aerobee: Runner) -> None:
    assert aerobee() == aerobee("--help")


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_has_help(path: list[str], aerobee: Runner) -> None:
    shown = aerobee(*path, "--help")
    assert shown.code == 0
    assert shown.out.startswith(f"Usage: aerobee {' '.join(path)}")
    assert "Exit codes" not in shown.out, "the epilogue is for the first page"


def test_the_version_is_the_installed_one(aerobee: Runner) -> None:
    from importlib.metadata import version

    assert aerobee("--version").out == version("aerobee") + "\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_and_version_load_no_client_and_no_server(words: list[str]) -> None:
    """They are typed to find out what there is, so they come at once."""
    script = (
        "import sys; from aerobee_console.main import main; code = main(sys.argv[1:]);"
        "print(*sorted(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True, timeout=60
    )
    interrupts = {"aerobee_service", "aerobee_service.program", "aerobee_service.program.interrupts"}
    modules = set(done.stderr.split()) - interrupts  # a few lines
    loaded = {name.partition(".")[0] for name in modules}
    assert "aerobee_console" in loaded
    unwanted = {
        "aerobee",
        "aerobee_proto",
        "aerobee_service",
        "aerobee_remoting",
        "aerobee_broker",
        "aerobee_nameserver",
    }
    assert (
        loaded & (unwanted | {"aerobee_store", "numpy", "uvloop", "structlog", "pydantic", "asyncio"})
        == set()
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sned"], 'Unknown command "sned". Did you mean "send"?'),
        (["send", "t", "b", "--tgs", "x"], "Unknown option: --tgs. Did you mean --tags?"),
        (["send"], "requires an argument"),
        (["send", "t", "b", "--queue", "many"], 'unable to convert "many" into int'),
        (["topic", "crate"], 'Unknown command "crate"'),
        (["tail", "t", "-o", "xml"], "xml"),
    ],
)
def test_wrong_arguments_are_one_line_and_the_way_to_the_help(
    words: list[str], said: str, aerobee: Runner
) -> None:
    refused = aerobee(*words)
    assert refused.code == 2
    assert refused.out == ""
    first, *rest = refused.err.splitlines()
    assert first.startswith("aerobee: ")
    assert said in refused.err
    assert rest[-1].startswith(f"see: {program_name()} ")
    assert "Traceback" not in refused.err


def test_the_way_to_the_help_is_one_that_works(aerobee: Runner) -> None:
    line = aerobee("topic", "crate").err.splitlines()[-1]
    done = subprocess.run(
        line.removeprefix("see: "), shell=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0


def test_an_unforeseen_error_says_what_and_asks_for_a_report(
    aerobee: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(module, "make_app", lambda: lambda *_, **__: broken())
    failed = aerobee("tail", "t")
    assert failed.code == 1
    assert failed.err.startswith("aerobee: unexpected ZeroDivisionError: a bug\n")
    assert "--debug" in failed.err
    with pytest.raises(ZeroDivisionError):
        main(["tail", "t", "--debug"])


def test_debug_behind_two_dashes_is_a_word_like_any_other() -> None:
    assert module.split_debug(["send", "t", "--", "--debug"]) == (["send", "t", "--", "--debug"], False)
    assert module.split_debug(["send", "--debug", "t"]) == (["send", "t"], True)


def test_an_interrupt_ends_in_silence(aerobee: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "make_app", lambda: lambda *_, **__: interrupted())
    ended = aerobee("tail", "t")
    assert (ended.code, ended.out, ended.err) == (130, "", "")


def test_the_package_runs_as_a_program() -> None:
    shown = program("--version")
    assert (shown.code, shown.err) == (0, "")


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_a_reader_that_goes_away_is_no_complaint(words: list[str]) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "aerobee_console", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert started.stdout is not None
    started.stdout.close()
    with started, started.stderr as errors:  # type: ignore[union-attr]  # it is a pipe
        assert errors.read() == b""


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--store=~/x", "--store=/its/home/x"),
        ("--to=~/", "--to=/its/home/"),
        ("--store=~me", "--store=~me"),
        ("--property=k=~/x", "--property=k=~/x"),
        ("-n=~/x", "-n=~/x"),
        ("~/x", "~/x"),
        ("a=~/x", "a=~/x"),
    ],
)
def test_the_home_folder_is_found_behind_an_equals_sign(
    word: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--store=~/store` reached the command as it is, for shells do not look there."""
    monkeypatch.setenv("HOME", "/its/home")
    assert module.at_home(word) == meant


def test_a_word_too_many_is_told_in_words(aerobee: Runner) -> None:
    """It was "Unused Tokens: ['extra']"."""
    refused = aerobee("topic", "create", "t", "extra")
    assert refused.code == 2
    assert "topic create takes no further argument: extra" in refused.err
    assert refused.err.endswith(" topic create --help\n")
