"""What was measured, as JSON, as Markdown, as a plot, and in a page of the documentation."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

from tools.markdown import wrapped

Results = dict[str, dict[str, Any]]
"""By machine: what it is, and its workloads by name."""

HEAD = """# Measured performance

Written by `python -m benchmarks`; [performance.md](../performance.md) says how it is measured and what it means.

![Times as fast as the plain loop](performance.png)

"""


def machine(device: torch.device) -> tuple[str, dict[str, Any]]:
    """The name of the machine that a device stands for, and what else matters about it."""
    about: dict[str, Any] = {"device": device.type, "cores": os.cpu_count(), "torch": torch.__version__}
    about |= {"threads": torch.get_num_threads(), "python": platform.python_version()}
    if device.type == "cuda":
        return torch.cuda.get_device_name(device), about | {"cuda": torch.version.cuda}
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} CPU cores ({models[0] if models else platform.machine()})", about


def read(path: Path) -> Results:
    """What earlier runs have saved."""
    found: Results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def save(results: Results, folder: Path) -> None:
    """Everything, as performance.json, .md and .png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "performance.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "performance.md").write_text(markdown(results), encoding="utf-8")
    plot(results, folder / "performance.png")


def markdown(results: Results) -> str:
    """The page: a section for each machine."""
    return wrapped(HEAD + "\n".join(_section(name, found) for name, found in results.items()))


def _section(name: str, found: dict[str, Any]) -> str:
    about, workloads = found["about"], found["workloads"]
    gpu = about["device"] == "cuda"
    lines = [
        f"## {name}",
        "",
        f"{about['cores']} cores, {about['threads']} threads, torch {about['torch']}, Python {about['python']}",
        "",
    ]
    lines += _gpu_table(workloads) if gpu else _cpu_table(workloads)
    for work in workloads.values():
        if "peaks" in work:
            lines += ["", *_memory_table(work)]
    lines += ["", "What was run:", ""]
    lines += [f"- {work['title']}: {work['set-up']}; {work['data']}" for work in workloads.values() if "data" in work]
    lines += [f"- {work['title']}: failed, {work['failed']}" for work in workloads.values() if "failed" in work]
    return "\n".join(lines) + "\n"


def _cpu_table(workloads: dict[str, Any]) -> list[str]:
    """Ratios only: the seconds of a CPU that others use too say little."""
    lines = ["| work | | engine | times as fast as | |", "|---|---|---|---|---|"]
    for work in workloads.values():
        baseline, *others = work.get("contenders", {"": {}})
        for other in others:
            entry = work["contenders"][other]
            ratio = work["contenders"][baseline]["seconds"] / entry["seconds"]
            lines.append(f"| {work['title']} | {other} | {entry.get('engine', '')} | {baseline} | {ratio:.2f} |")
    return lines


def _gpu_table(workloads: dict[str, Any]) -> list[str]:
    lines = [
        "| work | | time | target | times as fast | images/s | floor | of the floor | GPU busy | peak memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for work in workloads.values():
        contenders = work.get("contenders", {})
        for place, (name, entry) in enumerate(contenders.items()):
            seconds, least = entry["seconds"], entry.get("floor", {}).get("seconds")
            cells = [
                work["title"] if not place else "",
                name,
                _time(seconds),
                work["target"] if place else "",
                f"{next(iter(contenders.values()))['seconds'] / seconds:.1f}" if place else "",
                f"{work['images'] / seconds:,.0f}" if "images" in work else "",
                _time(least) if least else "",
                f"{seconds / least:.1f}×" if least else "",
                f"{100 * entry['busy']:.0f} %" if "busy" in entry else "",
                f"{entry['memory'] / 1e6:,.0f} MB"
                if entry.get("memory", 0) > 0
                else "",  # below: something else was freed
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _memory_table(work: dict[str, Any]) -> list[str]:
    counts = list(next(iter(work["peaks"].values())))
    lines = [f"{work['title']} beyond that of one client, in MB, by the number of clients:", ""]
    lines += [f"| | {' | '.join(counts)} |", "|---" * (len(counts) + 1) + "|"]
    for name, peaks in work["peaks"].items():
        lines.append(f"| {name} | {' | '.join(f'{peaks[count] / 1e6:,.0f}' for count in counts)} |")
    return lines


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def plot(results: Results, path: Path) -> None:
    """How many times as fast as the plain loop, a panel for each machine."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    panels = {name: _ratios(found["workloads"]) for name, found in results.items()}
    rows = max([len(ratios) for ratios in panels.values()], default=1)
    figure = Figure(figsize=(7 * max(1, len(panels)), 1.2 + 0.3 * rows), layout="constrained")
    axes = figure.subplots(1, max(1, len(panels)), squeeze=False)[0]
    for axis, (name, ratios) in zip(axes, panels.items(), strict=False):
        axis.plot(list(ratios.values()), list(ratios), "o")  # a bar's length would mean nothing on a log axis
        for label, ratio in ratios.items():
            beside = {"xytext": (6, -3)} if ratio >= 1 else {"xytext": (-6, -3), "ha": "right"}
            axis.annotate(f"{ratio:.1f}", (ratio, label), textcoords="offset points", fontsize=8, **beside)
        axis.grid(axis="y", alpha=0.3)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.margins(x=0.15)
        axis.invert_yaxis()
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("times as fast as the plain loop")
    figure.savefig(path, dpi=120)


def _ratios(workloads: dict[str, Any]) -> dict[str, float]:
    """The ratio of every contender that has a plain loop to compare with."""
    ratios = {}
    for name, work in workloads.items():
        contenders = work.get("contenders", {})
        if "plain loop" not in contenders:
            continue
        for other in list(contenders)[1:]:
            label = name if other == "ProtoFed" else f"{name}, {other}"
            ratios[label] = contenders["plain loop"]["seconds"] / contenders[other]["seconds"]
    return ratios
