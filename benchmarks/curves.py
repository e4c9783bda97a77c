"""python -m benchmarks.curves FOLDER SCORE...: the accuracies of a table's runs round by round, beside docs/results.

A table shows one accuracy in the last round; why it is what it is may show in others, and in earlier rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.tables import RESULTS
from protofed.runs.folder import RunFolder

Curves = dict[str, dict[str, dict[str, list[float]]]]


def curves(folder: Path, scores: Iterable[str]) -> Curves:
    """By score, run and round that all seeds have evaluated, their accuracies: a stopped run evaluates early."""
    found: Curves = {}
    for file in sorted(folder.glob("*/seed*/rounds.jsonl")):
        for row in RunFolder(file.parent).played():
            for score in scores:
                if score in row.accuracy:
                    of_run = found.setdefault(score, {}).setdefault(file.parts[-3], {})
                    of_run.setdefault(str(row.round), []).append(round(row.accuracy[score], 2))
    return {score: {name: _complete(of_run) for name, of_run in runs.items()} for score, runs in found.items()}


def _complete(of_run: dict[str, list[float]]) -> dict[str, list[float]]:
    seeds = max(map(len, of_run.values()))
    return {number: values for number, values in of_run.items() if len(values) == seeds}


def main(words: Sequence[str] | None = None) -> None:
    """Write NAME-curves.json for the folder NAME of a reproduced table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=__doc__)
    parser.add_argument("folder", type=Path, help="what benchmarks.tables has made")
    parser.add_argument("scores", nargs="+", metavar="SCORE", help="such as own/domain/head")
    asked = parser.parse_args(words)
    text = json.dumps(curves(asked.folder, asked.scores), indent=1)
    (RESULTS / f"{asked.folder.name}-curves.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
