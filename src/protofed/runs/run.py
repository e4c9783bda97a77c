"""One experiment from beginning to end: experiment → engine → method → evaluation → run folder."""

from __future__ import annotations

import dataclasses
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from protofed.data import Dataset, Federation, Split, federate, join, load
from protofed.data.augmentation import IMAGENET
from protofed.data.drift import Drift, gradual, sudden
from protofed.engines.base import Engine
from protofed.engines.client_group import Group, group_clients
from protofed.engines.distributed import ALONE, Ranks
from protofed.engines.factory import make_engine
from protofed.errors import LostError, UserError
from protofed.evaluation.accuracy import Evaluation, Evaluator
from protofed.evaluation.snapshot import look
from protofed.experiment import Experiment, anchored
from protofed.internal.profiling import profiled_round, section
from protofed.messages import Broadcast, Upload
from protofed.methods import build_method, parameters
from protofed.methods.base import Clock, Method, PublicExchange
from protofed.models import ModelSpec, parameter_count
from protofed.models.encoder import Encoder
from protofed.prototypes.describe import counted, describe
from protofed.randomness import generator, key
from protofed.runs.folder import RunFolder, write_atomically
from protofed.runs.progress import Progress
from protofed.runs.result import Result, summarise
from protofed.trust.attacks import Backdoor, Memory, find_attack, obeyed
from protofed.trust.defences import find_defences
from protofed.trust.dp_mechanisms import privacy_of
from protofed.trust.screening import refusals, without

ATTACK = "attack/"
"""How names of what attackers remember begin in a checkpoint."""


class Believed(NamedTuple):
    """The uploads that the method's server gets, of whom, why others were refused, and who was found out."""

    uploads: Upload
    who: tuple[int, ...]
    refused: dict[int, str]
    suspected: list[int]


class Interrupted(Exception):
    """Ctrl-C: the run stopped after a whole round."""


