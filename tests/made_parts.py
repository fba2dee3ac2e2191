"""Parts of pages that are made from the source, between two marks; tests hold them against what would be made."""

from pathlib import Path
from typing import NamedTuple

__all__ = ["MadePart"]


class MadePart(NamedTuple):
    """Where such a part stands."""

    page: Path
    begin: str
    end: str

    def shown(self) -> str:
        """What the page has now."""
        return self._split()[1]

    def write(self, part: str) -> None:
        """Put `part` in its place."""
        before, _, behind = self._split()
        self.page.write_text(f"{before}{self.begin}{part}{self.end}{behind}", encoding="utf-8")

    def _split(self) -> tuple[str, str, str]:
        before, begin, rest = self.page.read_text(encoding="utf-8").partition(self.begin)
        part, end, behind = rest.partition(self.end)
        assert begin, self.begin
        assert end, self.end
        return before, part, behind
