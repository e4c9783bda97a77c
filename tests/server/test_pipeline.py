"""The server's stages: each judges the clients that are left, and the method gets what comes out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from protofed.errors import LostError
from protofed.messages import Broadcast, Upload
from protofed.methods import build_method
from protofed.methods.base import Clock
from protofed.server.pipeline import UNSOUND, Defending, Notes, Pipeline, Releasing, Screening, Stage
from protofed.trust.defended import NOTHING, Context, Defended

SENT = Broadcast({"w": torch.zeros(2)})
CLOCK = Clock(0, 3, (4, 7, 9), 10)


def uploads(*rows: float) -> Upload:
    """One weight vector of each client, and a sample each."""
    return Upload(
        {"w": torch.tensor(rows, dtype=torch.float32).view(-1, 1).expand(-1, 2).clone()},
        {},
        {"samples": torch.ones(len(rows))},
    )


@dataclass(frozen=True)
class Reject:
    """Rejects one client."""

    client: int

    def apply(self, uploads: Upload, sent: Broadcast, clock: Clock) -> tuple[Upload, Notes]:  # noqa: ARG002
        """Without it."""
        rows = [row for row, member in enumerate(clock.who) if member != self.client]
        return uploads.reorder(torch.tensor(rows)), Notes(rejected={self.client: "because"})


def test_without_stages_the_method_gets_what_was_sent() -> None:
    done = Pipeline(build_method("fedavg", {}), []).process(uploads(1, 2, 3), SENT, CLOCK)
    assert torch.equal(done.broadcast.weights["w"], torch.tensor([2.0, 2.0]))
    assert (done.who, done.rejected, done.suspected) == (CLOCK.who, {}, [])


def test_a_stage_sees_the_clients_that_the_stages_before_it_have_left() -> None:
    def last(uploads: Upload, sent: Broadcast, known: Context = NOTHING) -> Defended:  # noqa: ARG001
        return Defended(uploads, [len(uploads.numbers["samples"]) - 1])

    stages: list[Stage] = [Reject(7), Defending(last), Reject(4)]
    done = Pipeline(build_method("fedavg", {}), stages).process(uploads(1, 2, 3), SENT, CLOCK)
    assert done.who == (9,)
    assert done.rejected == {7: "because", 4: "because"}
    assert done.suspected == [9]
    assert torch.equal(done.broadcast.weights["w"], torch.tensor([3.0, 3.0]))
    assert len(done.arrived.numbers["samples"]) == 3


def test_what_is_released_is_what_the_method_gets() -> None:
    stages: list[Stage] = [Reject(4), Releasing(lambda found, sent, clock: uploads(*map(float, clock.who)))]  # noqa: ARG005
    done = Pipeline(build_method("fedavg", {}), stages).process(uploads(1, 2, 3), SENT, CLOCK)
    assert torch.equal(done.broadcast.weights["w"], torch.tensor([8.0, 8.0]))


def test_screening_rejects_by_client() -> None:
    sent, notes = Screening(lambda clock: [5] * len(clock.who)).apply(uploads(1, float("nan"), 3), SENT, CLOCK)
    assert notes.rejected == {7: "refused: it holds a number that is not finite"}
    assert sent.weights["w"][:, 0].tolist() == [1, 3]


def test_counts_are_held_against_what_was_declared_unless_they_are_noisy() -> None:
    many = Upload(uploads(1, 2, 3).weights, {}, {"samples": torch.tensor([1.0, 9.0, 1.0])})
    assert list(Screening(lambda _: [5, 5, 5]).apply(many, SENT, CLOCK)[1].rejected) == [7]
    assert not Screening(None).apply(many, SENT, CLOCK)[1].rejected


def test_nobody_counts_for_more_than_thrice_what_most_have() -> None:
    many = Upload(uploads(1, 2, 3).weights, {}, {"samples": torch.tensor([5, 900, 6])})
    found, _ = Screening(None, lengths=True, caps=True).apply(many, SENT, CLOCK)
    assert found.numbers["samples"].tolist() == [5, 18, 6]
    assert Screening(None, lengths=True).apply(many, SENT, CLOCK)[0].numbers["samples"].tolist() == [5, 900, 6]


def test_what_is_not_sound_is_not_sent() -> None:
    pipeline = Pipeline(
        build_method("fedavg", {}), [Reject(7)], sound=lambda made: bool((made.weights["w"] < 2.5).all())
    )
    done = pipeline.process(uploads(1, 2, 9), SENT, CLOCK)
    assert done.broadcast is SENT
    assert done.who == ()
    assert done.rejected == {7: "because", **dict.fromkeys((4, 9), "refused: " + UNSOUND)}
    assert pipeline.process(uploads(1, 9, 2), SENT, CLOCK).who == (4, 9)


def test_nobody_may_be_left_only_where_each_is_judged_alone() -> None:
    bad = uploads(*[float("inf")] * 3)
    with pytest.raises(LostError, match="every upload of round 1 was refused: it holds a number"):
        Screening(None).apply(bad, SENT, CLOCK)
    assert len(Screening(None, alone=True).apply(bad, SENT, CLOCK)[1].rejected) == 3
