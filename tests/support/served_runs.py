"""Whole runs of methods whose server does more than average, beside plain loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.methods.base import Clock, Method
from protofed.runs.run import Run
from tests.reference import served_rounds as slow
from tests.reference.plain_rounds import Data
from tests.support.nets import federation
from tests.support.whole_runs import PARTS, Levels, everything, run_of


@dataclass(frozen=True)
class Played:
    """A run of two of three clients a round, and what a plain loop needs to play it again."""

    run: Run
    module: nn.Module
    data: Sequence[Data]
    initial: dict[str, Tensor]

    def models(
        self,
        begin: slow.Begin,
        serve: slow.Serve,
        term: slow.Term = slow.nothing,
        trains: Sequence[Callable[[str], bool]] = (everything,),
    ) -> list[dict[str, Tensor]]:
        """Every client's model by plain loops."""
        rounds: list[dict[int, list[list[list[int]]]]] = []
        for number, line in enumerate(self.run.history):
            rounds.append({})
            for who in line.participants:
                clock = Clock(number, len(self.run.history))
                plan = self.run.engine.schedule(self.run.engine.groups[0], [who], clock)
                steps = [[int(row) for row in step if row >= 0] for step in plan.rows[0]]
                each = len(steps) // len(trains)
                rounds[-1][who] = [steps[phase * each : (phase + 1) * each] for phase in range(len(trains))]
        rates = [0.02 * 0.9**number for number in range(len(rounds))]
        return slow.play(self.module, self.data, rounds, trains, rates, begin, serve, term)

    def assert_same_models(self, expected: Sequence[dict[str, Tensor]]) -> None:
        for name, value in self.run.engine.groups[0].own.take(range(3)).items():
            assert_close(value, torch.stack([state[name] for state in expected]), atol=1e-10, rtol=0, msg=name)


def played(method: Method, engine: str, rounds: int = 4) -> Played:
    clients = federation(PARTS, test=30)
    options: dict[str, Any] = {"weight_decay": 0.0, "epochs": 1, "clients": clients, "participation": 0.67, "seed": 2}
    run = run_of(method, engine, rounds, Levels, **options)
    group = run_of(method, engine, 0, Levels, **options).engine.groups[0]
    module = deepcopy(group.module).double()
    module.load_state_dict(group.own.initial)
    data = [Data(group.inputs(client.train.x), client.train.labels) for client in clients.clients]
    return Played(run, module, data, dict(group.own.initial))
