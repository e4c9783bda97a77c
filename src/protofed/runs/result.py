"""What came out of a run, typed; `result.json` is its JSON form."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from protofed.errors import UserError, listed
from protofed.evaluation.names import best_of, split_name
from protofed.internal.frames import data_frame
from protofed.internal.higher import ask
from protofed.internal.schema import made, read_json
from protofed.runs.folder import RunFolder
from protofed.server.round import Round

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from torch import nn

__all__ = ["Accuracy", "Result"]

FURTHER = ("prototypes_per_class", "rejected_uploads", "suspected_uploads")
"""Numbers of a run that only some have: fields of a result, and columns of a study where one of its runs has them."""
OF_ROUND = ("prototypes_per_class", "rejected", "suspected")
"""What a data frame says of a round, and of a client's part in it, beside accuracies."""


@dataclass(frozen=True)
class Accuracy:
    """Record one accuracy of a run, model/test/rule, or another metric, model/test/rule:metric, in percent.

    Args:
        last: at the end of the run: the mean over domains where it is known for each, otherwise over clients.
        last5: the mean of the last five evaluations.
        best: the largest of all evaluations; the smallest of a calibration error.
        best_round: the round of the best evaluation, from 1.
        per_client: at the end, one for each client but those in `undefined`; of `worst` and `worst10` the accuracies
            that they are of.
        per_domain: at the end, by the name of the domain; None for data of one domain.
        interval: of `last` over few-shot episodes, half the width of the 95 % confidence interval; otherwise None.
        diagnostic: whether it is by class means of the client's own data, a rule that the method itself does not have.
        undefined: the clients that a metric is not defined for at the end; None where it is for all.

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
    undefined: list[int] | None = None


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
        stopped: what ended it: `rounds`, `time budget`, `privacy budget`, `patience` or `callback`.
        accuracy: accuracies by model/test/rule, and other metrics by model/test/rule:metric.
        most_clusters: the most prototypes of a class that a client has sent; None where clients look for one only.
        prototypes_per_class: how many of a class the server sends in the end, the mean over classes that have some;
            None where it sends none.
        rejected_uploads: uploads that the server's screening rejected, over all rounds; None where none was.
        suspected_uploads: uploads that a defence suspected, over all rounds; None without a defence.
        drift: accuracies before, at and after what clients hold changed; None without drift.
        drawn_anew: tensors that a file of initial weights did not give; None without one.
        stays: weights that stay at the clients, so that there is no averaged model though the method's score is of one;
            None where there is one, or need not be.
        encoder: the card of the frozen encoder whose features stood for images; None without one.
        preparation: what happens to samples before models see them: `kind`, `mean`, `std`, `tokens`, `masked`, once for
            all clients, or for those in `clients`; None where clients are elsewhere.
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
        >>> [(played.round, len(played.participants)) for played in result.history]
        [(1, 2)]
        >>> result.models[0].feature_size, result.predictor().card.whose
        (50, 'client 0')
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
    prototypes_per_class: float | None = None
    rejected_uploads: int | None = None
    suspected_uploads: int | None = None
    drift: dict[str, dict[str, float]] | None = None
    drawn_anew: list[str] | None = None
    stays: list[str] | None = None
    encoder: dict[str, Any] | None = None
    preparation: list[dict[str, Any]] | None = None
    privacy: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    folder: str | None = None

    def __repr__(self) -> str:
        return (
            f"Result({self.method} on {self.dataset}, {self.split}, {self.clients} clients, seed {self.seed}: "
            f"{self.score} {self.accuracy[self.score].last:.2f} % after {self.rounds} rounds)"
        )

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: not the run itself."""
        return {name: value for name, value in vars(self).items() if name not in ("_run", "_held")}

    @cached_property
    def history(self) -> Sequence[Round]:
        """The rounds that were played, first to last."""
        return () if self.folder is None else tuple(RunFolder.open(Path(self.folder)).played())

    def with_history(self, history: Sequence[Round]) -> Self:
        """Remember the rounds that were played; those of a folder are read from there when they are asked for."""
        vars(self)["history"] = tuple(history)
        return self

    def with_run(self, run: object, held: Sequence[object]) -> Self:
        """Remember how a run without a folder ended, for its models, and hold a user's objects that it is made of."""
        vars(self).update(_run=run, _held=tuple(held))
        return self

    @property
    def models(self) -> Mapping[int | str, nn.Module]:
        """The trained models, on the CPU: each client's own by number, and the averaged one, if any, as `global`."""
        found: Mapping[int | str, nn.Module] = ask("models_of_result", self, vars(self).get("_run"))
        return found

    def predictor(self, client: int | None = None) -> Any:
        """Return the model that `protofed export` makes of the run, as `protofed.load` returns it.

        Args:
            client: whose own model; unless given, the averaged one or, without it, that of the client with most data.
        """
        return ask("predictor_of_result", self, vars(self).get("_run"), client)

    def frame(self) -> DataFrame:
        """Return accuracies as a pandas data frame: a row for each evaluated round, client and score.

        Each row also says how many prototypes of a class the server sent after the round, if it sends some, and whether
        the client's upload was rejected, or suspected by a defence.
        """
        return data_frame(self.rows(), ["round", "client", "score", "accuracy", *OF_ROUND])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every client's accuracies in every evaluated round, as `frame` has them."""
        for played in self.history:
            each, rejected, suspected = prototypes_per_class(played), played.rejected, played.suspected or ()
            for score, values in played.per_client.items():
                for client, value in zip(played.clients_of(score), values, strict=True):
                    said = {"round": played.round, "client": client, "score": score, "accuracy": value}
                    told = (each, client in rejected, client in suspected)
                    yield said | dict(zip(OF_ROUND, told, strict=True))

    def plot(self) -> Figure:
        """Draw accuracies and the training loss over rounds."""
        figure: Figure = ask("figure_of", self)
        return figure

    def _repr_html_(self) -> str:
        return str(ask("html_of", self))

    @property
    def guarantee(self) -> str | None:
        """What the run promises, as it is printed beside every result; None where it promises nothing."""
        if self.privacy is None or self.delta is None:
            return None
        return guarantee(self.privacy, self.epsilon, self.delta)

    def notes(self) -> list[str]:
        """List what a reader of the result should know before comparing it."""
        notes = []
        if self.most_clusters == 1:
            found = "found one prototype per class at every client in every round"
            notes.append(f"the clustering of {self.method} {found}")
        if self.most_clusters is not None and self.prototypes_per_class == 1:  # whoever looks for several
            notes.append(f"the server of {self.method} ended with one prototype per class")
        if self.stays is not None:
            what = f"{listed(self.stays)} {'stays' if len(self.stays) == 1 else 'stay'} at the clients (does_without)"
            notes.append(f"{self.method} has no global/… accuracies: {what}")
        return notes

    def to_json(self) -> str:
        """Return the text of result.json."""
        values = dataclasses.asdict(self)
        del values["folder"]
        if self.privacy is None:
            del values["epsilon"]
        optional = ("drift", "drawn_anew", "stays", "encoder", "preparation", "privacy", "delta")
        for name in ("most_clusters", *FURTHER, *optional):
            if values[name] is None:
                del values[name]
        for entry in values["accuracy"].values():
            for name in ("per_domain", "interval", "undefined"):
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
            raise UserError("FILE", str(file), "it must name its accuracies")
        accuracy = {name: made(f"{name} in {file}", Accuracy, entry) for name, entry in found.items()}
        result = made(str(file), cls, values, accuracy=accuracy, folder=str(path))
        if result.rounds < 1 or not all(entry.per_client for entry in accuracy.values()):
            raise UserError("FILE", str(file), "it must have rounds, and clients with each accuracy")
        return result


