"""python -m benchmarks.pages: how long a large report and a list of many runs take, into docs/results/pages.json.

The runs are made up: numbers, features and pictures of the sizes that runs have, and nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch

from benchmarks.marked import RESULTS, write_part
from protofed.evaluation.motion import Motion
from protofed.evaluation.snapshot import PROTOTYPES, Snapshot
from protofed.experiment import Experiment
from protofed.methods import method_class
from protofed.report.html import gather, looks, write_report
from protofed.report.html.motions import _gathered
from protofed.report.html.run_data import _read
from protofed.report.viewer import server
from protofed.runs.folder import RunFolder
from protofed.runs.result import Result, summarise
from protofed.server.round import Round

METHODS = ("local", "fedavg", "fedproto", "sp-fedcl", "mp-fedcl", "fedplcc")
SEEDS, CLIENTS, ROUNDS = 3, 100, 200
"""Of the report, with each of the methods."""
RUNS = 1000
"""In the viewer's list."""
CLASSES, POINTS, FEATURE, FRAMES, SIDE = 10, 300, 128, 30, 28
"""Of what a run keeps for pictures."""
REPEATS = 3
PAGE = RESULTS.parent / "report.md"
BEGIN, END = "<!-- from docs/results/pages.json -->", "<!-- end of pages.json -->"


def make_run(path: Path, experiment: Experiment, seen: bool = True) -> None:
    """A run that came to its end; with `seen` it has kept features and prototypes."""
    draw, clients = np.random.default_rng(experiment.seed), experiment.clients or CLIENTS
    folder = RunFolder.create(path, experiment)
    played = [_round(number, clients, draw) for number in range(1, experiment.rounds + 1)]
    for one in played:
        folder.append_round(one)
    if seen:
        _snapshot(clients, draw).write(folder.snapshot)
        _motion(experiment.rounds, clients, draw).write(folder.motion)
    folder.result.write_text(_result(experiment, clients, played).to_json(), encoding="utf-8")


def _round(number: int, clients: int, draw: np.random.Generator) -> Round:
    names = ("own/own/head", "own/own/nearest", "global/all/head", "own/all/nearest")
    each = {name: np.round(90 - 60 / number + 5 * draw.normal(size=clients), 6).tolist() for name in names}
    return Round(
        round=number,
        seconds=1.0 + draw.random(),
        loss=2.0 / number + draw.random(),
        participants=list(range(clients)),
        bytes_up=10**6,
        bytes_down=10**6,
        scalars_up={"weights": 200_000, "prototypes": 5_000},
        prototypes={"global": {"each": [1] * CLASSES, "padded": 0.0, "drift": draw.random()}},
        clusters={},
        losses=draw.random(clients).tolist(),
        accuracy={name: float(np.mean(values)) for name, values in each.items()},
        per_client=each,
    )


def _result(experiment: Experiment, clients: int, played: Sequence[Round]) -> Result:
    return Result(
        method=experiment.method,
        dataset=experiment.dataset,
        split=experiment.split,
        clients=clients,
        rounds=len(played),
        seed=experiment.seed,
        engine="stacked",
        device="cpu",
        model=experiment.model,
        params={},
        model_parameters=[1],
        client_memory=1,
        score=method_class(experiment.method).score,
        bytes_up=sum(one.bytes_up for one in played),
        bytes_down=sum(one.bytes_down for one in played),
        seconds=sum(one.seconds for one in played),
        stopped="rounds",
        accuracy=summarise(played),
    )


