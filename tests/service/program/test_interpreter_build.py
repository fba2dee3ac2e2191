"""A Python that was compiled without optimisation is named, whoever compiled it."""

import pytest

from aerobee_service.program.interpreter_build import interpreter_build

FLAGS = "-Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall"


@pytest.mark.parametrize(
    ("config_args", "flags", "kind", "is_slow"),
    [
        ("'--enable-optimizations' '--with-lto' '--enable-shared'", FLAGS, "optimised (PGO, LTO)", False),
        ("'--prefix=/opt/python' '--enable-optimizations'", FLAGS, "optimised (PGO)", False),
        ("'CC=gcc'", f"{FLAGS} -fprofile-use -flto", "optimised (PGO, LTO)", False),
        ("'--enable-shared' '--prefix=/usr' '--libdir=/usr/lib'", FLAGS, "system's packages", False),
        ("'--prefix=/usr/local'", FLAGS, "without profile-guided optimisation and LTO", True),
        ("'--prefix=/usr-own'", FLAGS, "without profile-guided optimisation and LTO", True),
        ("'--prefix=/opt/pyenv/versions/3.11.7' '--with-lto'", FLAGS, "guided optimisation", True),
        ("", FLAGS, "does not say", False),
    ],
)
def test_the_kind_of_build(config_args: str, flags: str, kind: str, is_slow: bool) -> None:
    build = interpreter_build(config_args, flags, debug=False)
    assert kind in build.text
    assert build.is_slow is is_slow
    assert bool(build.remedy) is is_slow


def test_a_build_for_debugging_is_slow_however_it_was_optimised() -> None:
    build = interpreter_build("'--enable-optimizations'", FLAGS, debug=True)
    assert (build.is_slow, "for debugging" in build.text) == (True, True)
