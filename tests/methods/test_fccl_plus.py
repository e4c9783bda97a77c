"""FCCL+: the losses against plain loops, both engines, both ways to exchange, and what is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from protofed.engines.client_group import Group, State, Turns
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Turn
from protofed.methods.fccl_plus import FCCLPlus
from protofed.models.net import Net
from protofed.models.output import Output
from protofed.runs.run import Run, new_run
from tests.support.nets import Norm, Plain, assert_same_run, federation, gap, own

SETTINGS = Experiment(
    method="fccl-plus",
    public="digits",
    precision="float64",
    batch_size=8,
    epochs=1,
    rounds=3,
    participation=0.6,
    lr=1e-4,  # standardised logits cancel the head's bias, and Adam makes steps of the rounding left in its gradient
    seed=3,
)
METHOD = FCCLPlus(public_images=40, public_batch=16)


def play(method: FCCLPlus, engine: str, model: Callable[..., nn.Module] = Norm, **changes: object) -> Run:
    settings = Experiment.from_mapping({**vars(SETTINGS), "engine": engine, **changes})
    run = new_run(settings, method=method, federation=federation(), models=[model])
    for _ in range(settings.rounds):
        run.play_round()
    return run


class Fixed(nn.Module):
    """Gives the features and logits it was made with; a 'weight' picks the logits of the student or the teacher."""

    def __init__(self, features: Tensor, student: Tensor, teacher: Tensor) -> None:
        super().__init__()
        self.outputs = (features, student, teacher)
        self.which = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Output:  # noqa: ARG002
        features, student, teacher = self.outputs
        return Output(features, torch.where(self.which > 0, teacher, student), ())


@pytest.mark.parametrize("exchange", ["batch", "round"])
def test_engines_agree(exchange: Literal["batch", "round"]) -> None:
    method = replace(METHOD, exchange=exchange)
    sequential, stacked = play(method, "sequential"), play(method, "stacked")
    assert_same_run(sequential, stacked)


def test_a_round_is_public_images_with_the_own_models_then_training_from_their_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Experiment.from_mapping({**vars(SETTINGS), "engine": "sequential", "participation": 1.0})
    run = new_run(settings, method=METHOD, federation=federation(), models=[Norm])
    engine, calls = run.engine, []
    step, train = engine.step_on, engine.train

    def step_on(group: Group, states: State, *rest: Any) -> dict[str, Tensor]:
        after = step(group, states, *rest)
        calls.append(("public", dict(states), after))
        return after

    def trained(group: Group, rows: list[int], turns: Turns, *rest: Any) -> Any:
        result = train(group, rows, turns, *rest)
        calls.append(("train", group.start(rows, turns), result[0]))
        return result

    monkeypatch.setattr(engine, "step_on", step_on)
    monkeypatch.setattr(engine, "train", trained)
    run.play_round()
    run.play_round()
    first, second = calls[:4], calls[4:]
    for kinds in ([kind for kind, _, _ in first], [kind for kind, _, _ in second]):
        assert kinds == ["public"] * 3 + ["train"]  # 40 images in batches of 16
    for name, value in first[-1][2].items():  # what a client trained last is what it looks at public images with
        assert torch.equal(second[0][1][name], value)
    for name, value in second[-1][1].items():
        if value.is_floating_point():
            expected = second[-2][2][name].mean(0).expand_as(value)
            torch.testing.assert_close(value, expected)
    assert gap(own(run), {f"own/0/{name}": value for name, value in second[-1][2].items()}) == 0  # and is evaluated


def test_both_public_terms_and_the_distillation_change_the_run() -> None:
    full = own(play(METHOD, "stacked"))
    without = [
        replace(METHOD, similarity_weight=0.0),
        replace(METHOD, public_images=1),
        replace(METHOD, off_diagonal=0.0),
    ]
    assert all(gap(full, own(play(method, "stacked"))) > 1e-6 for method in without)
    assert gap(full, own(play(replace(METHOD, distillation_temperature=1.0), "stacked"))) > 1e-6
    assert gap(full, own(play(replace(METHOD, exchange="round"), "stacked"))) > 1e-6


def test_distillation_is_the_equation_and_silent_in_a_clients_first_turn() -> None:
    draws = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(5, 4, generator=draws, dtype=torch.float64) for _ in range(2))
    labels = torch.tensor([0, 1, 2, 3, 0])
    model = Net(Fixed(torch.zeros(5, 2), student, teacher))
    batch = Batch(torch.zeros(5, 1), labels, torch.ones(5, dtype=torch.bool))
    previous = {"which": torch.ones(())}
    for taken in (0, 2):
        turn = Turn(Broadcast(), Clock(1, 3), previous, taken=torch.tensor(taken))
        found = METHOD.loss(model, batch, turn)
        for row, label in enumerate(labels.tolist()):
            expected = -float(student[row].log_softmax(0)[label])
            if taken:
                p = [math.exp(v) for v in (teacher[row] / 3).log_softmax(0).tolist()]
                q = [math.exp(v) for v in (student[row] / 3).log_softmax(0).tolist()]
                expected += 9 * sum(p[c] * math.log(p[c] / q[c]) for c in range(4) if c != label)
            assert float(found[row]) == pytest.approx(expected, rel=1e-9)


def test_the_public_loss_is_the_equation() -> None:
    draws = torch.Generator().manual_seed(1)
    features = torch.randn(6, 3, generator=draws, dtype=torch.float64)
    logits = torch.randn(6, 4, generator=draws, dtype=torch.float64)
    mean = torch.randn(6, 4, generator=draws, dtype=torch.float64)
    others = torch.randn(6, 5, generator=draws, dtype=torch.float64)
    received = Broadcast(numbers={"logits": mean, "similarity": others})
    found = METHOD.public_loss(Net(Fixed(features, logits, logits)), torch.zeros(6, 1), received)

    def standard(z: Tensor) -> list[list[float]]:
        columns = []
        for column in z.T.tolist():
            centre = sum(column) / 6
            spread = math.sqrt(sum((v - centre) ** 2 for v in column) / 6) + 1e-6
            columns.append([(v - centre) / spread for v in column])
        return columns

    a, b = standard(logits), standard(mean)
    matrix = [[sum(p * q for p, q in zip(a[i], b[j], strict=True)) / 6 for j in range(4)] for i in range(4)]
    expected = sum((matrix[i][i] - 1) ** 2 for i in range(4))
    expected += 0.0051 * sum((matrix[i][j] + 1) ** 2 for i in range(4) for j in range(4) if i != j)
    for i in range(6):
        row = [
            float(torch.cosine_similarity(features[i], features[(i + step) % 6], dim=0)) / 0.02 for step in range(1, 6)
        ]
        p, q = others[i].softmax(0), torch.tensor(row, dtype=torch.float64).log_softmax(0)
        expected += 3 / 6 * float((p * (p.log() - q)).sum())
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_bytes_count_the_exchange_on_public_images() -> None:
    run = play(METHOD, "stacked", model=Plain, rounds=1, participation=1.0)
    weights = sum(value.numel() for value in run.engine.groups[0].own.initial.values())
    scalars = 16 * (6 + 15) * 2 + 8 * (6 + 7)  # B(C + B − 1) a public batch, of 16, 16 and 8 images
    line = run.history[0]
    for sent in (line.bytes_up, line.bytes_down):
        overhead = sent / 5 - 8 * (weights + scalars)
        assert 0 < overhead < 1500  # headers and the number of samples


def test_it_needs_public_images() -> None:
    with pytest.raises(UserError, match="--public"):
        new_run(replace(SETTINGS, public=None), method=METHOD, federation=federation())


def test_public_images_of_another_shape_are_fitted() -> None:
    run = play(METHOD, "stacked", model=Plain, rounds=1, public="digit-domains")
    assert run.engine.public is not None
    assert run.engine.public.shape[1:] == (3, 32, 32)
    assert run.history[0].bytes_up > 0