def _whole(draw: np.random.Generator, most: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(draw.integers(0, most, shape))


def _floats(draw: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(draw.normal(size=shape).astype(np.float32))


def _snapshot(clients: int, draw: np.random.Generator) -> Snapshot:
    zeros = torch.zeros(clients).long()
    points = torch.stack([*_whole(draw, CLASSES, 2, POINTS), _whole(draw, clients, POINTS), torch.zeros(POINTS).long()])
    number = 2 * PROTOTYPES
    marks = torch.stack([_whole(draw, 2, number), _whole(draw, CLASSES, number), _whole(draw, clients, number)])
    return Snapshot(
        model="own",
        rule="nearest",
        classes=[str(n) for n in range(CLASSES)],
        domains=["all"],
        kinds=["local", "global"],
        holds=_whole(draw, 100, clients, CLASSES),
        homes=zeros,
        confusion=_whole(draw, 100, CLASSES, CLASSES),
        features=_floats(draw, POINTS, FEATURE),
        points=points.T.contiguous(),
        prototypes=_floats(draw, number, FEATURE),
        marks=marks.T.contiguous(),
    )


def _motion(rounds: int, clients: int, draw: np.random.Generator) -> Motion:
    """The samples are the same in runs of any seed, as those of the same split are."""
    same, kept = np.random.default_rng(0), min(FRAMES, rounds)
    points = torch.stack([_whole(same, CLASSES, POINTS), _whole(same, min(10, clients), POINTS), torch.zeros(POINTS)])
    frame = torch.stack([torch.arange(200) // 100, torch.arange(200) % CLASSES, torch.arange(200) % 10])
    marks = [torch.stack([torch.full((200,), at), *frame, torch.arange(200) // CLASSES % 10]) for at in range(kept)]
    return Motion(
        model="own",
        rule="nearest",
        classes=[str(n) for n in range(CLASSES)],
        domains=["all"],
        kinds=["local", "global"],
        rounds=sorted({round(1 + at * (rounds - 1) / max(1, kept - 1)) for at in range(kept)}),
        rows=[],
        points=points.T.contiguous().int(),
        pictures=_whole(same, 256, POINTS, 1, SIDE, SIDE).to(torch.uint8),
        features=_floats(draw, kept, POINTS, FEATURE).half(),
        answers=_whole(draw, CLASSES, kept, POINTS).short(),
        vectors=_floats(draw, 200 * kept, FEATURE).half(),
        marks=torch.cat(marks, 1).T.contiguous().int(),
    )


def make_comparison(folder: Path, methods: Sequence[str] = METHODS, seeds: int = SEEDS) -> None:
    """The runs of the large report."""
    for method in methods:
        for seed in range(seeds):
            experiment = Experiment(method=method, seed=seed, clients=CLIENTS, rounds=ROUNDS)
            make_run(folder / f"{method}-seed{seed}", experiment)


def report_of(folder: Path, path: Path) -> tuple[float, int]:
    """Seconds and bytes of a report; nothing is remembered from another one."""
    for found in (_read, looks._look, _gathered):
        found.cache_clear()
    begun = time.perf_counter()
    write_report(gather([folder]), path)
    return time.perf_counter() - begun, path.stat().st_size


def list_of(folder: Path) -> float:
    """Seconds until a viewer that has just begun has sent its page and its list."""
    begun = time.perf_counter()
    with server(folder, 0) as served:
        thread = Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        place = urlsplit(served.address)
        for name in ("", "runs.json"):
            connection = HTTPConnection(str(place.hostname), place.port or 0)
            connection.request("GET", place.path + name)
            assert connection.getresponse().read()
            connection.close()
        seconds = time.perf_counter() - begun
        served.shutdown()
        thread.join()
    return seconds


def page(found: dict[str, Any]) -> str:
    """What docs/report.md says of it."""
    report, viewer = found["report"], found["viewer"]
    size = f"{report['bytes'] / 1e6:.1f} MB"
    return (
        f"A report of {report['methods']} methods × {report['seeds']} seeds × {report['clients']} clients × "
        f"{report['rounds']} rounds took {report['seconds']:.1f} s and {size}, and the viewer's\n"
        f"list of {viewer['runs']:,} runs {viewer['seconds']:.1f} s, medians of {found['repeats']} on a machine of "
        f"{found['cores']} cores whose load was {found['load']:.1f}\n"
        "(`python -m benchmarks.pages`; the runs are made up)."
    )


def main(words: Sequence[str] | None = None) -> None:
    """Make the runs, measure, and write what was found and what the page says of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--page", action="store_true", help="measure nothing, only write the page again")
    if not parser.parse_args(words).page:
        with tempfile.TemporaryDirectory() as place:
            large, many = Path(place) / "large", Path(place) / "many"
            make_comparison(large)
            small = Experiment(method="fedproto", clients=5, rounds=10)
            for seed in range(RUNS):
                make_run(many / f"run{seed}", replace(small, seed=seed), seen=False)
            load = os.getloadavg()[0]
            reports = [report_of(large, Path(place) / "report.html") for _ in range(REPEATS)]
            lists = [list_of(many) for _ in range(REPEATS)]
        report = {"methods": len(METHODS), "seeds": SEEDS, "clients": CLIENTS, "rounds": ROUNDS, "bytes": reports[0][1]}
        found = {
            "report": {**report, "seconds": median(seconds for seconds, _ in reports)},
            "viewer": {"runs": RUNS, "seconds": median(lists)},
            "repeats": REPEATS,
            "cores": os.cpu_count(),
            "load": load,
        }
        (RESULTS / "pages.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write_part(PAGE, page(json.loads((RESULTS / "pages.json").read_text(encoding="utf-8"))), BEGIN, END)


if __name__ == "__main__":
    main()
