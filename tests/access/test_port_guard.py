"""Who may see metrics: tokens, certificates, and whom a port is guarded from."""

import asyncio
import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from aerobee_access.control import AccessControl
from aerobee_access.policies import PolicyType, entry_of
from aerobee_access.port_guard import OperatorsGuard, TokenFile, TokenUnusable
from aerobee_access.refusals import FREE
from aerobee_access.settings import AccessSettings
from aerobee_service.operators.http_responder import HttpResponder, Page, Standing, Visitor

TOKEN = "a-token-of-24-characters"


def token_file(folder: Path, text: str = TOKEN + "\n", mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


def basic(user: str, word: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()


def guard_of(
    token: TokenFile | None, *, has_access_control: bool = True, certificates: bool = False
) -> OperatorsGuard:
    return OperatorsGuard(
        token,
        has_access_control=has_access_control,
        takes_certificates=certificates,
        may_look=lambda _host, subject: subject == "anna",
        refused=lambda *_: 0.0,
    )


GIVEN = {
    f"Bearer {TOKEN}": Standing.KNOWN,
    f"bearer  {TOKEN} ": Standing.KNOWN,
    basic("prometheus", TOKEN): Standing.KNOWN,
    basic("", TOKEN): Standing.KNOWN,
    "": Standing.STRANGER,
    f"Bearer {TOKEN[:-1]}": Standing.REFUSED,
    f"Bearer {TOKEN}x": Standing.REFUSED,
    f"Bearer {TOKEN}, Bearer {TOKEN}": Standing.REFUSED,
    "Bearer ": Standing.REFUSED,
    "Bearer \xe9\xff": Standing.REFUSED,
    TOKEN: Standing.REFUSED,
    f"Digest {TOKEN}": Standing.REFUSED,
    basic(TOKEN, ""): Standing.REFUSED,
    "Basic " + base64.b64encode(TOKEN.encode()).decode(): Standing.REFUSED,
    "Basic \xe9": Standing.REFUSED,
    "Basic /w==": Standing.REFUSED,
}


@pytest.mark.parametrize(("given", "standing"), GIVEN.items())
async def test_a_token_is_given_in_two_ways(tmp_path: Path, given: str, standing: Standing) -> None:
    visitor = Visitor("10.0.0.7", "10.0.0.7:5", given, asyncio.Transport())
    assert await guard_of(TokenFile(token_file(tmp_path))).standing(visitor) is standing
    expected = Standing.REFUSED if given else Standing.STRANGER
    assert await guard_of(None).standing(visitor) is expected  # nothing is right where there is no token


def test_a_port_is_guarded_where_there_is_a_token_or_others_can_dial_one_with_access_control(
    tmp_path: Path,
) -> None:
    token = TokenFile(token_file(tmp_path))
    open_ports = {
        (has_token, has_users, inner)
        for has_token in (True, False)
        for has_users in (True, False)
        for inner in (True, False)
        if not guard_of(token if has_token else None, has_access_control=has_users).is_needed(
            of_this_machine=inner
        )
    }
    assert open_ports == {(False, True, True), (False, False, True), (False, False, False)}
    assert guard_of(None).lets_nobody_in
    assert not guard_of(None, certificates=True).lets_nobody_in
    assert not guard_of(token).lets_nobody_in


UNUSABLE = {
    "others may read it": (TOKEN, 0o640, "may be read by others: chmod 600"),
    "it is empty": ("\n", 0o600, "one word"),
    "it is short": ("secret", 0o600, "one word of 16 letters"),
    "it has two words": (f"{TOKEN} {TOKEN}", 0o600, "one word"),
    "it has letters that no header has": (f"{TOKEN}\u00e9", 0o600, "ASCII"),
}


@pytest.mark.parametrize(("text", "mode", "said"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_file_that_cannot_be_used_is_refused_and_not_shown(
    tmp_path: Path, text: str, mode: int, said: str
) -> None:
    path = token_file(tmp_path, text, mode)
    with pytest.raises(TokenUnusable, match=said) as refused:
        TokenFile(path)
    assert str(path) in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenUnusable, match="No such file"):
        TokenFile(tmp_path / "none")


def test_a_new_token_counts_at_once_and_one_that_cannot_be_used_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = token_file(tmp_path)
    kept = TokenFile(path)
    assert kept.token() == TOKEN
    other = "another-token-of-this-server"
    token_file(tmp_path, other)
    with caplog.at_level("INFO"):
        assert kept.token() == other
        path.write_text("short")
        assert [kept.token() for _ in range(3)] == [other] * 3
        path.unlink()
        assert [kept.token() for _ in range(3)] == [other] * 3
        token_file(tmp_path)
        assert kept.token() == TOKEN
    assert [getattr(record, "event", "") for record in caplog.records] == [
        "metrics.token_changed",
        "metrics.token_unusable",
        "metrics.token_unusable",
        "metrics.token_changed",
    ]
    assert TOKEN not in caplog.text
    assert other not in caplog.text


async def ask(port: int, fields: str = "", tls: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write(f"GET /metrics HTTP/1.1\r\n{fields}\r\n".encode())
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


async def metrics() -> Page:
    return Page(b"figures")


def control(folder: Path, **settings: Any) -> AccessControl:
    config = AccessSettings(access_audit_path=str(folder / "audit.log"), **settings)
    return AccessControl(config, cluster_name="C", folder=folder / "store")


async def test_who_guesses_is_counted_written_down_and_waits(tmp_path: Path) -> None:
    access = control(
        tmp_path, authentication_enabled=True, metrics_prom_exporter_token_path=str(token_file(tmp_path))
    )
    responder = HttpResponder({"/metrics": metrics}, guard=access.port_guard(takes_certificates=False))
    port = await responder.start("127.0.0.1", 0)
    try:
        for number in range(FREE):
            assert (await ask(port, f"Authorization: Bearer guess-{number}\r\n"))[0] == 401
        late = asyncio.create_task(ask(port))
        while not access.figures().delayed:  # noqa: ASYNC110  # it is being refused
            await asyncio.sleep(0)
        assert await ask(port, f"Authorization: Bearer {TOKEN}\r\n") == (200, b"figures")
        assert (await late)[0] == 401
    finally:
        await responder.close()
        await asyncio.to_thread(access.close)
    figures = access.figures()
    assert (figures.refused["metrics"], figures.delayed) == (FREE + 1, 1)
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert len(lines) == FREE + 1
    assert '"request": "GET /metrics", "reason": "the credentials are not right"' in lines[0]
    assert "guess-" not in "".join(lines)


async def test_a_certificate_shows_metrics_to_users_that_may_see_the_server(tmp_path: Path) -> None:
    authority = trustme.CA()
    serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(serves)
    authority.configure_trust(serves)
    serves.verify_mode = ssl.CERT_OPTIONAL
    access = control(tmp_path, authentication_enabled=True, authorization_enabled=True)
    for name in ("anna", "bert"):
        access.table.create_user(name, "a secret")
    access.table.write_acl("anna", [(PolicyType.CUSTOM, [entry_of("Cluster:C", ["Get"], None, "Allow")])])
    access.table.write_acl("bert", [(PolicyType.CUSTOM, [entry_of("Topic:*", ["All"], None, "Allow")])])
    responder = HttpResponder(
        {"/metrics": metrics}, lambda: serves, access.port_guard(takes_certificates=True)
    )
    port = await responder.start("127.0.0.1", 0)
    found = {}
    try:
        for name in ("anna", "bert", "nobody", ""):
            dials = ssl.create_default_context()
            authority.configure_trust(dials)
            if name:
                authority.issue_cert("x.local", common_name=name).configure_cert(dials)
            found[name] = (await ask(port, tls=dials))[0]
    finally:
        await responder.close()
        await asyncio.to_thread(access.close)
    assert found == {"anna": 200, "bert": 401, "nobody": 401, "": 401}
