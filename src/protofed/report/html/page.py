"""The HTML file: the data as JSON, a style and a script that draws; nothing is fetched from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from protofed.internal.atomic_files import write_file
from protofed.internal.version import VERSION

HERE = Path(__file__).parent


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


def page(data: dict[str, Any]) -> str:
    """Its text. Names that users choose are escaped by the template, and drawn as text by the script."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["bytes"] = in_bytes
    return environment.get_template("report.html.j2").render(
        data=data,
        version=VERSION,
        json=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        style=(HERE / "report.css").read_text(encoding="utf-8"),
        script=(HERE / "report.js").read_text(encoding="utf-8"),
    )


def in_bytes(megabytes: float) -> str:
    """In a unit that suits it."""
    if megabytes >= 1000:
        return f"{megabytes / 1000:.1f} GB"
    return f"{megabytes:.1f} MB" if megabytes >= 1 else f"{1000 * megabytes:.1f} kB"