COMMON = ("own/own/head", "global/all/head")
"""What nearly every method has."""


def common_score(methods: Sequence[tuple[str, Collection[str]]]) -> str:
    """The accuracy by which methods are compared, so that one axis never shows two.

    Of each method there are the accuracy that its paper reports and those that it has by rules of its own, without
    diagnostics. It is the first of the papers' that all have, else of COMMON, else of any; the first paper's if there
    is none. A method without any, whose runs failed, is not asked.
    """
    known = [(score, having) for score, having in methods if having]
    shared = set.intersection(*(set(having) for _, having in known)) if known else set()
    papers = [score for score, _ in known]
    return next((name for name in (*papers, *COMMON, *sorted(shared)) if name in shared), (*papers, *COMMON)[0])


def guarantee(privacy: str, epsilon: float | None, delta: float) -> str:
    """What differential privacy promises; without an ε, nothing."""
    return f"ε = {'∞' if epsilon is None else f'{epsilon:.2f}'}, δ = {delta:g}, {privacy}-level"


def prototypes_per_class(played: Round) -> float | None:
    """How many prototypes of a class the server sends after a round: the mean over classes that have some."""
    each = [sum(numbers) for numbers in zip(*(found["each"] for found in played.prototypes.values()), strict=False)]
    known = [number for number in each if number]
    return statistics.fmean(known) if known else None


def further(history: Sequence[Round]) -> dict[str, Any]:
    """The numbers that only some runs have, by name."""
    suspected = [len(played.suspected) for played in history if played.suspected is not None]
    found = (
        prototypes_per_class(history[-1]) if history else None,
        sum(len(played.rejected) for played in history) or None,
        sum(suspected) if suspected else None,
    )
    return dict(zip(FURTHER, found, strict=True))


def summarise(history: Sequence[Round]) -> dict[str, Accuracy]:
    """Accuracies and metrics over those of a run's rounds that were evaluated."""
    tested = [played for played in history if played.accuracy]
    end = tested[-1]
    summary = {}
    of_clients = [name for name in end.accuracy if name not in end.per_client and split_name(name)[1]]
    for name in (*end.per_client, *of_clients):
        of = split_name(name)[0] if name in of_clients else name  # a worst client is one of those
        rounds = [played for played in tested if name in played.accuracy]
        values = [played.accuracy[name] for played in rounds]
        best = values.index(best_of(name)(values))
        recent = values[-5:]
        summary[name] = Accuracy(
            last=values[-1],
            last5=sum(recent) / len(recent),
            best=values[best],
            best_round=rounds[best].round,
            per_client=end.per_client[of],
            per_domain=end.per_domain.get(name),
            interval=end.interval.get(name),
            diagnostic=of in end.diagnostic,
            undefined=end.undefined.get(name),
        )
    return summary
