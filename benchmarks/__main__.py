"""python -m benchmarks: measure everything, or a part of it, and save what was found."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.measure import Deadline
from benchmarks.workloads import WORKLOADS, Setting


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the workloads and stop")
    parser.add_argument("--only", action="append", metavar="NAME", help="a workload, or a pattern such as 'model-*'")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--data-dir", type=Path, help="folder with MNIST's files; without them images are random")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"), help="folder; what it holds is kept")
    parser.add_argument("--repeats", type=int, default=5, help="repeats, of which the median counts")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="start nothing after so many seconds")
    parser.add_argument("--report", action="store_true", help="measure nothing, only write the reports again")
    parser.add_argument("--tiny", action="store_true", help="a smoke test in a few seconds; the figures mean nothing")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Measure and save after every workload; 1 if one failed."""
    asked = arguments().parse_args(words)
    device = torch.device(asked.device)
    names = [work.name for work in WORKLOADS]
    patterns = asked.only or ["*"]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            raise SystemExit(f"--only {pattern}: the workloads are {', '.join(names)}")
    chosen = [work for work in WORKLOADS if any(fnmatch(work.name, pattern) for pattern in patterns)]
    if asked.list:
        for work in chosen:
            print(f"{work.name:24}{work.title} ({', '.join(work.devices)})")
        return 0

    deadline = Deadline(asked.budget)
    setting = Setting(device, asked.data_dir, asked.repeats, deadline, asked.tiny)
    results = report.read(asked.out / "performance.json")
    name, about = report.machine(device)
    failed = False
    for work in chosen:
        if asked.report or device.type not in work.devices:
            continue
        if deadline.passed():
            print(f"{work.name}: not measured, the time is used up", file=sys.stderr)
            continue
        print(f"{work.name}: {work.title} ...", file=sys.stderr, flush=True)
        try:
            found = work.measure(setting)
        except Exception as error:  # the other workloads are still worth measuring
            traceback.print_exc()
            found, failed = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0]}"}, True
        mine = results.setdefault(name, {"about": about, "workloads": {}})
        mine["about"] = about
        mine["workloads"][work.name] = {"title": work.title, **found}
        order = [known for known in names if known in mine["workloads"]]
        mine["workloads"] = {known: mine["workloads"][known] for known in order}
        report.save(results, asked.out)
    report.save(results, asked.out)
    print(report.markdown(results))
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
