"""How many prototypes a class needs: K from validation accuracy and from silhouettes (methods with a parameter `k`).

Validation accuracy asks what the prototypes are for, and is what decides. The silhouette asks whether a class's
features fall into K groups at all; it needs a single training, with K = 1.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from protofed.errors import LostError, UserError
from protofed.experiment import Experiment
from protofed.methods import method_class, method_names, parameters
from protofed.prototypes import kmeans
from protofed.randomness import key
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder
from protofed.runs.process import process_settings
from protofed.runs.result import Result
from protofed.runs.run import new_run
from protofed.studies.grid import GridStudy
from protofed.studies.spread import Spread
from protofed.studies.study import SEEDS
from protofed.studies.sweeps import Sweep, swept
from protofed.studies.workers import Ending

SCORE = "own/val/nearest"

STRUCTURE = 0.25
"""Up to this mean silhouette there is no substantial structure (Kaufman and Rousseeuw, 1990)."""

Certainty = Literal["clear", "slight", "none"]


@dataclass(frozen=True)
class Candidate:
    """One K, over seeds."""

    k: int
    accuracy: Spread
    silhouette: Spread | None  # none for K = 1, which has no other cluster to compare with


@dataclass(frozen=True)
class Choice:
    """The K that validation accuracy prefers, how sure that is, and what silhouettes say."""

    method: str
    dataset: str
    k: int  # highest mean validation accuracy; the smallest of equals
    next_k: int
    lead: Spread  # of k over next_k, seed by seed
    certainty: Certainty
    silhouette_k: int | None  # none if no class is large enough
    candidates: list[Candidate]
    sweep: Sweep = field(repr=False)  # over K

    @property
    def results(self) -> Sequence[Result]:
        """The runs that came to their end."""
        return self.sweep.results

    @property
    def failures(self) -> Sequence[FailedRun]:
        """The runs that did not."""
        return self.sweep.failures

    def notes(self) -> list[str]:
        """The choice in words: a sentence for each criterion, and a warning."""
        spread = "with a single seed, which has no spread"
        if self.lead.std is not None:
            spread = f"± {self.lead.std:.2f} over {len(self.lead.values)} seeds"
        how = {"clear": "a clear lead", "slight": "a slight lead", "none": "no lead to speak of"}[self.certainty]
        sentences = [f"validation accuracy: K = {self.k}, {self.lead.mean:.2f} above K = {self.next_k} {spread}: {how}"]
        agree = "it agrees" if self.silhouette_k == self.k else "it does not agree"
        if self.silhouette_k is None:
            sentences.append("silhouette: no class of a client has more samples than the largest K")
        elif self.silhouette_k == 1:
            sentences.append(f"silhouette: no K above {STRUCTURE}, no clusters within classes, so K = 1: {agree}")
        else:
            sentences.append(f"silhouette: K = {self.silhouette_k}: {agree}")
        if self.k == self.candidates[-1].k:
            sentences.append(f"K = {self.k} is the largest that was tried; a larger one may be better")
        return sentences

    def to_json(self) -> str:
        """The text of choose-k.json."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name != "sweep"}
        values |= {"agree": self.silhouette_k == self.k, "notes": self.notes()}
        return json.dumps(values, indent=2, default=dataclasses.asdict) + "\n"

    def files(self) -> dict[str, str]:
        """What is written into its folder: the files of a sweep, and one more."""
        return {**self.sweep.files(), "choose-k.json": self.to_json()}


