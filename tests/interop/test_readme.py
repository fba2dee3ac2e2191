"""The README's Java program, compiled and run as it stands there with the official client."""

import subprocess
from pathlib import Path

import official
from clusters import Cluster
from readme import code_block


def test_the_first_message_from_java(cluster: Cluster, tmp_path: Path) -> None:
    program = code_block("java")
    assert "127.0.0.1:9876" in program
    source = tmp_path / "Hello.java"
    source.write_text(program.replace("127.0.0.1:9876", cluster.nameserver.address), encoding="utf-8")
    done = subprocess.run(
        ["java", "-cp", official.classpath(), str(source)],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "SEND_OK" in done.stdout
