"""The motion of runs as a file: an animated GIF, a video, or a page that plays it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protofed.errors import UserError
from protofed.internal.atomic_files import write_file
from protofed.report.motion.gathered import GRID
from protofed.report.page.build import page
from protofed.report.plots import colour, key_of_shapes, shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL.Image import Image

FORMATS = (".gif", ".mp4", ".html")
PANELS = 6
"""Runs beside each other in a picture, at most; on a page two are chosen."""
PARTS = 2
"""Pictures from one round to the next."""
SECOND = 8
"""Pictures in a second."""
HELD = 12
"""Pictures at the end that show the last round."""
TRAIL = 6
"""Rounds back that a prototype's path is drawn."""
INCHES, DPI = 3.3, 80
SHADES = 48
"""Colours of a GIF, at most: enough, in little room."""


def write_animation(data: Mapping[str, Any], path: Path) -> None:
    """Write the motion of runs into a file.

    Args:
        data: `motion`, what `gather_motion` found, and `lines` and `colours` of a page.
        path: a new file whose name ends with .gif, .mp4 or .html; an old one is replaced.

    Raises:
        UserError: the name ends otherwise, or ffmpeg, which makes videos, is missing.
    """
    check_format(path)
    write = {".gif": _write_gif, ".mp4": _write_video, ".html": _write_page}[path.suffix]
    write_file(path, lambda draft: write(data, draft))


