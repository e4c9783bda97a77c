"""Where measured numbers are committed, and parts of pages that are written from them."""

from __future__ import annotations

from pathlib import Path

from protofed.internal.atomic_files import write_text

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def write_part(page: Path, text: str, begin: str, end: str) -> None:
    """Write what stands between two marks of a page anew."""
    before, _, rest = page.read_text("utf-8").partition(begin)
    write_text(page, f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}")
