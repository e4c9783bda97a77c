"""What a run has trained, without exporting it: `Result.models` and `Result.predictor`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path

from torch import nn

from protofed.engines.client_group import Group, State
from protofed.errors import UserError, missing_value
from protofed.evaluation.accuracy import models_of, sent_to
from protofed.runs.folder import RunFolder
from protofed.runs.result import Result
from protofed.runs.run import Ended, Run, new_run
from protofed.serving.export import PLAIN, export_run, restored
from protofed.serving.predictor import Predictor

GLOBAL = "global"


class TrainedModels(Mapping[int | str, nn.Module]):
    """Clients' own models by number and, where all have the same, the averaged one; each is made when it is taken."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.groups = {member: group for group in run.engine.groups for member in group.members}

    def __getitem__(self, key: int | str) -> nn.Module:
        if key == GLOBAL and (state := self._averaged()) is not None:
            return _loaded(self.run.engine.groups[0], state)
        if not isinstance(key, int) or key not in self.groups:
            raise KeyError(key)
        group = self.groups[key]
        return _loaded(group, group.own.take([group.members.index(key)]))

    def __iter__(self) -> Iterator[int | str]:
        yield from sorted(self.groups)
        if self._averaged() is not None:
            yield GLOBAL

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _averaged(self) -> State | None:
        """The averaged model; none where there is none, or one for each cluster of clients."""
        first, *others = self.run.engine.groups
        sent = sent_to(self.run.method, first, self.run.broadcast)
        alike = all(group.own.initial.keys() == first.own.initial.keys() for group in others)
        everyones = all(sent_to(self.run.method, group, self.run.broadcast) == sent for group in others)
        if len(sent) > 1 or not (alike and everyones):
            return None
        return models_of(self.run.method, first, range(1), sent).get(GLOBAL)


def models_of_result(result: Result, ended: Ended | None) -> TrainedModels:
    """The models that a run has trained."""
    return TrainedModels(_at_its_end(result, ended))


def predictor_of_result(result: Result, ended: Ended | None, client: int | None) -> Predictor:
    """What predicts by a run's model and prototypes, as after `export` and `load`."""
    return export_run(_at_its_end(result, ended), client, result.stopped).predictor


def _at_its_end(result: Result, ended: Ended | None) -> Run:
    """The run as it ended, on the CPU: from its folder, or from what one in memory has left."""
    if result.folder is not None:
        opened = RunFolder.open(Path(result.folder))
        if opened.over_network:
            raise UserError(
                "models", result.folder, "its clients keep their own; `protofed export` has the averaged one"
            )
        return restored(opened)
    if ended is None:
        raise missing_value("out", "a study in memory keeps results only: give it a folder")
    run = new_run(dataclasses.replace(ended.experiment, **PLAIN))
    run.take_over(ended)
    return run


def _loaded(group: Group, state: State) -> nn.Module:
    """A module of a group with the one model that these tensors [1, ...] hold, ready to be asked."""
    module = deepcopy(group.module)
    module.load_state_dict({name: tensor[0] for name, tensor in state.items()})
    return module.eval()
