"""docs/wire.md names every request that a broker serves or sends, and no other."""

import re
from pathlib import Path

from aerobee_proto.codes import RequestCode
from system.running import running_broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
OF_NAMESERVERS = {103, 105}  # served there, named on the same page
TO_CLIENTS = {39, 40, 220, 221, 326}


def documented() -> set[int]:
    """Numbers in the tables of requests that are request codes, and those of the sentence on what brokers ask."""
    text = PAGE.read_text(encoding="utf-8")
    requests = text[text.index("## Requests that carry") : text.index("Letters of 310")]
    cells = [line.split("|")[1:3] for line in requests.splitlines() if line.startswith("|")]
    codes = {int(number) for cell in cells for number in re.findall(r"\b\d+\b", " ".join(cell))}
    asked = requests[requests.index("A broker asks its clients too") :]
    codes |= {int(number) for number in re.findall(r"\b(?:39|40|220|221|326)\b", asked)}
    return codes & {int(code) for code in RequestCode}


async def test_every_request_code_is_on_the_page(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        served = set(broker.handlers.by_code)
    assert documented() == served | OF_NAMESERVERS | TO_CLIENTS
