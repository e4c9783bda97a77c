"""python -m benchmarks.gradients: how hard each term of FedSC pulls at the features, into docs/results.

FedSC under NID1 by the reduced protocol, on the sequential engine. In every step the gradient of
the cross-entropy and of each term at every sample's features is measured; training goes on as it would.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import ClassVar, cast

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from benchmarks.tables import RESULTS
from protofed.experiment import Experiment
from protofed.methods.base import Batch, Turn
from protofed.methods.fedsc import FedSC
from protofed.models.net import Net
from protofed.runs.run import new_run
from protofed.studies.papers import find_target
from protofed.studies.study import SEEDS

SOFT = 0.5
"""A temperature ten times the paper's, for comparison: nothing is trained with it."""

HERE = Path(__file__).relative_to(Path(__file__).parent.parent)
Step = dict[str, float]


@dataclass(frozen=True)
class Measured(FedSC):
    """FedSC that notes what its terms would do."""

    name: ClassVar[str] = "fedsc-measured"
    seen: ClassVar[list[Step]] = []  # of every step of every client, since it was last cleared

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """As FedSC's."""
        out = model(batch.x)
        again = cast(Net, lambda _: out)

        def force(rpcl: float, cpdr: float, temperature: float = self.temperature) -> Tensor:
            method = replace(self, rpcl_weight=rpcl, cpdr_weight=cpdr, temperature=temperature)
            return torch.autograd.grad(FedSC.loss(method, again, batch, turn).sum(), out.features, retain_graph=True)[0]

        if turn.received.prototypes:
            task = force(0.0, 0.0)
            terms = {
                "RPCL": force(1.0, 0.0) - task,
                f"RPCL at temperature {SOFT}": force(1.0, 0.0, SOFT) - task,
                "CPDR": force(0.0, 1.0) - task,
            }
            norms = {name: float(term.norm(dim=1).mean()) for name, term in {"CE": task, **terms}.items()}
            angle = {"cosine of CE and RPCL": float(cosine_similarity(task, terms["RPCL"]).mean())}
            self.seen.append(norms | angle)
        return super().loss(again, batch, turn)


def measured(experiment: Experiment) -> Iterator[tuple[str, Step]]:
    """Play it; the mean over all clients' steps, by round."""
    run = new_run(replace(experiment, method=f"{HERE}:Measured", engine="sequential"))
    steps = cast(Measured, run.engine.method).seen
    for number in range(1, experiment.rounds + 1):
        steps.clear()
        run.play_round()
        if steps:  # the first round has no prototypes
            yield str(number), {name: fmean(step[name] for step in steps) for name in steps[0]}


def main(words: Sequence[str] | None = None) -> None:
    """Each seed's means, by round and term; those that are known stay."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradients", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the datasets")
    parser.add_argument("--rounds", type=int, help="of the protocol's, the first; all unless given")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args(words)
    trials = {trial.name: trial for trial in find_target("fedsc/table1", "reduced").trials()}
    whole = trials["cifar10-nid1-a=0.2-fedsc"].experiment({"data_dir": str(asked.data_dir.resolve())})
    rounds = asked.rounds or whole.rounds
    file = RESULTS / "fedsc-gradients.json"
    found: dict[str, dict[str, list[float]]] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if list(found) != [str(number) for number in range(2, rounds + 1)]:  # of another length
        found = {}
    known = min((len(values) for steps in found.values() for values in steps.values()), default=0)
    for seed in range(known, asked.seeds):
        steps = {}
        for number, step in measured(replace(whole, seed=seed, rounds=rounds, eval_every=rounds)):
            print(f"seed {seed}, round {number}: {step}", flush=True)
            steps[number] = step
        for number, step in steps.items():
            for name, value in step.items():
                found.setdefault(number, {}).setdefault(name, []).append(round(value, 4))
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
