"""What a run needs before its first round, made from an experiment; wrong input is found here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from protofed.data.build import dataset_of, drift_of, federation_of
from protofed.data.drift import Drift
from protofed.data.federation import Federation
from protofed.data.loading import check_name
from protofed.engines.base import Engine
from protofed.engines.client_group import group_clients
from protofed.engines.distributed import ALONE, Ranks
from protofed.engines.factory import make_engine
from protofed.engines.private import Privacy, privacy_of
from protofed.errors import UserError, missing_value
from protofed.evaluation.names import asked_metrics
from protofed.experiment import Experiment, flag_of, with_absolute_paths
from protofed.internal.plugins import is_code
from protofed.messages import Broadcast
from protofed.methods import build_method
from protofed.methods.base import Clock, Method
from protofed.models import ModelSpec
from protofed.models.encoder import FrozenEncoder, read_encoder
from protofed.runs.attackers_loss import attackers_loss
from protofed.runs.clients import Clients
from protofed.runs.process import process_settings
from protofed.server.asynchronous import check_method
from protofed.server.participation import participants
from protofed.server.pipeline import Attacking, Defending, Pipeline, Pooling, Releasing, Screening, Stage
from protofed.server.public_exchange import exchange_of
from protofed.trust.attacker import Attack
from protofed.trust.attacks import find_attack
from protofed.trust.defences import asks_for_lengths, find_defences
from protofed.trust.defended import Defence


@dataclass(frozen=True)
class Setup:
    """An experiment that was checked, and all that it names."""

    experiment: Experiment  # as it is played: engine, width, device and threads are settled, paths are absolute
    method: Method
    federation: Federation  # what clients hold in the first round
    engine: Engine
    engine_reason: str  # why this engine was taken
    device: torch.device
    ranks: Ranks  # the processes of the run
    encoder: FrozenEncoder | None = None
    drift: Drift | None = None
    attack: Attack | None = None
    defences: Sequence[Defence] = ()
    privacy: Privacy | None = None

    def pipeline(self, clients: Clients) -> Pipeline:
        """The server of the run: screening, defences, noise, and the method."""
        exact = self.privacy is None or not self.privacy.noisy_counts
        alone = self.privacy is not None and self.privacy.one_by_one
        asked = asks_for_lengths(self.experiment.defence) and not alone
        lengths = asked or not (alone or clients.here)  # strangers are compared even if nobody asks
        declared = self._declared(clients) if exact else None
        stages: list[Stage] = [Screening(declared, alone, lengths, lengths, clients.named)]
        stages += [Defending(defence, self.experiment.trusted_clients) for defence in self.defences]
        if self.privacy is not None:
            stages.append(Releasing(self.privacy.release))
        pooling = None if self.experiment.async_ is None else Pooling()
        if pooling is not None:
            stages.append(pooling)
        attacking = (
            None if self.attack is None else Attacking(self.attack, loss=attackers_loss(self.engine, self.attack.who))
        )
        guarded = lengths or bool(self.defences)  # who believes everybody sees a loss that is not finite
        sound = self.engine.sound if guarded else None
        return Pipeline(self.method, stages, attacking, pooling, self.engine.server, sound)

    def _declared(self, clients: Clients) -> Callable[[Clock], list[int]]:
        """What clients say they train on, attackers what they like."""
        attack = self.attack
        if attack is None:
            return clients.declared

        def declared(clock: Clock) -> list[int]:
            pairs = zip(clock.who, clients.declared(clock), strict=True)
            return [attack.declares(samples) if member in attack.who else samples for member, samples in pairs]

        return declared


def prepare(
    experiment: Experiment,
    method: Method | None = None,
    federation: Federation | None = None,
    models: Sequence[ModelSpec] | None = None,
    ranks: Ranks = ALONE,
) -> Setup:
    """Check an experiment and build what it names; nothing is written.

    Args:
        experiment: what is to be run.
        method: in place of the experiment's, with its parameters.
        federation: in place of the experiment's data and split.
        models: in place of the experiment's, dealt to clients in contiguous blocks.
        ranks: this process among those that share the run.

    Returns:
        What a run needs.

    Raises:
        UserError: the experiment cannot be run here; the error names the option.

    Example:
        >>> setup = prepare(Experiment(method="fedavg", clients=3, device="cpu"))
        >>> setup.method.name, setup.federation.total
        ('fedavg', 3)
    """
    with process_settings(experiment):
        method = method or build_method(experiment.method, experiment.params)
        defences = find_defences(experiment.defence)
        device = _device(experiment.device, ranks)
        if federation is not None and experiment.encoder is not None:
            raise UserError("encoder", experiment.encoder, "a federation of your own may hold features instead")
        encoder = _encoder(experiment, device)
        named = federation is None
        drift = drift_of(experiment, encoder) if named else None
        federation = federation or (drift.at(0) if drift else federation_of(experiment, encoder))
        _check_patience(experiment, federation, strictly=named or experiment.val_fraction == 0)
        asked_metrics(experiment, federation.classes)  # refuses what is none
        total = federation.total
        trusted = _trusted(experiment, total)
        attack = find_attack(experiment.attack, experiment.attackers, total, experiment.seed, trusted)
        if attack is not None:
            if drift is not None:
                raise UserError("--attack", attack.name, "what attackers hold does not drift")
            federation = attack.federation(federation)
        groups = group_clients(experiment, method, federation, models or experiment.model.split(","), device)
        public = _public_images(experiment, method, encoder)
        engine, reason = make_engine(experiment, method, federation, groups, device, public)
        engine.ranks = ranks
        _check_turns(experiment, method, engine)
        privacy = privacy_of(experiment, engine, encoder, lambda number: participants(experiment, total, number))
        settled = _resolved(experiment, engine)
    return Setup(settled, method, federation, engine, reason, device, ranks, encoder, drift, attack, defences, privacy)


def _trusted(experiment: Experiment, total: int) -> Sequence[int]:
    """The clients that are trusted, if they are some of so many."""
    if any(member >= total for member in experiment.trusted_clients):
        raise UserError("--trusted", experiment.trusted, f"there are {total} clients, numbered from 0")
    return experiment.trusted_clients


def _check_turns(experiment: Experiment, method: Method, engine: Engine) -> None:
    """Refuse delays of more clients than there are, and asynchronous rounds that cannot be."""
    total = engine.federation.total
    if experiment.delays is not None and experiment.delays.count(",") >= total:
        raise UserError("--delays", experiment.delays, f"there are {total} clients to assign them to")
    if experiment.async_ is not None:
        if experiment.async_ > total:
            raise UserError("--async", experiment.async_, f"there are {total} clients")
        nobody = engine.round([], Broadcast(), Clock(0, experiment.rounds))
        check_method(method, nobody.uploads)


def _check_patience(experiment: Experiment, federation: Federation, strictly: bool) -> None:
    """Whoever waits for validation accuracy needs some; what clients that are elsewhere hold out is not known here."""
    if experiment.patience is not None and strictly and any(client.validation is None for client in federation.clients):
        why = "it needs validation data of every client: --val-fraction above 0, or `validation` in a federation"
        raise UserError("--patience", experiment.patience, why)


def _public_images(experiment: Experiment, method: Method, encoder: FrozenEncoder | None) -> torch.Tensor | None:
    """The public, unlabelled images of a method that needs some."""
    if experiment.public is not None:
        check_name(experiment.public, "--public")  # of a comparison whose other methods need none, too
    exchange = exchange_of(method)
    if exchange is None and not method.uses_public:
        return None
    if experiment.public is None:
        raise missing_value("--public", f"{method.name} needs a public dataset, such as digit-domains")
    found = dataset_of(experiment, experiment.public, None, encoder)
    images = found.train.x if exchange is None else found.train.x[: exchange.public_images]
    return images if encoder is None else encoder.features(images, found.preparation)


def _encoder(experiment: Experiment, device: torch.device) -> FrozenEncoder | None:
    """The frozen encoder of an experiment, which alone decides how images or text are seen, unless it is code."""
    if experiment.encoder is None:
        return None
    own = is_code(experiment.encoder)
    if own and experiment.normalise == "client":
        why = "the encoder sees all samples in one way, whoever's they are"
        raise UserError("--normalise", experiment.normalise, why)
    decided = () if own else ("image_size", "normalise", "tokenizer", "vocabulary", "length")
    for name in ("augment", *decided):
        if getattr(experiment, name) != getattr(Experiment, name):
            why = "the encoder knows what it sees, and sees every sample once"
            raise UserError(flag_of(name), getattr(experiment, name), why)
    return read_encoder(experiment.encoder, device)


def _resolved(experiment: Experiment, engine: Engine) -> Experiment:
    """The experiment as it is run, so that it runs again the same way, and from any folder."""
    settled: dict[str, Any] = {"engine": engine.name, "width": engine.width, "device": str(engine.device)}
    settled |= {"threads": torch.get_num_threads(), "clients": experiment.clients or engine.federation.total}
    return Experiment.from_mapping(dataclasses.asdict(with_absolute_paths(experiment)) | settled)


def _device(name: str, ranks: Ranks) -> torch.device:
    """The device of a name; each of several processes has a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and ranks.count > 1:
        name = f"cuda:{ranks.local}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError("--device", name, f"this machine cannot use it: {str(error).splitlines()[0]}") from None
    if device.type == "cuda" and ranks.count > 1:
        torch.cuda.set_device(device)  # or each process would also take memory of the first GPU
    return device
