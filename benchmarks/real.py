"""python -m benchmarks.real: ten methods on patients, text and series, for docs/tutorials/README.md.

Each table is a `protofed compare`: what is complete is not repeated, so it can be stopped and continued.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.marked import RESULTS, write_part
from protofed.internal.atomic_files import write_text

METHODS = ("local", "fedavg", "fedprox", "fedproto", "mp-fedcl", "fednh", "fedrod", "fedlc", "ditto", "fedbabu")
SEEDS = 3
ALL = "global/all/head"
BEGIN, END = "<!-- begin: written by python -m benchmarks.real -->", "<!-- end: real -->"


@dataclass(frozen=True)
class Table:
    """A comparison, and what its table shows beside accuracies."""

    title: str
    metric: str
    rates: str
    options: str

    @property
    def command(self) -> str:
        """What a reader types."""
        methods = f"--method {','.join(METHODS)} --seeds {SEEDS}"
        return f"protofed compare {methods} \\\n  {self.options} \\\n  --metrics {self.metric} --tune lr={self.rates}"


TABLES = {
    "real-hospitals": Table(
        "Four hospitals: the healthy and the ill",
        "balanced,auc",
        "0.001,0.01,0.1",
        "--dataset heart-disease --split domains --clients 4 --model mlp --rounds 20 --eval-every 20",
    ),
    "real-series": Table(
        "Nine speakers: Japanese vowels",
        "f1",
        "0.03,0.1,0.3",
        "--dataset japanese-vowels --alpha 0.5 --min-size 5 --model gru --rounds 20 --eval-every 20",
    ),
    "real-text": Table(
        "Newswire: Reuters R8 with its long tail",
        "f1",
        "0.003,0.01,0.03",
        "--dataset reuters-r8 --vocabulary 2000 --length 64 --clients 10 --alpha 0.5 --model embedding-bag"
        " \\\n  --optimiser adam --rounds 10 --eval-every 10",
    ),
}


def play(name: str, folder: Path, data_dir: Path | None) -> None:
    """Play what is missing of a comparison, and keep what its table needs."""
    if folder.exists():
        words = ["resume", str(folder)]
    else:
        words = [*words_of(TABLES[name].command), "--out", str(folder), "--jobs", "1", "--threads", "1"]
        words += ["--data-dir", str(data_dir)] if data_dir else []
    subprocess.run([sys.executable, "-m", "protofed", *words, "--quiet"], check=True)
    found = json.loads((folder / "compare.json").read_text("utf-8"))
    write_text(RESULTS / f"{name}.json", json.dumps(kept(name, found), indent=1) + "\n")


def words_of(command: str) -> list[str]:
    """What follows `protofed`."""
    return shlex.split(command.replace("\\\n", " "))[1:]


def kept(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Of compare.json: the command, what was chosen on validation data, and the scores of the table."""
    rows = []
    for row in found["rows"]:
        scores = {score: row["accuracy"].get(score) for score in columns(name, row["score"])}
        costs = {cost: row[cost] for cost in ("bytes_up_per_round", "bytes_down_per_round", "seconds")}
        rows.append({"method": row["method"], "score": row["score"], "accuracy": scores, **costs})
    tuning = [{key: one[key] for key in ("method", "score", "chosen", "trials", "runs")} for one in found["tuning"]]
    return {"command": TABLES[name].command, "rows": rows, "tuning": tuning, "failures": found["failures"]}


def columns(name: str, score: str) -> list[str]:
    """The scores of a method: its clients' own models by the rule of its paper, and the averaged model."""
    rule = score.rpartition("/")[2] if score.startswith("own") else "head"
    bases = (f"own/own/{rule}", ALL)
    return [scored for base in bases for scored in (base, *(f"{base}:{one}" for one in _metrics(name)))]


def page(results: Path = RESULTS) -> str:
    """The command and the table of each comparison that has been made."""
    made = {name: results / f"{name}.json" for name in TABLES}
    return "\n\n".join(_part(name, json.loads(path.read_text("utf-8"))) for name, path in made.items() if path.exists())


def _part(name: str, found: Mapping[str, Any]) -> str:
    runs = sum(one["runs"] for one in found["tuning"])
    head = ["method", "lr", "of a client's model", "own/own/…", *(f":{one}" for one in _metrics(name))]
    head += [ALL, *(f":{one}" for one in _metrics(name)), "kB per round"]
    lines = [f"### {TABLES[name].title}", "", "```sh", TABLES[name].command, "```", ""]
    lines += ["| " + " | ".join(head) + " |", "|---|---:|---|" + "---:|" * (len(head) - 3), *_rows(name, found)]
    told = (
        f"{runs} runs chose learning rates, then {SEEDS} seeds per method; in %, mean ± sample std, **highest mean**."
    )
    return "\n".join([*lines, "", told])


def _rows(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    chosen = {one["method"]: one["chosen"].get("lr") for one in found["tuning"]}
    parts = [[row["accuracy"][score] for score in columns(name, row["score"])] for row in found["rows"]]
    best = [max(one["mean"] for one in column if one) for column in zip(*parts, strict=True)]
    for row, values in zip(found["rows"], parts, strict=True):
        rule = columns(name, row["score"])[0].rpartition("/")[2]
        kilobytes = (row["bytes_up_per_round"]["mean"] + row["bytes_down_per_round"]["mean"]) / 1e3
        texts = [_text(value, most) for value, most in zip(values, best, strict=True)]
        words = [row["method"], f"{chosen[row['method']]:g}", f"by {rule}", *texts, f"{kilobytes:,.0f}"]
        yield "| " + " | ".join(words) + " |"


def _text(value: Mapping[str, float] | None, most: float) -> str:
    if value is None:
        return "–"
    text = f"{value['mean']:.1f} ± {value['std']:.1f}"
    return f"**{text}**" if value["mean"] == most else text


def _metrics(name: str) -> list[str]:
    return TABLES[name].metric.split(",")


def main() -> int:
    """Play, keep, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real", description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder with the files of heart-disease")
    parser.add_argument("--only", action="append", choices=TABLES, help="this table; repeatable")
    parser.add_argument("--out", type=Path, default=Path("runs/real"), help="folder of the comparisons")
    parser.add_argument("--page", type=Path, help="Markdown page whose marked part is written anew")
    parser.add_argument("--report", action="store_true", help="play nothing, only write the page")
    asked = parser.parse_args()
    for name in [] if asked.report else asked.only or TABLES:
        play(name, asked.out / name, asked.data_dir)
    if asked.page:
        write_part(asked.page, page(), BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
