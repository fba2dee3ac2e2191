"""docs/tutorial.md: every file and every command, in the page's order, against a fresh `aerobee dev`."""

import json
import threading
from pathlib import Path

import ours
from guides import Guide
from programs import Server, free_port


def test_the_shop_works_from_nothing_to_a_restart(tmp_path: Path) -> None:
    nameserver, web = free_port(), free_port()
    ports = {"listenPort": free_port(-2, 1), "metricsPromExporterPort": 0}  # the same after the restart
    guide = Guide("tutorial.md", tmp_path, {"127.0.0.1:9876": f"127.0.0.1:{nameserver}", "8000": str(web)})
    dev = guide.command("./dev run").removeprefix("./dev run ").split()

    def broker() -> Server:
        return ours.start_dev(*dev, port=nameserver, settings=ports, cwd=tmp_path)

    with broker() as first:
        assert "orders" in guide.run("topic create orders")
        assert "fastapi" in guide.command("pip install")  # requirements/test.txt has these
        with guide.start("uvicorn") as shop:
            shop.wait_line("Uvicorn running", 60)
            assert json.loads(guide.run("lamp"))["number"] == 1
            assert "lamp" in guide.run("tail orders")
            assert "lamp" in guide.run("query orders order-1")
            with guide.start("shop.worker") as worker:
                worker.wait_line(r"shipped order 1 \(lamp\), try 1", 60)
                assert json.loads(guide.run("soap"))["number"] == 2
                assert json.loads(guide.run("gift"))["number"] == 3
                worker.wait_line(r"shipped order 2 \(soap\), try 2", 60)
                assert "gift" in guide.run("tail %DLQ%shipping")
                assert "orders" in guide.run("group lag shipping", until="orders")
                assert "orders" in guide.run("group describe shipping")
                assert "1 passed" in guide.run("-m pytest")
                assert first.stop() == 0
                answer: list[str] = []
                asking = threading.Thread(target=lambda: answer.append(guide.run("chair")))
                asking.start()
                with broker():
                    asking.join(60)
                    assert json.loads(answer[0])["number"] == 4
                    worker.wait_line(r"shipped order 4 \(chair\), try 1", 90)
                    assert guide.left == []
                    assert worker.stop() == 0
                    assert "the worker has stopped" in worker.output
            shop.stop()  # uvicorn ends itself by the signal that it got
            assert "Application shutdown complete" in shop.output
