"""What came out of a run, typed; `result.json` is its JSON form."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofed.errors import UserError
from protofed.internal.schema import made, read_json
from protofed.server.round import Round


@dataclass(frozen=True)
class Accuracy:
    """One model/test/rule accuracy in percent: at the end, mean of the last five, best, and per client at the end."""

    last: float
    last5: float
    best: float
    best_round: int
    per_client: list[float]
    per_domain: dict[str, float] | None = None
    interval: float | None = None  # of `last` over few-shot episodes: half the width of 95 % confidence
    diagnostic: bool = False  # by class means of the client's own data: the method itself has no such rule


@dataclass(frozen=True)
class Result:
    """A finished run."""

    method: str
    dataset: str
    split: str
    clients: int
    rounds: int
    seed: int
    engine: str
    device: str
    model: str
    params: dict[str, Any]  # the method's parameters, defaults included
    model_parameters: list[int]  # trainable numbers, one entry per architecture
    client_memory: int  # bytes that a client has to keep between rounds
    score: str  # the accuracy that the method's paper reports
    bytes_up: int  # over all rounds and clients
    bytes_down: int
    seconds: float
    stopped: str  # "rounds", "time budget" or "privacy budget"
    accuracy: dict[str, Accuracy]
    drift: dict[str, dict[str, float]] | None = None  # accuracies before, at and after what clients hold changed
    drawn_anew: list[str] | None = None  # tensors that a file of initial weights did not give
    encoder: dict[str, Any] | None = None  # the card of the frozen encoder whose features stood for images
    privacy: str | None = None  # "client" or "example", where something is promised
    epsilon: float | None = None  # what that has cost; None for ∞
    delta: float | None = None
    folder: str | None = None  # where it is on disk; not part of result.json

    @property
    def guarantee(self) -> str | None:
        """What the run promises, as it is printed beside every result."""
        if self.privacy is None or self.delta is None:
            return None
        return guarantee(self.privacy, self.epsilon, self.delta)

    def to_json(self) -> str:
        """The text of result.json."""
        values = dataclasses.asdict(self)
        del values["folder"]
        if self.privacy is None:
            del values["epsilon"]
        for name in ("drift", "drawn_anew", "encoder", "privacy", "delta"):
            if values[name] is None:
                del values[name]
        for entry in values["accuracy"].values():
            for name in ("per_domain", "interval"):
                if entry[name] is None:
                    del entry[name]
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Result:
        """The result in a run folder."""
        file = path / "result.json"
        values = read_json(file)
        found = values.pop("accuracy", None) if isinstance(values, dict) else None
        if not isinstance(found, dict):
            raise UserError(str(file), type(found).__name__, "it must name its accuracies")
        accuracy = {name: made(f"{file}: {name}", Accuracy, entry) for name, entry in found.items()}
        result = made(str(file), cls, values, accuracy=accuracy, folder=str(path))
        if result.rounds < 1 or not all(entry.per_client for entry in accuracy.values()):
            raise UserError(str(file), result.rounds, "it must have rounds, and clients with each accuracy")
        return result


def guarantee(privacy: str, epsilon: float | None, delta: float) -> str:
    """What differential privacy promises; without an ε, nothing."""
    return f"ε = {'∞' if epsilon is None else f'{epsilon:.2f}'}, δ = {delta:g}, {privacy}-level"


def summarise(history: Sequence[Round]) -> dict[str, Accuracy]:
    """Accuracies over those of a run's rounds that were evaluated."""
    tested = [played for played in history if played.accuracy]
    end = tested[-1]
    summary = {}
    for name, per_client in end.per_client.items():
        rounds = [played for played in tested if name in played.accuracy]
        values = [played.accuracy[name] for played in rounds]
        best = max(range(len(values)), key=values.__getitem__)
        recent = values[-5:]
        summary[name] = Accuracy(
            last=values[-1],
            last5=sum(recent) / len(recent),
            best=values[best],
            best_round=rounds[best].round,
            per_client=per_client,
            per_domain=end.per_domain.get(name),
            interval=end.interval.get(name),
            diagnostic=name in end.diagnostic,
        )
    return summary
