"""What the README shows, cut out so that tests can run it."""

import re
from pathlib import Path

__all__ = ["code_block", "shell_lines"]

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def code_block(language: str) -> str:
    """The one fenced block of a language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, f"the README has {len(blocks)} blocks of {language}"
    return str(blocks[0])


def shell_lines(program: str) -> list[str]:
    """The indented lines that start a program, without its name."""
    return re.findall(rf"^    {re.escape(program)} (.*)$", README, re.MULTILINE)