class Run:
    """A federation in training."""

    def __init__(
        self,
        experiment: Experiment,
        method: Method | None = None,
        federation: Federation | None = None,
        models: Sequence[ModelSpec] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Prepare everything that can fail on wrong input; nothing is written yet. `ranks` are the run's processes."""
        self.ranks = ranks
        _settle(experiment)
        self.method = method or build_method(experiment.method, experiment.params)
        self.defences = find_defences(experiment.defence)
        self.device = _device(experiment.device, ranks)
        if federation is not None and experiment.encoder is not None:
            raise UserError("encoder", experiment.encoder, "a federation of your own may hold features instead")
        self.encoder = encoder_of(experiment, self.device)
        self.drift = drift_of(experiment, self.encoder) if federation is None else None
        self.federation = federation or (self.drift.at(0) if self.drift else federation_of(experiment, self.encoder))
        self.attack = find_attack(experiment.attack, experiment.attackers, self.federation.total, experiment.seed)
        self.memory: Memory = {}
        if self.attack is not None:
            if self.drift is not None:
                raise UserError("--attack", self.attack.name, "what attackers hold does not drift")
            self.federation = self.attack.federation(self.federation)
        groups = group_clients(
            experiment, self.method, self.federation, models or experiment.model.split(","), self.device
        )
        public = public_images(experiment, self.method, self.encoder)
        self.engine, self.engine_reason = make_engine(
            experiment, self.method, self.federation, groups, self.device, public
        )
        self.engine.ranks = ranks
        self.experiment = _resolved(experiment, self.engine)
        total = self.federation.total
        self.privacy = privacy_of(
            experiment, self.engine, self.encoder, lambda number: participants(experiment, total, number)
        )
        self.evaluator: Callable[[Broadcast], Evaluation] = Evaluator(self.engine)
        self.broadcast = self.engine.initial_broadcast()
        self.history: list[dict[str, Any]] = []

    def play(self, folder: RunFolder | None, progress: Progress) -> Result:
        """Play the remaining rounds."""
        progress.begin(self)
        resumable = folder is not None or self.ranks.number > 0
        with _interruptible(resumable) as interrupted, nullcontext() if folder is None else folder:
            if folder is not None:
                folder.keep_rounds(self.history)
            stop = False
            while not (stop or self.over()):
                with profiled_round():
                    line = self.play_round()
                    done, stop = len(self.history), any(self.ranks.exchange(interrupted()))
                    if stop and not line["accuracy"]:
                        self.evaluate(line)
                    if folder is not None:
                        folder.append_round(line)
                        if stop or self.over() or done % self.experiment.checkpoint_every == 0:
                            with section("checkpoint"):
                                folder.checkpoint.save(self._remembered(), self.engine.groups, done)
                progress.advance(self, line)
            if folder is not None:
                folder.checkpoint.wait()
                if self.over():
                    if self.engine.holds_data:
                        look(self).write(folder.look)
                    write_atomically(folder.result, self.result(folder).to_json())
            if stop or interrupted():
                raise Interrupted(f"stopped after round {len(self.history)} of {self.experiment.rounds}")
        return self.result(folder)

    def play_round(self) -> dict[str, Any]:
        """One round: local training, aggregation and, where it is due, evaluation."""
        began = time.perf_counter()
        if self.drift:
            self._drift(self.drift.at(len(self.history)))
        clients = self.federation.total
        who = participants(self.experiment, clients, len(self.history))
        clock = Clock(len(self.history), self.experiment.rounds, tuple(who), clients, self.experiment.seed)
        sent = self.broadcast
        uploads, losses = self.engine.round(who, sent, clock)
        left_out = dict(self.engine.left_out)
        clock = clock._replace(who=tuple(member for member in who if member not in left_out))
        with section("aggregation"):
            if self.attack is not None:
                uploads = self.attack.send(uploads, sent, clock, self.memory)
            bytes_up = sum(uploads.sizes()) if who else 0
            believed = self._believed(uploads, sent, clock)
            left_out |= believed.refused
            losses = [loss for member, loss in zip(clock.who, losses, strict=True) if member not in believed.refused]
            clock = clock._replace(who=believed.who)
            self.broadcast = self.method.aggregate(believed.uploads, sent, clock)
        who = list(clock.who)
        messages = [self.method.send(sent, member) for member in who]
        sizes = {id(message): message.size() for message in {id(message): message for message in messages}.values()}
        line = {
            "round": clock.round + 1,
            "seconds": self._since(began),
            "loss": statistics.fmean(losses) if losses else self.history[-1]["loss"] if self.history else 0.0,
            "losses": losses,
            "participants": who,
            "bytes_up": bytes_up + self.engine.exchanged[0],
            "bytes_down": sum(sizes[id(message)] for message in messages) + self.engine.exchanged[1],
            "scalars_up": uploads.scalars(),
            "prototypes": describe(self.broadcast.prototypes, sent.prototypes),
            "clusters": counted(uploads.prototypes),
            **_not_evaluated(),
        }
        if missing := {**self.engine.unbelieved, **left_out}:
            line["left_out"] = missing
        if self.defences:
            line["suspected"] = believed.suspected
        if self.privacy is not None:
            line["epsilon"] = self.privacy.spent(clock.round + 1)
        self.history.append(line)
        if self._due(line) or self.over():
            self.evaluate(line)
        return line

    def _believed(self, uploads: Upload, sent: Broadcast, clock: Clock) -> Believed:
        """What is left of a round's uploads behind the door, the defences and the noise."""
        uploads, refused = self._at_the_door(uploads, sent, clock)
        who = tuple(member for member in clock.who if member not in refused)
        suspected: set[int] = set()
        for defend in self.defences:
            uploads, found = defend(uploads, sent)
            suspected |= {who[row] for row in found}
        if self.privacy is not None:
            uploads = self.privacy.release(uploads, sent, clock._replace(who=who))
        return Believed(uploads, who, refused, sorted(suspected))

    def _at_the_door(self, uploads: Upload, sent: Broadcast, clock: Clock) -> tuple[Upload, dict[int, str]]:
        """The uploads that may be believed, and why the others may not, by client."""
        declared = None
        if self.experiment.privacy != "example":  # noisy counts may be above what there is
            declared = self.engine.declared(clock.who)
        alone = self.experiment.privacy == "client"  # one client must not decide whether another counts
        found = refusals(uploads, sent, declared, alone)
        if not found:
            return uploads, {}
        if len(found) == len(clock.who) and not alone:
            reasons = "; ".join(dict.fromkeys(found.values()))
            raise LostError(f"every upload of round {clock.round + 1} was refused: {reasons}")
        return without(uploads, found), {clock.who[row]: f"refused: {reason}" for row, reason in found.items()}

    def _drift(self, federation: Federation) -> None:
        """What clients hold from now on."""
        if federation is not self.federation:
            self.federation = federation
            self.engine.move(federation)
            self.evaluator = Evaluator(self.engine)

    def evaluate(self, line: dict[str, Any]) -> None:
        """Say in a round's line how good the models are now."""
        began = time.perf_counter()
        up, down = self.engine.exchanged
        with section("evaluation"):
            evaluation = self.evaluator(self.broadcast)
        line["bytes_up"] += self.engine.exchanged[0] - up
        line["bytes_down"] += self.engine.exchanged[1] - down
        if evaluation.tested is not None:
            line["tested"] = evaluation.tested
        line["accuracy"] = evaluation.means(without=self.attack.who if self.attack else ())
        line["per_client"] = evaluation.per_client
        line["per_domain"] = evaluation.per_domain
        line["diagnostic"] = evaluation.diagnostic
        line["interval"] = evaluation.interval
        if isinstance(self.attack, Backdoor):
            line["backdoor"] = obeyed(self.engine, self.broadcast, self.attack)
        line["seconds"] += self._since(began)

    def _since(self, began: float) -> float:
        """Seconds, of the slowest process; all must agree when the time is used up."""
        return max(self.ranks.exchange(time.perf_counter() - began))

    def _due(self, line: Mapping[str, Any]) -> bool:
        landmark = self.drift is not None and line["round"] - 1 in self.drift.landmarks.values()
        return landmark or bool(line["round"] % self.experiment.eval_every == 0)

    def over(self) -> bool:
        """Whether all rounds are played, or the time or the privacy budget is used up."""
        budget = self.experiment.time_budget
        spent = sum(line["seconds"] for line in self.history)
        late = budget is not None and spent >= budget
        return len(self.history) >= self.experiment.rounds or late or self._exhausted()

    def _exhausted(self) -> bool:
        """Whether another round would exceed the privacy budget."""
        return self.privacy is not None and self.privacy.exhausted(len(self.history) + 1)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the next round depends on, for comparing runs: the clients' models, and the server's part."""
        state = {f"server/{name}": tensor for name, tensor in self.broadcast.flat().items()}
        state |= {f"kept/{name}": tensor for name, tensor in self.broadcast.kept.items()}
        for number, group in enumerate(self.engine.groups):
            own = group.own.take(range(len(group.members)))
            state |= {f"own/{number}/{name}": tensor for name, tensor in own.items()}
            state[f"taken/{number}"] = group.taken.clone()
        return state

    def restore(self, folder: RunFolder) -> None:
        """Go back to a folder's last checkpoint."""
        found = folder.checkpoint.load(self.engine.groups)
        self.history = self.ranks.first(lambda: folder.read_rounds(found[1] if found else 0))
        for line in self.history[:-1] if self.over() else self.history:
            if not self._due(line):  # it was evaluated because the run stopped there
                line.update(_not_evaluated())
                for name in ("tested", "backdoor"):
                    line.pop(name, None)
        if found:
            kept = found[0].kept
            self.memory = {name.removeprefix(ATTACK): kept[name] for name in kept if name.startswith(ATTACK)}
            others = {name: tensor for name, tensor in kept.items() if not name.startswith(ATTACK)}
            self.broadcast = dataclasses.replace(found[0], kept=others)

    def _remembered(self) -> Broadcast:
        """The broadcast with all that is kept for later rounds."""
        memory = {ATTACK + name: tensor for name, tensor in self.memory.items()}
        return dataclasses.replace(self.broadcast, kept={**self.broadcast.kept, **memory})

    def client_memory(self, group: Group) -> int:
        """Bytes a client of a group has to keep between rounds: what it does not receive, or its whole last model."""
        return sum(
            value.nbytes
            for name, value in group.own.initial.items()
            if self.method.keeps_previous or not self.method.shares(name)
        )

    def _drifted(self) -> dict[str, dict[str, float]] | None:
        """The accuracies before, at and after a drift, as far as the run has come."""
        if self.drift is None:
            return None
        marks = self.drift.landmarks.items()
        return {name: self.history[round]["accuracy"] for name, round in marks if round < len(self.history)}

    def _drawn_anew(self) -> list[str]:
        """What of the models was not in the file they started from."""
        return list(dict.fromkeys(name for group in self.engine.groups for name in group.drawn_anew))

    def _stopped(self) -> str:
        """Why there are no more rounds."""
        if len(self.history) >= self.experiment.rounds:
            return "rounds"
        return "privacy budget" if self._exhausted() else "time budget"

    def result(self, folder: RunFolder | None) -> Result:
        """What came out so far."""
        experiment = self.experiment
        accuracy = summarise(self.history)
        return Result(
            method=self.method.name,
            dataset=experiment.dataset,
            split=experiment.split,
            clients=self.federation.total,
            rounds=len(self.history),
            seed=experiment.seed,
            engine=self.engine.name,
            device=str(self.device),
            model=experiment.model,
            params={name: getattr(self.method, name) for name in parameters(type(self.method))},
            model_parameters=[parameter_count(group.module) for group in self.engine.groups],
            client_memory=max(self.client_memory(group) for group in self.engine.groups),
            score=self.method.score if self.method.score in accuracy else "own/own/head",
            bytes_up=sum(line["bytes_up"] for line in self.history),
            bytes_down=sum(line["bytes_down"] for line in self.history),
            seconds=sum(line["seconds"] for line in self.history),
            stopped=self._stopped(),
            accuracy=accuracy,
            drift=self._drifted(),
            drawn_anew=None if experiment.start is None else self._drawn_anew(),
            encoder=None if self.encoder is None else dataclasses.asdict(self.encoder.card),
            privacy=None if self.privacy is None else experiment.privacy,
            epsilon=None if self.privacy is None else self.privacy.spent(len(self.history)),
            delta=None if self.privacy is None else experiment.delta,
            folder=None if folder is None else str(folder.path),
        )


def participants(experiment: Experiment, clients: int, number_of_round: int) -> list[int]:
    """Who takes part in a round, in client order."""
    draws = generator(experiment.seed, "participation", number_of_round)
    if experiment.privacy == "client":  # each by itself, perhaps nobody: so the accounting takes it to be
        return torch.rand(clients, generator=draws).lt(experiment.participation).nonzero().squeeze(1).tolist()
    number = max(1, round(experiment.participation * clients))
    return sorted(torch.randperm(clients, generator=draws)[:number].tolist())


def public_images(experiment: Experiment, method: Method, encoder: Encoder | None) -> torch.Tensor | None:
    """The public, unlabelled images of a method that needs some."""
    if not isinstance(method, PublicExchange):
        return None
    if experiment.public is None:
        raise UserError("--public", None, f"{method.name} needs a public dataset, such as digit-domains")
    images = _load(experiment, experiment.public, None, encoder).train.images[: method.public_images]
    return images if encoder is None else encoder.features(images)


def encoder_of(experiment: Experiment, device: torch.device) -> Encoder | None:
    """The frozen encoder of an experiment, which alone decides how images are seen."""
    if experiment.encoder is None:
        return None
    for name in ("image_size", "normalise", "augment"):
        if getattr(experiment, name) != getattr(Experiment, name):
            why = "the encoder knows what it sees, and sees every image once"
            raise UserError(f"--{name.replace('_', '-')}", getattr(experiment, name), why)
    return Encoder.read(Path(experiment.encoder), device)


def federation_of(experiment: Experiment, encoder: Encoder | None = None) -> Federation:
    """The clients of an experiment; datasets joined with + get an equal number of clients each."""
    names = experiment.dataset.split("+")
    split = Split(
        name=experiment.split,
        alpha=experiment.alpha,
        min_size=experiment.min_size,
        balance=experiment.balance,
        ways=experiment.ways,
        half_width=experiment.half_width,
        shots=experiment.shots,
        test_shots=experiment.test_shots,
        rho=experiment.long_tail,
    )
    if experiment.clients < len(names):
        raise UserError("--clients", experiment.clients, f"{len(names)} datasets need at least as many clients")
    if experiment.novel and len(names) > 1:
        raise UserError("--novel", experiment.novel, "the classes of one dataset may be novel, not of several")
    parts = []
    for number, name in enumerate(names):
        share = (experiment.clients + len(names) - 1 - number) // len(names)
        dataset = _load(experiment, name, experiment.train_size, encoder).keep_out(experiment.novel)
        if experiment.normalise == "imagenet" or experiment.augment == "rethinkfl":
            dataset = dataset.normalised(*IMAGENET)
        if encoder is not None:
            dataset = encoder.dataset(dataset)
        parts.append(federate(dataset, split, share, experiment.seed, experiment.val_fraction))
    return parts[0] if len(parts) == 1 else join(parts)


def _load(experiment: Experiment, name: str, train_size: int | None, encoder: Encoder | None) -> Dataset:
    """A dataset with images of the size that models, or the encoder before them, see."""
    folder = None if experiment.data_dir is None else Path(experiment.data_dir)
    return load(name, folder, train_size, experiment.image_size if encoder is None else encoder.card.image_size)


def drift_of(experiment: Experiment, encoder: Encoder | None = None) -> Drift | None:
    """What clients hold at first and in the end, if that differs."""
    if experiment.drift == "none":
        return None
    rounds = experiment.rounds
    if experiment.drift == "sudden":
        shares = sudden(rounds, experiment.drift_round or rounds // 2 + 1)
    else:
        shares = gradual(rounds)
    later = dataclasses.replace(experiment, seed=key(experiment.seed, "drift"))
    before, after = (federation_of(given, encoder) for given in (experiment, later))
    return Drift(before, after, shares, experiment.seed)


def _settle(experiment: Experiment) -> None:
    """What holds for the whole process: CPU threads, the arithmetic of a GPU, and whether it repeats bit by bit."""
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    torch.backends.cuda.matmul.allow_tf32 = experiment.precision in ("tf32", "bf16")
    torch.backends.cudnn.allow_tf32 = experiment.precision in ("tf32", "bf16")
    if torch.are_deterministic_algorithms_enabled() != experiment.deterministic:  # saying it imports a compiler
        torch.use_deterministic_algorithms(experiment.deterministic)
    torch.backends.cudnn.deterministic = experiment.deterministic
    if experiment.deterministic:
        torch.backends.cudnn.benchmark = False
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when CUDA starts


def _resolved(experiment: Experiment, engine: Engine) -> Experiment:
    """The experiment as it is run, so that it runs again the same way, and from any folder."""
    settled: dict[str, Any] = {"engine": engine.name, "width": engine.width, "device": str(engine.device)}
    settled["threads"] = torch.get_num_threads()
    return Experiment.from_mapping(dataclasses.asdict(anchored(experiment)) | settled)


def _not_evaluated() -> dict[str, Any]:
    """The accuracies of a round without any."""
    return {"accuracy": {}, "per_client": {}, "per_domain": {}, "diagnostic": [], "interval": {}}


def _device(name: str, ranks: Ranks) -> torch.device:
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


@contextmanager
def _interruptible(active: bool) -> Iterator[Any]:
    """Turn the first Ctrl-C into a question that can be asked after a round; a second one stops at once."""
    seen = False

    def remember(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal seen
        seen = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        before = signal.signal(signal.SIGINT, remember) if active else None
    except ValueError:  # not in the main thread: leave signals alone
        before = None
    try:
        yield lambda: seen
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