def check_format(path: Path) -> None:
    """Raise unless a file of this name can be made here."""
    if path.suffix not in FORMATS:
        raise UserError("--out", str(path), f"its name must end with {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        why = "the program ffmpeg, which makes videos, is not installed"
        raise UserError("--out", str(path), why, hint="install ffmpeg, or write a .gif or .html")


def _write_page(data: Mapping[str, Any], path: Path) -> None:
    path.write_text(page(data, ["motion"]), encoding="utf-8")


def _write_gif(data: Mapping[str, Any], path: Path) -> None:
    from PIL import Image

    pictures = list(_pictures(data))
    palette = pictures[-1].quantize(SHADES)
    first, *rest = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    held = [1000 // SECOND] * len(rest) + [HELD * 1000 // SECOND]
    first.save(path, format="gif", save_all=True, append_images=rest, duration=held, loop=0, optimize=True)


def _write_video(data: Mapping[str, Any], path: Path) -> None:
    pictures = list(_pictures(data))
    pictures += [pictures[-1]] * HELD
    width, height = pictures[0].size
    words = ["ffmpeg", "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    words += ["-r", str(SECOND), "-i", "-", "-pix_fmt", "yuv420p", "-f", "mp4", str(path)]
    made = subprocess.run(words, input=b"".join(one.tobytes() for one in pictures), capture_output=True, check=False)
    if made.returncode:
        why = f"ffmpeg could not make it: {made.stderr.decode(errors='replace').strip()[-200:]}"
        raise UserError("--out", str(path), why)


def _pictures(data: Mapping[str, Any]) -> Iterator[Image]:
    """The pictures, one after the other: planes beside each other and the curve below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    motion, colours = data["motion"], dict(zip(data["lines"], data["colours"], strict=False))
    runs = dict(list(motion["runs"].items())[:PANELS])
    across = min(len(runs), 3)
    down = -(-len(runs) // across)
    figure = Figure(figsize=(INCHES * across, INCHES * down + 1.4), dpi=DPI, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib types only a part of it
    ratios = [*[INCHES] * down, 1.3]
    grid = figure.add_gridspec(down + 1, across, height_ratios=ratios)
    planes = [
        Plane(figure.add_subplot(grid[n // across, n % across]), label, run, motion["samples"][run["samples"]])
        for n, (label, run) in enumerate(runs.items())
    ]
    key_of_shapes(planes[0].axes, max((run["kinds"] for run in runs.values()), key=len))
    planes[0].axes.legend(fontsize=5, loc="lower left", framealpha=0.7)
    drawings: list[Plane | Course] = [*planes]
    drawings.append(Course(figure.add_subplot(grid[down, :]), runs, colours))
    rounds = sorted({at for run in runs.values() for at in run["rounds"]})
    for before, after in zip(rounds, [*rounds[1:], None], strict=True):
        for part in range(PARTS if after is not None else 1):
            now = before + part / PARTS * ((after or before) - before)
            for drawn in drawings:
                drawn.move(now)
            canvas.draw()
            figure.set_layout_engine("none")  # nothing changes its size any more
            pixels = np.asarray(canvas.buffer_rgba())[:, :, :3]
            yield Image.fromarray(pixels[: pixels.shape[0] // 2 * 2, : pixels.shape[1] // 2 * 2].copy())


class Plane:
    """One run's plane in a picture."""

    def __init__(self, axes: Axes, label: str, run: Mapping[str, Any], samples: Mapping[str, Any]) -> None:
        self.axes, self.label, self.run = axes, label, run
        self.by = f"{run['model']} model, {run['rule']}"
        self.truth = np.array([point[0] for point in samples["points"]])
        self.inks = [colour(number) for number in self.truth]
        axes.set(xlim=(0, GRID), ylim=(0, GRID), xticks=[], yticks=[], aspect="equal")
        zeros = np.zeros(len(self.inks))
        self.dots: Any = axes.scatter(zeros, zeros, s=11, linewidths=0.7, edgecolors=self.inks, zorder=2)
        marks = [{tuple(mark[:4]): mark[4:] for mark in frame} for frame in run["marks"]]
        self.frames: Sequence[Mapping[tuple[int, ...], Sequence[int]]] = marks
        keys = sorted({key for frame in marks for key in frame})
        self.trailed = 1 if len(run["kinds"]) > 1 else 0
        self.trails = {
            key: axes.plot([], [], color=colour(key[1]), linewidth=0.9, alpha=0.5, zorder=1)[0]
            for key in keys
            if (key[0] > 0) == bool(self.trailed)
        }
        self.marks: dict[int, Any] = {
            kind: axes.scatter([], [], s=34, marker=shape(kind), edgecolors="black", zorder=3)
            for kind in sorted({key[0] for key in keys})
        }
        for drawn in self.marks.values():
            drawn.set_linewidths(0.6)

    def move(self, now: float) -> None:
        """Show a moment, which may lie between two rounds."""
        at, after, part = moment(self.run["rounds"], now)
        here, there = (np.array(self.run["places"][place], dtype=float).reshape(-1, 2) for place in (at, after))
        self.dots.set_offsets(here + part * (there - here))
        right = np.array(self.run["answers"][at]) == self.truth
        self.dots.set_facecolors([ink if known else "none" for ink, known in zip(self.inks, right, strict=True)])
        places = {}
        for key, place in self.frames[at].items():
            start, end = np.array(place, dtype=float), np.array(self.frames[after].get(key, place), dtype=float)
            places[key] = start + part * (end - start)
        for kind, drawn in self.marks.items():
            keys = [key for key in places if key[0] == kind]
            drawn.set_offsets(np.array([places[key] for key in keys]).reshape(-1, 2))
            drawn.set_facecolors([colour(key[1]) for key in keys])
        for key, line in self.trails.items():
            been = [frame[key] for frame in self.frames[max(0, at - TRAIL) : at + 1] if key in frame]
            path = np.array([*been, places[key]] if key in places else []).reshape(-1, 2)
            line.set_data(*path.T)
        said = f"{self.label}: round {self.run['rounds'][at]}, {int(right.sum())} of {len(right)} right ({self.by})"
        self.axes.set_title(said, fontsize=7)


class Course:
    """The accuracies over rounds, with a cursor."""

    def __init__(self, axes: Axes, runs: Mapping[str, Mapping[str, Any]], colours: Mapping[str, str]) -> None:
        for label, run in runs.items():
            if run["curve"]:
                axes.plot(*zip(*run["curve"], strict=True), color=colours[label], linewidth=1.4, label=label)
        scores = ", ".join(dict.fromkeys(run["score"] for run in runs.values()))
        axes.set_xlabel("round", fontsize=7, labelpad=1)
        axes.set_ylabel(f"{scores}, %", fontsize=6)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7, loc="lower right")
        self.cursor = axes.axvline(1, color="black", linewidth=1)

    def move(self, now: float) -> None:
        """The cursor to a round."""
        self.cursor.set_xdata([now, now])


def moment(rounds: Sequence[int], now: float) -> tuple[int, int, float]:
    """Between which of a run's rounds a moment lies, and the part of the way from the first to the second.

    Example:
        >>> moment([1, 3, 9], 4.5), moment([1, 3, 9], 20.0)
        ((1, 2, 0.25), (2, 2, 0.0))
    """
    at = max([place for place, number in enumerate(rounds) if number <= now], default=0)
    after = min(at + 1, len(rounds) - 1)
    if after == at or now < rounds[at]:
        return at, at, 0.0
    return at, after, (now - rounds[at]) / (rounds[after] - rounds[at])
