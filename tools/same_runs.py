"""Record a set of runs, and compare two recordings: a change of structure must not change a number.

    python -m tools.same_runs record FOLDER          # with the package that `python -m protofed` finds
    python -m tools.same_runs compare BEFORE AFTER   # exit code 1 and a list of differences, if there are any

Record once before the first change and once after the last one. `PYTHONPATH=OTHER_CLONE/src` records another version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

METHODS = (
    "local,fedavg,fedprox,fedper,fedrep,fedproto,fedpcl,fedproc,moon,fedntd,fedrcl,fesem,fedcda,fednh,fpl,fedplvm,"
    "fedplcc,fedsc,sp-fedcl,dp-fedcl,mp-fedcl,fccl-plus"
)
SMALL = (
    "--dataset digits --train-size 300 --clients 3 --rounds 3 --threads 1 --precision float64 --public digit-domains"
)

STUDIES = {
    "methods-sequential": f"compare --method {METHODS} {SMALL} --engine sequential --seeds 1",
    "methods-stacked": f"compare --method {METHODS} {SMALL} --engine stacked --seeds 1",
    "sweep": f"sweep --method fedproto {SMALL} --grid lam=0.5,2 --seeds 2 --jobs 1",
    "choose-k": f"choose-k {SMALL} --max-k 3 --seeds 1 --jobs 1",
}
"""Studies, each a command; the folder of every run in it is compared."""

RUNS = {
    "participation": "--method mp-fedcl --clients 6 --participation 0.5",
    "participation-kept": "--method fedcda --clients 6 --participation 0.5 --rounds 4",
    "float32-cnn": "--method fedproto --model cnn --precision float32",
    "drift-sudden": "--method fedproto --drift sudden --rounds 4",
    "drift-gradual": "--method mp-fedcl --drift gradual --rounds 4",
    "attack-defence": "--method fedavg --clients 5 --attack sign-flip --defence outliers",
    "attack-memory": "--method fedproto --clients 5 --participation 0.8 --attack stale-replay --defence outliers",
    "attack-backdoor": "--method fedavg --clients 5 --attack backdoor --defence median",
    "attack-prototypes": "--method fedproto --clients 5 --attack collusion --defence prototype-trimmed-mean",
    "privacy-client": "--method fedavg --clients 6 --participation 0.5 --privacy client --clip 1 --noise 0.5",
    "privacy-nobody": "--method fedproto --clients 3 --participation 0.1 --privacy client --clip 1 --noise 0.5",
    "privacy-example": "--method sp-fedcl --privacy example --clip 1 --noise 1 --rounds 2",
    "min-count": "--method sp-fedcl --min-count 5",
    "mixed-models": "--method fedproto --clients 4 --model cnn,cnn-18",
    "mixed-resnets": "--method fedproto --clients 2 --model resnet10,resnet18 --image-size 16 --rounds 1",
    "joined-datasets": "--method fedproto --dataset digits+digit-domains --clients 4",
    "domains": "--method fedplcc --dataset digit-domains --split domains --clients 4 --rounds 2 --lr 0.003",
    "ways": "--method fedproto --split ways --ways 3 --half-width 1 --shots 15 --clients 4 --train-size 1000",
    "long-tail": "--method fedsc --long-tail 10 --split nid1",
    "few-shot": "--method mp-fedcl --novel 3 --episode-ways 3 --episodes 20",
    "validation": "--method fedrep --val-fraction 0.2 --augment crop",
    "eval-every": "--method moon --rounds 5 --eval-every 2 --checkpoint-every 3",
    "public": "--method fccl-plus --clients 4 --participation 0.5",
}
"""Single runs, each played by both engines where both can."""

ONE_ENGINE = {"privacy-example"}
"""Runs that only the sequential engine plays."""

TIMES = {"digest", "seconds", "seconds_left", "folder", "runs"}
"""Keys of JSON files that differ from one recording to the next, digests because of the others."""


def commands(folder: Path) -> Iterator[list[str]]:
    """The arguments of `protofed` for every part of a recording."""
    for name, text in STUDIES.items():
        yield [*text.split(), "--quiet", "--out", str(folder / name)]
    for name, text in RUNS.items():
        given = text.split()
        small = SMALL.split()
        defaults = [
            word
            for flag, value in zip(small[::2], small[1::2], strict=True)
            if flag not in given
            for word in (flag, value)
        ]
        for engine in ("sequential",) if name in ONE_ENGINE else ("sequential", "stacked"):
            yield ["run", *given, *defaults, "--engine", engine, "--quiet", "--out", str(folder / f"{name}-{engine}")]


def record(folder: Path) -> int:
    """Play what the folder lacks, two commands at a time; the number of commands that failed."""
    folder.mkdir(parents=True, exist_ok=True)

    def play(arguments: list[str]) -> bool:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            [sys.executable, "-m", "protofed", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            print(f"failed: protofed {' '.join(arguments)}\n{ended.stderr}", file=sys.stderr)
        return ended.returncode == 0

    with ThreadPoolExecutor(2) as pool:
        missing = [arguments for arguments in commands(folder) if not Path(arguments[-1]).exists()]
        return list(pool.map(play, missing)).count(False)


def values(folder: Path) -> dict[str, Any]:
    """All that a run or study has written, by a name; tensors as arrays."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder)).replace("look.safetensors", "snapshot.safetensors")
        if path.suffix == ".jsonl":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                found |= _flat(json.loads(line), f"{name}:{number}")
        elif path.suffix == ".json":
            found |= _flat(json.loads(path.read_text(encoding="utf-8")), name)
        elif path.name == "config.yaml":
            found |= _flat(yaml.safe_load(path.read_text(encoding="utf-8")), name)
        elif path.suffix == ".safetensors":
            tensors = load_file(path)
            found |= {f"{name}:{_renamed(key)}": tensor for key, tensor in tensors.items()}
        elif path.suffix == ".bin":
            found[name] = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    return found


def _renamed(tensor: str) -> str:
    """What attackers remember had no part of the checkpoint of its own before version 0.2."""
    return tensor.replace("kept/attack/", "attack/", 1)


def _flat(value: Any, name: str) -> dict[str, Any]:
    """The leaves of a JSON value, but for times and paths."""
    if isinstance(value, dict):
        return {k: v for key in value if key not in TIMES for k, v in _flat(value[key], f"{name}/{key}").items()}
    if isinstance(value, list):
        return {k: v for place, one in enumerate(value) for k, v in _flat(one, f"{name}/{place}").items()}
    return {name: value}


def differences(before: Path, after: Path) -> list[str]:
    """The names of all values that are not equal, or that only one recording has."""
    ours, theirs = values(before), values(after)
    missing = [f"only {'before' if name in ours else 'after'}: {name}" for name in sorted(ours.keys() ^ theirs.keys())]
    return missing + [
        f"differs: {name}" for name in ours.keys() & theirs.keys() if not _equal(ours[name], theirs[name])
    ]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return bool(one == other)


def main(arguments: list[str]) -> int:
    """The command line."""
    match arguments:
        case ["record", folder]:
            return 1 if record(Path(folder)) else 0
        case ["compare", before, after]:
            found = differences(Path(before), Path(after))
            number = len(values(Path(before)))
            print("\n".join(found[:50]) or f"{number} values are equal")
            return 1 if found else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
