"""What the README and the first tutorial show of measured numbers: a table, the demonstration's, and a picture.

`make results-page` writes them, from the tables in docs/results and from demo.json there, which is the compare.json of
`make demo`.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from benchmarks.marked import write_part
from benchmarks.results_page import DOCS, SCENARIOS, Page, Scenario, Worth

README = DOCS.parent / "README.md"
TUTORIAL = DOCS / "tutorials" / "first-comparison.md"
PICTURE = DOCS / "images" / "who-sends-what.svg"
BEGIN = "<!-- begin: written by make results-page -->"
END_WHEN, END_DEMO = "<!-- end: which method -->", "<!-- end: demo -->"


class Advice(NamedTuple):
    """A row of "Which method when": who reads it, what was measured for it, and the method to take."""

    federation: str
    scenario: Scenario
    method: str


ADVICE = (
    Advice("skewed labels; each client tested on all classes", SCENARIOS[0], "MP-FedCL"),
    Advice("each client has its own few classes: digits", SCENARIOS[1], "FedProto"),
    Advice("the same with 62 classes: letters", SCENARIOS[2], "FedProto"),
    Advice("a domain each, a frozen encoder: digits", SCENARIOS[3], "MP-FedCL"),
    Advice("a domain each, ResNet-10 from scratch: digits", SCENARIOS[4], "FedPLCC"),
    Advice("the same: photographs", SCENARIOS[5], "FedPLCC"),
)
SHARED = {
    "FedAvg": ("fedavg", "weights", "averaged weights"),
    "FedProto": ("fedproto", "prototypes", "mean prototypes"),
    "MP-FedCL": ("mp-fedcl", "weights and prototypes", "weights, all prototypes"),
}
"""The methods of the picture: how each is called, what its clients send, and what its server sends."""


def when(page: Page) -> str:
    """The table "Which method when": a method's accuracy and traffic beside FedAvg's and local training's."""
    lines = ["| your federation | take | accuracy | FedAvg | alone | sent |", "|---|---|---:|---:|---:|---:|"]
    for advice in ADVICE:
        rows = {row.method: row for row in page.worth(advice.scenario)}
        taken, average = rows[advice.method], rows["FedAvg"]
        alone = _accuracy(rows["Local"]) if "Local" in rows else "–"
        texts = [advice.federation, advice.method, _accuracy(taken), _accuracy(average), alone]
        lines.append(f"| {' | '.join(texts)} | {_part(taken.megabytes / average.megabytes)} |")
    return "\n".join(lines)


def _accuracy(row: Worth) -> str:
    return f"{row.accuracy:.1f} ± {row.std:.1f}"


def _part(share: float) -> str:
    """A share in percent, with two digits."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def demonstration(found: dict[str, Any]) -> str:
    """The table of `make demo`: a column for each method."""
    rows = found["rows"]
    scores = list(dict.fromkeys(score for row in rows for score in row["accuracy"]))
    lines = [f"| | {' | '.join(row['method'] for row in rows)} |", "|---" + "|---:" * len(rows) + "|"]
    for score in sorted(scores, key=lambda name: (name.startswith("global"), scores.index(name))):
        lines.append(f"| {score} | {' | '.join(_cell(row, score) for row in rows)} |")
    for title, key in (("up a round", "bytes_up_per_round"), ("down a round", "bytes_down_per_round")):
        lines.append(f"| {title} | {' | '.join(size(row[key]['mean']) for row in rows)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any], score: str) -> str:
    if score not in row["accuracy"]:
        return "–"
    spread = row["accuracy"][score]
    return f"{spread['mean']:.1f} ± {spread['std']:.1f}" + "*" * (score in row["diagnostic"])


def size(count: float) -> str:
    """Bytes with a unit."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


STYLE = """
text { font: 15px sans-serif; fill: #1f2328 } .title { font-weight: bold; font-size: 17px } .bytes { font-size: 21px }
rect { fill: none; stroke: #59636e; rx: 6 } path { fill: none; stroke: #59636e; stroke-width: 1.5 }
.few text.bytes { fill: #1a7f37; font-weight: bold }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } rect, path { stroke: #9198a1 } .few text.bytes { fill: #3fb950 }
}
"""


def picture(found: dict[str, Any]) -> str:
    """Who sends what, in bytes of a round of the demonstration, as SVG."""
    rows = {row["method"]: row for row in found["rows"]}
    parts = [_panel(40 + 300 * place, title, rows[SHARED[title][0]]) for place, title in enumerate(SHARED)]
    words = "; ".join(
        f"{title}: up {size(rows[name]['bytes_up_per_round']['mean'])}, "
        f"down {size(rows[name]['bytes_down_per_round']['mean'])}"
        for title, (name, *_) in SHARED.items()
    )
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 300" role="img">'
    lines = [head, f"<title>Sent in a round by five clients: {words}</title>", f"<style>{STYLE}</style>", *parts]
    return "\n".join(lines) + "</svg>\n"


def _panel(left: int, title: str, row: dict[str, Any]) -> str:
    """A method: the server above, the clients below, and an arrow for each way."""
    name, up, down = SHARED[title]
    few = ' class="few"' if name == "fedproto" else ""
    boxes = "".join(f'<rect x="{45 * client}" y="240" width="36" height="30"/>' for client in range(5))
    sizes = (size(row["bytes_up_per_round"]["mean"]), size(row["bytes_down_per_round"]["mean"]))
    return f"""<g transform="translate({left} 0)"{few}>
<text class="title" x="108" y="24" text-anchor="middle">{title}</text>
<rect x="0" y="40" width="216" height="34"/><text x="108" y="62" text-anchor="middle">server</text>
{boxes}<text x="108" y="292" text-anchor="middle">five clients</text>
<path d="M8 232 V84 M3 92 L8 82 L13 92 M208 82 V230 M203 222 L208 232 L213 222"/>
<text class="bytes" x="20" y="112">{sizes[0]}</text><text x="20" y="132">{up}</text>
<text class="bytes" x="196" y="200" text-anchor="end">{sizes[1]}</text>
<text x="196" y="220" text-anchor="end">{down}</text>
</g>
"""


def main() -> None:
    """Write all three."""
    page = Page(DOCS / "results")
    demo = json.loads((page.folder / "demo.json").read_text("utf-8"))
    write_part(README, when(page), BEGIN, END_WHEN)
    write_part(TUTORIAL, demonstration(demo), BEGIN, END_DEMO)
    PICTURE.write_text(picture(demo), encoding="utf-8")


if __name__ == "__main__":
    main()
