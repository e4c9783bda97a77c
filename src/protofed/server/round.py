"""The record of a round: what rounds.jsonl holds of it, one JSON object a line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from protofed.errors import UserError
from protofed.internal.schema import require

__all__ = ["Round"]


REFUSED = "refused: "
"""What the reason says of an upload that was rejected, and not lost."""


class Scalars(TypedDict):
    """How many numbers clients sent."""

    weights: int
    prototypes: int


class Described(TypedDict):
    """A set of prototypes in numbers; see prototypes/describe.py."""

    each: list[int]
    padded: float
    drift: float | None


@dataclass(frozen=True)
class Round:
    """Record one round of a run; `Result.history` holds them, and `on_round` is called with each.

    Args:
        round: its number, from 1.
        seconds: how long training, aggregation and evaluation took.
        loss: the mean over participants of their mean training loss.
        participants: the numbers of the clients whose uploads counted.
        bytes_up: bytes of all uploads.
        bytes_down: bytes of all broadcasts.
        scalars_up: how many numbers clients sent, of `weights` and of `prototypes`.
        prototypes: of each set that the server sends next: how many of each class, how padded, how far they moved.
        clusters: of each set that clients sent: how many prototypes of each class.
        losses: that of each participant; None in folders of the first versions.
        accuracy: percent by model/test/rule, or model/test/rule:metric, the mean over clients or domains; empty in a
            round without evaluation.
        per_client: the same for each client, but for those in `undefined`.
        per_domain: the same for each domain, where that is known.
        diagnostic: names of accuracies by a rule that the method itself does not have.
        interval: of accuracies over few-shot episodes, half the width of the 95 % confidence interval.
        left_out: the clients that did not make it to the end of the round, and why.
        suspected: the clients that a defence suspected; None without a defence.
        epsilon: what privacy has cost so far, math.inf without noise; None where nothing is promised.
        most_clusters: the most prototypes of a class at one client; None where clients look for one only.
        undefined: the clients that a metric is not defined for, by the score's name; see docs/metrics.md.
        joined: the clients that could take part from this round on, over a network; before, they were no members.
        removed: the clients that could take part no longer.
        tested: the clients that `per_client` is of; None for all.
        clock: virtual seconds from the beginning to the end of the round; None without --delays or --async.
        staleness: of each participant, how many aggregations its turn has missed; None without --async.
        backdoor: how often a backdoor opens, in percent; None without that attack.

    Example:
        >>> import protofed
        >>> tiny = {"model": "cnn", "train_size": 120, "clients": 2, "rounds": 2, "device": "cpu"}
        >>> last = protofed.run("fedavg", **tiny).history[-1]
        >>> last.round, last.participants, len(last.per_client["global/all/head"])
        (2, [0, 1], 2)
    """

    round: int  # from 1
    seconds: float
    loss: float
    participants: Sequence[int]
    bytes_up: int
    bytes_down: int
    scalars_up: Scalars
    prototypes: Mapping[str, Described]
    clusters: Mapping[str, list[int]]
    losses: Sequence[float] | None = None  # of each participant; absent in folders of the first versions
    accuracy: Mapping[str, float] = field(default_factory=dict)  # empty in a round without evaluation
    per_client: Mapping[str, list[float]] = field(default_factory=dict)
    per_domain: Mapping[str, dict[str, float]] = field(default_factory=dict)
    diagnostic: Sequence[str] = field(default_factory=list)
    interval: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)  # the reason, by client
    suspected: Sequence[int] | None = None  # None without a defence
    epsilon: float | None = None  # None without --privacy; math.inf without noise
    most_clusters: int | None = None  # prototypes of a class at one client; None where clients look for one only
    undefined: Mapping[str, list[int]] = field(default_factory=dict)  # clients without a metric, where there are some
    joined: Sequence[int] = field(default_factory=list)  # from this round on, over a network
    removed: Sequence[int] = field(default_factory=list)
    tested: Sequence[int] | None = None  # the clients that `per_client` is of, if not all
    clock: float | None = None  # None without --delays or --async
    staleness: Sequence[int] | None = None  # of each participant; None without --async
    backdoor: float | None = None  # None without --attack backdoor

    def without_evaluation(self) -> Round:
        """The same round as if it had not been evaluated."""
        nothing: dict[str, Any] = {
            name: {} for name in ("accuracy", "per_client", "per_domain", "interval", "undefined")
        }
        return replace(self, **nothing, diagnostic=[], tested=None, backdoor=None)

    @property
    def rejected(self) -> list[int]:
        """List the clients whose uploads the server's screening rejected; the others of `left_out` did not answer."""
        return [member for member, why in self.left_out.items() if REFUSED in why]

    def clients_of(self, score: str) -> list[int]:
        """Return the clients that `per_client` has a score of, in its order."""
        return defined_at(self.tested, self.undefined.get(score, ()), len(self.per_client[score]))

    def to_json(self) -> dict[str, Any]:
        """The object that rounds.jsonl holds: fields that say nothing are absent, ∞ is null."""
        values = {name: getattr(self, name) for name in KEYS}
        if self.losses is None:
            del values["losses"]
        if self.left_out:
            values["left_out"] = {str(member): why for member, why in self.left_out.items()}
        if self.suspected is not None:
            values["suspected"] = list(self.suspected)
        if self.epsilon is not None:
            values["epsilon"] = self.epsilon if math.isfinite(self.epsilon) else None
        values |= {name: list(who) for name in ("joined", "removed") if (who := getattr(self, name))}
        if self.tested is not None:
            values["tested"] = list(self.tested)
        if self.undefined:
            values["undefined"] = self.undefined
        if self.most_clusters is not None:
            values["most_clusters"] = self.most_clusters
        if self.clock is not None:
            values["clock"] = self.clock
        if self.staleness is not None:
            values["staleness"] = list(self.staleness)
        if self.backdoor is not None:
            values["backdoor"] = self.backdoor
        return values

    @classmethod
    def from_json(cls, values: Any, number: int) -> Round:
        """The round that `to_json` wrote as the `number`th of its file; keys of later versions are ignored.

        Raises:
            UserError: the object is not that of this round.
        """
        what = f"line {number}"
        if isinstance(values, Mapping) and isinstance(values.get("left_out"), Mapping):
            values = {**values, "left_out": _by_client(what, values["left_out"])}
        require(what, values, cls)
        names = [item.name for item in dataclasses.fields(cls)]
        found = cls(**{name: values[name] for name in names if name in values})
        if "epsilon" in values and found.epsilon is None:
            found = replace(found, epsilon=math.inf)
        if found.round != number:
            raise UserError(f"round in {what}", found.round, f"it must be {number}")
        if found.losses is not None and len(found.losses) != len(found.participants):
            raise UserError(f"participants in {what}", found.participants, "there must be a loss of each")
        if not (found.per_client.keys() <= found.accuracy.keys() and all(found.per_client.values())):
            raise UserError(f"per_client in {what}", list(found.per_client), "each must have an accuracy, and clients")
        if not found.undefined.keys() <= found.per_client.keys():
            raise UserError(f"undefined in {what}", list(found.undefined), "they must be scores of clients")
        return found


KEYS = (
    *("round", "seconds", "loss", "losses", "participants", "bytes_up", "bytes_down", "scalars_up"),
    *("prototypes", "clusters", "accuracy", "per_client", "per_domain", "diagnostic", "interval"),
)
"""Keys of every round, in the order of the file."""


def defined_at(tested: Sequence[int] | None, undefined: Collection[int], number: int) -> list[int]:
    """Which clients so many values are of: those that were tested, or all, but for some."""
    everyone = range(number + len(undefined)) if tested is None else tested
    return [member for member in everyone if member not in undefined]


def _by_client(what: str, reasons: Mapping[Any, Any]) -> dict[int, Any]:
    """JSON has only text for keys."""
    try:
        return {int(member): why for member, why in reasons.items()}
    except ValueError:
        raise UserError(f"left_out in {what}", list(reasons), "clients are numbers") from None
