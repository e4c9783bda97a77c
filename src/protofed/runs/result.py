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

__all__ = ["Accuracy", "Result"]


@dataclass(frozen=True)
class Accuracy:
    """Record one model/test/rule accuracy of a run, in percent.

    Args:
        last: at the end of the run: the mean over domains where it is known for each, otherwise over clients.
        last5: the mean of the last five evaluations.
        best: the largest of all evaluations.
        best_round: the round of the best evaluation, from 1.
        per_client: at the end, one for each client.
        per_domain: at the end, by the name of the domain; None for data of one domain.
        interval: of `last` over few-shot episodes, half the width of the 95 % confidence interval; otherwise None.
        diagnostic: whether it is by class means of the client's own data, a rule that the method itself does not have.

    Example:
        >>> from protofed.runs.result import Accuracy
        >>> accuracy = Accuracy(last=91.0, last5=90.4, best=92.0, best_round=7, per_client=[90.0, 92.0])
        >>> min(accuracy.per_client)
        90.0
    """

    last: float
    last5: float
    best: float
    best_round: int
    per_client: list[float]
    per_domain: dict[str, float] | None = None
    interval: float | None = None
    diagnostic: bool = False


@dataclass(frozen=True)
class Result:
    """Record what came out of a finished run.

    Args:
        method: the method's name.
        dataset: the dataset's name; `custom` for your own federation.
        split: how the data was divided.
        clients: the number of clients.
        rounds: how many rounds were played.
        seed: the seed of the run.
        engine: how clients were trained.
        device: where they were trained.
        model: the model's name.
        params: the method's parameters, defaults included.
        model_parameters: trainable numbers, one entry for each architecture.
        client_memory: bytes that a client has to keep between rounds.
        score: the accuracy that the method's paper reports, a key of `accuracy`.
        bytes_up: bytes from clients to the server, over all rounds and clients.
        bytes_down: bytes from the server to clients.
        seconds: how long its rounds took.
        stopped: what ended it: `rounds`, `time budget` or `privacy budget`.
        accuracy: accuracies by model/test/rule.
        most_clusters: the most prototypes of a class that a client has sent; None where clients look for one only.
        drift: accuracies before, at and after what clients hold changed; None without drift.
        drawn_anew: tensors that a file of initial weights did not give; None without one.
        encoder: the card of the frozen encoder whose features stood for images; None without one.
        privacy: `client` or `example`, where something is promised.
        epsilon: what that has cost; None for ∞.
        delta: the chance with which the promise may not hold.
        folder: where the run is on disk; not part of result.json.

    Example:
        >>> from pathlib import Path
        >>> from protofed.runs.result import Result
        >>> result = Result.read(Path("digits"))
        >>> result.method, result.score, result.stopped
        ('fedproto', 'own/own/nearest', 'rounds')
        >>> len(result.accuracy[result.score].per_client)
        2
    """

    method: str
    dataset: str
    split: str
    clients: int
    rounds: int
    seed: int
    engine: str
    device: str
    model: str
    params: dict[str, Any]
    model_parameters: list[int]
    client_memory: int
    score: str
    bytes_up: int
    bytes_down: int
    seconds: float
    stopped: str
    accuracy: dict[str, Accuracy]
    most_clusters: int | None = None
    drift: dict[str, dict[str, float]] | None = None
    drawn_anew: list[str] | None = None
    encoder: dict[str, Any] | None = None
    privacy: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    folder: str | None = None

    @property
    def guarantee(self) -> str | None:
        """What the run promises, as it is printed beside every result; None where it promises nothing."""
        if self.privacy is None or self.delta is None:
            return None
        return guarantee(self.privacy, self.epsilon, self.delta)

    def notes(self) -> list[str]:
        """List what a reader of the result should know before comparing it."""
        if self.most_clusters != 1:
            return []
        return [f"the clustering of {self.method} found one prototype per class at every client in every round"]

    def to_json(self) -> str:
        """Return the text of result.json."""
        values = dataclasses.asdict(self)
        del values["folder"]
        if self.privacy is None:
            del values["epsilon"]
        for name in ("most_clusters", "drift", "drawn_anew", "encoder", "privacy", "delta"):
            if values[name] is None:
                del values[name]
        for entry in values["accuracy"].values():
            for name in ("per_domain", "interval"):
                if entry[name] is None:
                    del entry[name]
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read the result in a run folder.

        Args:
            path: the folder.

        Returns:
            The result, with its folder.

        Raises:
            UserError: the folder has no result.json, or one that is not a result.
        """
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
