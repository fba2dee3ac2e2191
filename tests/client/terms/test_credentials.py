"""Where a client finds who signs its requests."""

from pathlib import Path

import pytest

from aerobee import ClientConfig, Credentials, InvalidMessage
from aerobee.terms.credentials import credentials_of_environment, credentials_of_file


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "credentials"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "accessKey = anna\nsecretKey = a secret = ?\n",
        "# tools.yml\naccessKey: anna\nsecretKey: 'a secret = ?'\n\n",
        'secretKey="a secret = ?"\naccessKey=anna',
    ],
)
def test_a_file_is_read_in_either_form(tmp_path: Path, text: str) -> None:
    assert credentials_of_file(written(tmp_path, text)) == Credentials("anna", "a secret = ?")


def test_a_token_goes_with_them(tmp_path: Path) -> None:
    path = written(tmp_path, "accessKey=a\nsecretKey=b\nsecurityToken=c\n")
    assert credentials_of_file(path) == Credentials("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        ("accessKey=a\nsecretKey=geheim", 0o640, "chmod 600"),
        ("accessKey=a\nsecretKey=geheim", 0o604, "chmod 600"),
        ("accessKey=a\n", 0o600, "secretKey missing"),
        ("accessKey=\nsecretKey=\n", 0o600, "accessKey and secretKey missing"),
        ("accessKey=a\ngeheim\n", 0o600, "line 2: one of"),
        ("user=geheim\n", 0o600, "line 1: one of"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_without_what_is_in_it(
    tmp_path: Path, text: str, mode: int, reason: str
) -> None:
    with pytest.raises(InvalidMessage, match=reason) as refused:
        credentials_of_file(written(tmp_path, text, mode))
    assert "geheim" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidMessage, match="none: No such file"):
        credentials_of_file(tmp_path / "none")


def test_the_environment_names_them_or_the_file(tmp_path: Path) -> None:
    path = str(written(tmp_path, "accessKey=f\nsecretKey=g\n"))
    pair = {"AEROBEE_ACCESS_KEY": "a", "AEROBEE_SECRET_KEY": "b"}
    assert credentials_of_environment({}) is None
    assert credentials_of_environment({"AEROBEE_CREDENTIALS_FILE": path}) == Credentials("f", "g")
    assert credentials_of_environment({"AEROBEE_CREDENTIALS_FILE": path, **pair}) == Credentials("a", "b")
    with pytest.raises(InvalidMessage, match="go together"):
        credentials_of_environment({"AEROBEE_ACCESS_KEY": "a"})
    config = ClientConfig.from_env({"AEROBEE_NAMESERVERS": "a:1", "AEROBEE_CREDENTIALS_FILE": path})
    assert config.credentials == Credentials("f", "g")
