"""docs/recipes.md: every program and every command as they stand there, against a fresh `aerobee dev`."""

import json
import subprocess
import urllib.request
from pathlib import Path

import pytest

import ours
from guides import Guide
from programs import free_port

MANAGE = """
import sys
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(INSTALLED_APPS=["recipes"])
execute_from_command_line(sys.argv)
"""


@pytest.fixture
def guide(nameserver: str, tmp_path: Path) -> Guide:
    ports = {str(port): str(free_port()) for port in (8001, 8002)}
    return Guide("recipes.md", tmp_path, {"127.0.0.1:9876": nameserver} | ports)


def ask(port: str, path: str, method: str = "GET") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def send(nameserver: str, body: str) -> None:
    words = [*ours.command(), "send", "visits", body, "-n", nameserver]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_lifespan_of_a_web_program(guide: Guide) -> None:
    with guide.start("uvicorn") as web:
        web.wait_line("Uvicorn running", 60)
        answer = ask(guide.instead["8001"], "visits/home", "POST")
        assert json.loads(answer)["queue_offset"] >= 0
        web.stop()  # uvicorn ends itself by the signal that it got
        assert "Application shutdown complete" in web.output


def test_workers_of_gunicorn_have_a_client_each_after_the_fork(guide: Guide) -> None:
    with guide.start("gunicorn") as web:
        web.wait_line("Booting worker", 60)
        assert [int(ask(guide.instead["8002"], "shop")) >= 0 for _ in range(20)] == [True] * 20
        assert web.stop() == 0
        assert "Traceback" not in web.output


def test_a_command_of_django_consumes_until_a_signal(guide: Guide, nameserver: str, tmp_path: Path) -> None:
    (tmp_path / "manage.py").write_text(MANAGE)
    send(nameserver, "django-page")
    with guide.start("count_visits") as counter:
        counter.wait_line("visit of django-page", 60)
        assert counter.stop() == 0
        assert "stopped in order" in counter.output


def test_a_worker_leaves_its_group_on_sigterm(guide: Guide, nameserver: str) -> None:
    send(nameserver, "worker-page")
    with guide.start("recipes/worker.py") as worker:
        worker.wait_line("printed worker-page", 60)
        assert worker.stop() == 0
        assert "left the group" in worker.output


def test_every_command_of_the_page_is_run_here(guide: Guide) -> None:
    for part in ("uvicorn", "gunicorn", "count_visits", "recipes/worker.py"):
        guide.command(part)
    assert guide.left == []
