"""The HTML page of the report and of the viewer: data as JSON, a style, and components that draw.

A component is a JavaScript file that calls `protofed.component`; see components/README.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from protofed.internal.version import VERSION

HERE = Path(__file__).parent
COMPONENTS: Mapping[str, Path] = {
    name: HERE / "components" / f"{name}.js"
    for name in (
        *("runs", "summary", "motion", "curves", "loss", "configurations", "holds", "clients", "classes"),
        *("confusion", "samples", "plane", "prototypes", "costs"),
    )
}
"""The file of each component, in the order of the page."""


def page(data: Mapping[str, Any], components: Sequence[str] = (), *, live: bool = False) -> str:
    """The text of a page.

    Args:
        data: what its components draw, as `gather` finds it, or what the viewer begins with.
        components: names of those that are on it; all unless given.
        live: whether it may ask where it comes from for news; otherwise it may ask nobody for anything.

    Names that users choose are drawn as text by the components, and cannot end the script that holds them.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    style, script = (HERE / "page.css").read_text(encoding="utf-8"), _script(tuple(components or COMPONENTS))
    allowed = {
        "default-src": "'none'",
        "script-src": digest(script),
        "style-src": digest(style),
        "img-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    lines = ", ".join(data.get("lines", ()))
    return environment.get_template("page.html.j2").render(
        title=f"ProtoFed report: {lines}" if lines else f"ProtoFed: {data.get('title', '')}",
        policy="; ".join(f"{what} {whence}" for what, whence in allowed.items()),
        version=VERSION,
        json=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        style=style,
        script=script,
    )


@cache
def _script(components: tuple[str, ...]) -> str:
    """The scripts of a page with some components, one after the other."""
    paths = [HERE / "core.js", HERE / "charts.js", *(COMPONENTS[name] for name in components), HERE / "start.js"]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def digest(text: str) -> str:
    """What a page's policy says of an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