@dataclass(frozen=True)
class ChoiceStudy(GridStudy[Choice]):
    """A sweep over K that holds data out for validation, and a further step."""

    command: ClassVar = "choose-k"
    end: ClassVar = "choose-k.json"

    @classmethod
    def up_to(cls, largest: int, experiment: Experiment, seeds: int = SEEDS, jobs: int | None = None) -> Self:
        """K = 1 … largest."""
        if largest < 2:
            raise UserError("--max-k", largest, "it must be 2 or more")
        if not _clusters(experiment.method):
            fitting = ", ".join(name for name in method_names() if _clusters(name))
            why = f"it must make prototypes with a parameter k, as {fitting} does"
            raise UserError("--method", experiment.method, why)
        if experiment.val_fraction == 0:
            raise UserError("--val-fraction", 0.0, "it must be above 0: K is chosen on training data that is held out")
        return cls([experiment.method], experiment, seeds, jobs, {"k": range(1, largest + 1)}, SCORE)

    def chooses(self, experiment: Experiment) -> bool:  # noqa: ARG002
        """Every run."""
        return True

    def assemble(self, endings: Sequence[Ending], folder: Path | None) -> Choice:
        """Which K it should be, by the accuracies of the sweep and by the features of its runs with K = 1.

        A K of which a run failed is not compared with others.
        """
        sweep = swept(self, endings, folder)
        accuracy = {cell.setting["k"]: cell.row.accuracy[SCORE] for cell in sweep.cells if not cell.row.failed}
        if len(accuracy) < 2:
            raise LostError(f"of two K at least all runs must end: {'; '.join(map(str, sweep.failures))}")
        single = [run for run in sweep.results if run.params["k"] == 1]
        found = [silhouettes(run, max(accuracy)) for run in single]
        known = {k: [of[k] for of in found if k in of] for k in accuracy}
        silhouette = {k: Spread.of(values) for k, values in known.items() if values}
        k, next_k, lead = best_of(accuracy)
        return Choice(
            method=sweep.results[0].method,
            dataset=sweep.results[0].dataset,
            k=k,
            next_k=next_k,
            lead=lead,
            certainty=certainty(lead),
            silhouette_k=_silhouette_k(silhouette),
            candidates=[Candidate(k, spread, silhouette.get(k)) for k, spread in accuracy.items()],
            sweep=sweep,
        )

    def again(self, folder: Path) -> str:
        """The command that chooses again; its YAML file is that of a sweep, not what --config reads."""
        return f"protofed resume {shlex.quote(str(folder))}"


def best_of(accuracy: Mapping[int, Spread]) -> tuple[int, int, Spread]:
    """The best K, the next best, and the lead of the one over the other, seed by seed; of equals, the smaller K."""
    first, second = sorted(accuracy, key=lambda k: (-accuracy[k].mean, k))[:2]
    pairs = zip(accuracy[first].values, accuracy[second].values, strict=True)
    return first, second, Spread.of([ours - theirs for ours, theirs in pairs])


def certainty(lead: Spread) -> Certainty:
    """Clear if the lead is more than its spread over seeds, slight if more than its mean's standard error."""
    if lead.std is None or lead.mean <= lead.std / len(lead.values) ** 0.5:
        return "none"
    return "clear" if lead.mean > lead.std else "slight"


@torch.no_grad()
def silhouettes(result: Result, largest: int) -> dict[int, float]:
    """Of each K from 2 on: the mean over a finished run's clients of the mean over their classes.

    Only classes of more than `largest` samples count, the same ones for every K; without any there is nothing.
    """
    assert result.folder is not None  # a sweep with a folder has run it
    opened = RunFolder.open(Path(result.folder))
    run = new_run(opened.experiment())
    run.restore(opened)
    classes = len(run.federation.classes)
    clients: dict[int, list[float]] = {}
    for group in run.engine.groups:
        for row, member in enumerate(group.members):
            with process_settings(run.experiment):
                features, labels = run.engine.embed(group, [row], group.own.take([row]))
            keys = torch.tensor([key(result.seed, "silhouette", member)], device=features.device)
            large = [c for c in range(classes) if int((labels == c).sum()) > largest]
            for k in range(2, largest + 1) if large else ():
                made = kmeans(features, labels, classes, k, keys)
                scores = [_silhouette(features[labels == c], made.vectors[0, c][made.filled[0, c]]) for c in large]
                clients.setdefault(k, []).append(statistics.fmean(scores))
    return {k: statistics.fmean(scores) for k, scores in clients.items()}


def _silhouette(points: Tensor, centres: Tensor) -> float:
    """Of points, [n, D], that belong to the nearest of some centres, [K, D]; 0 if they are all one cluster."""
    from sklearn.metrics import silhouette_score

    nearest = torch.cdist(points, centres).argmin(-1).cpu().numpy()
    return float(silhouette_score(points.cpu().numpy(), nearest)) if len(set(nearest.tolist())) > 1 else 0.0


def _silhouette_k(silhouette: Mapping[int, Spread]) -> int | None:
    """The K of the highest mean silhouette, or 1 if that is too low to speak of clusters."""
    if not silhouette:
        return None
    k = max(silhouette, key=lambda k: silhouette[k].mean)
    return k if silhouette[k].mean > STRUCTURE else 1


def _clusters(method: str) -> bool:
    """Whether a method makes prototypes of features, k of them."""
    found = method_class(method)
    return "k" in parameters(found) and found.collect is not None
