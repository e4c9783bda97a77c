"""How far the runs of a folder are, from its files alone: a table for a terminal, a page for a browser."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from protofed.errors import UserError
from protofed.internal.loopback import Page, loopback_server
from protofed.methods import METHODS, method_class
from protofed.report.terminal import TextTable
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder, run_folders
from protofed.runs.progress import seconds_left
from protofed.studies.kinds import KINDS, kind_of

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 8
"""Characters of a curve."""

MOST = 40
"""Of more runs a terminal shows only those that are going on."""


@dataclass(frozen=True)
class Watched:
    """How far one run is."""

    name: str
    rounds: int
    done: int
    losses: list[float]  # of each round
    score: str  # the accuracy of the curve
    scores: list[float]  # of each round that was evaluated
    accuracy: Mapping[str, float]  # in the last of them
    seconds_left: float | None  # none before the first round
    state: Literal["going on", "stopped", "ended", "failed"]
    failure: str = ""  # how it failed

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it by itself."""
        return self.state in ("ended", "failed")


@dataclass(frozen=True)
class View:
    """How far a run or a study is."""

    title: str
    runs: list[Watched]
    waiting: int  # runs of a study that have not begun, as far as that is known
    ended: bool

    def to_json(self) -> str:
        """What the page asks for."""
        return json.dumps(asdict(self))


def look(folder: Path) -> View:
    """The folder of a run, or of a study, as it is now; a study ends with its table."""
    if (folder / "config.yaml").is_file():
        run = _run(folder, folder.resolve().name)
        return View(str(folder), [run], 0, run.ended)
    kind = kind_of(folder)
    if kind is None:
        names = ", ".join(known.config(folder).name for known in KINDS)
        raise UserError("DIR", str(folder), f"it is not the folder of runs: it has none of config.yaml, {names}")
    runs = [_run(path, str(path.relative_to(folder))) for path in run_folders(folder, trials=True)]
    waiting = max(0, (kind.open(folder).size() or 0) - len(runs))
    ended = (folder / kind.end).is_file() and not waiting and all(run.ended for run in runs)
    return View(str(folder), runs, waiting, ended)


def _run(path: Path, name: str) -> Watched:
    folder = RunFolder.open(path)
    experiment, history = folder.experiment(), folder.played()
    tested = [played.accuracy for played in history if played.accuracy]
    # A user's own method is a file with code, which looking at a folder must not run.
    score = method_class(experiment.method).score if experiment.method in METHODS else ""
    if not all(score in accuracy for accuracy in tested):
        score = "own/own/head"
    failed = FailedRun.read(path)
    ended = folder.result.exists()
    state: Any = "ended" if ended else "failed" if failed else "going on" if folder.is_played() else "stopped"
    left = seconds_left(history, experiment) if history and state == "going on" else None
    return Watched(
        name=name,
        rounds=experiment.rounds,
        done=len(history),
        losses=[played.loss for played in history],
        score=score,
        scores=[accuracy[score] for accuracy in tested if score in accuracy],
        accuracy=tested[-1] if tested else {},
        seconds_left=0.0 if ended else left,
        state=state,
        failure=failed.short if failed else "",
    )


def table(view: View) -> TextTable:
    """A row a run; every accuracy of a single one below it."""
    below = f"{view.waiting} runs have not begun" if view.waiting else ""
    if len(view.runs) == 1 and not view.waiting:
        below = ", ".join(f"{name} {value:.1f}" for name, value in view.runs[0].accuracy.items())
    going = [run for run in view.runs if not run.ended]
    if len(view.runs) > MOST:
        below = f"{len(view.runs) - len(going)} runs have ended, {below}".removesuffix(", ")
    rows = []
    for run in going if len(view.runs) > MOST else view.runs:
        loss = f"{run.losses[-1]:.3f}" if run.losses else ""
        score = f"{run.scores[-1]:.1f}" if run.scores else ""
        left = run.failure or run.state if run.state != "going on" else ""
        left = left or ("" if run.seconds_left is None else f"{run.seconds_left:.0f} s")
        cells = (f"{run.done}/{run.rounds}", loss, curve(run.losses), run.score, score, curve(run.scores), left)
        rows.append([run.name, *cells])
    titles = ("run", "rounds", "loss", "", "score", "%", "", "left")
    return TextTable(titles, rows, view.title, below, align="lrrllrlr")


def curve(values: Sequence[float]) -> str:
    """A small curve from the lowest to the highest, of evenly spaced values if there are too many."""
    if len(values) > WIDTH:
        values = [values[number * (len(values) - 1) // (WIDTH - 1)] for number in range(WIDTH)]
    low, span = min(values, default=0.0), max(values, default=0.0) - min(values, default=0.0)
    return "".join(BARS[int((value - low) / (span or 1) * (len(BARS) - 1))] for value in values)


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A page on this machine that asks for the state of a folder every few seconds; port 0 is any free one."""
    look(folder)  # a wrong folder is an error now, not on the page
    state = Page(lambda: look(folder).to_json(), "application/json")
    return loopback_server(port, {"/": Page(lambda: PAGE), "/state.json": state})


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>protofed watch</title><link rel="icon" href="data:,">
<style>
body { font: 15px system-ui, sans-serif; margin: 2em; }
td, th { padding: .3em .8em; text-align: left; } td.number { text-align: right; }
svg { width: 160px; height: 36px; } polyline { fill: none; stroke: currentColor; stroke-width: 1.5; }
</style></head>
<body><h1 id="title">protofed watch</h1><p id="note"></p>
<table><thead><tr><th>run<th>rounds<th>loss<th><th>score<th>%<th><th>left</tr></thead><tbody id="runs"></tbody></table>
<script>
function cell(row, text, kind) {  // textContent: a name is never read as HTML
  const made = row.insertCell(); made.textContent = text; if (kind) made.className = kind; return made;
}
function curve(row, values) {
  const space = "http://www.w3.org/2000/svg", low = Math.min(...values), span = Math.max(...values) - low || 1;
  const svg = document.createElementNS(space, "svg"), line = document.createElementNS(space, "polyline");
  svg.setAttribute("viewBox", "0 0 160 36");
  line.setAttribute("points", values.map((value, at) =>
    `${2 + 156 * at / Math.max(1, values.length - 1)},${34 - 32 * (value - low) / span}`).join(" "));
  svg.append(line); row.insertCell().append(svg);
}
async function update() {
  const note = document.getElementById("note");
  try {
    const view = await (await fetch("state.json")).json(), body = document.createElement("tbody");
    for (const run of view.runs) {
      const row = body.insertRow();
      cell(row, run.name); cell(row, `${run.done}/${run.rounds}`, "number");
      cell(row, run.losses.length ? run.losses.at(-1).toFixed(3) : "", "number"); curve(row, run.losses);
      cell(row, run.score); cell(row, run.scores.length ? run.scores.at(-1).toFixed(1) : "", "number");
      curve(row, run.scores);
      const left = run.seconds_left === null ? "" : `${run.seconds_left.toFixed(0)} s`;
      cell(row, run.state === "going on" ? left : run.failure || run.state, "number");
    }
    body.id = "runs"; document.getElementById("runs").replaceWith(body);
    document.getElementById("title").textContent = view.title;
    note.textContent = view.ended ? "ended" : view.waiting ? `${view.waiting} runs have not begun` : "";
    if (view.ended) return;
  } catch { note.textContent = "protofed watch does not answer"; }
  setTimeout(update, 3000);
}
update();
</script></body></html>
"""
