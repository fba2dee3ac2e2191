"""Connecting: what is wrong with an address or with TLS is told in words that are true."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from console.support import Runner


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server of another kind: it answers anything with these bytes and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(4096)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


def test_tls_to_a_plain_port_is_told(cluster: Runner) -> None:
    """The reason was empty: "cannot connect to 127.0.0.1:9876: "."""
    refused = cluster("topic", "list", "--tls")
    assert refused.code == 3
    assert "the TLS handshake failed" in refused.err
    assert "does the server speak TLS (tlsServerMode)?" in refused.err


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file or directory"), ("text", "no certificates in PEM form in it")]
)
def test_a_file_of_certificates_that_is_none_is_named(
    content: str | None, said: str, tmp_path: Path, aerobee: Runner
) -> None:
    """It was "No such file or directory", of no file and no option."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    refused = aerobee("topic", "list", "--tls-ca", str(file))
    assert (refused.code, refused.err) == (2, f"aerobee: --tls-ca {file}: {said}\n")


@pytest.mark.parametrize(
    "words", [["topic", "list"], ["topic", "describe", "x"], ["send", "x", "y"]], ids=" ".join
)
def test_a_broker_in_place_of_a_nameserver_is_told(
    words: list[str], cluster: Runner, aerobee: Runner
) -> None:
    """It was "code 3: request type 105 not supported"."""
    cluster("topic", "create", "c-topic", "--queues", "1")
    (route,) = cluster("topic", "route", "c-topic", "-o", "json").json["routes"]
    refused = aerobee(*words, "-n", route["addr"])
    assert refused.code == 3
    assert "is no nameserver; a broker? Its nameserver is usually at port 9876" in refused.err
    assert "not supported" not in refused.err


def test_another_kind_of_server_is_told_when_it_cuts_the_connection(aerobee: Runner) -> None:
    """The command waited out its time-out, and a log line of the library stood between its own."""
    with answering(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") as addr:
        refused = aerobee("topic", "list", "-n", addr, "--timeout", "60")
    assert refused.code == 3
    assert re.search(r"^aerobee: list topics: no nameserver answered\n  nameserver ", refused.err)
    assert "remoting." not in refused.err


def test_an_address_is_named_once_a_line(aerobee: Runner) -> None:
    refused = aerobee("topic", "list", "-n", "127.0.0.1:1")
    assert refused.code == 3
    assert [line.count("127.0.0.1:1") for line in refused.err.splitlines()] == [0, 1, 0]
