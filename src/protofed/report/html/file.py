"""The report as one file: the page with everything frozen into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protofed.internal.atomic_files import write_file
from protofed.report.page.build import page


def write_report(data: dict[str, Any], path: Path) -> None:
    """Write a report: one HTML file that fetches nothing from elsewhere.

    Args:
        data: what `gather` found.
        path: the file to write; an old one is replaced.

    Example:
        >>> from pathlib import Path
        >>> from protofed.report.html import gather, write_report
        >>> write_report(gather([Path("digits")]), Path("report.html"))
        >>> Path("report.html").read_text(encoding="utf-8")[:15]
        '<!doctype html>'
    """
    write_file(path, lambda draft: draft.write_text(page(data), encoding="utf-8"))
