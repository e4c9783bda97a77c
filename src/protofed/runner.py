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
from typing import Any

import torch

from protofed.data import Dataset, Federation, Split, federate, join, load
from protofed.data.augmentation import IMAGENET
from protofed.data.drift import Drift, gradual, sudden
from protofed.encoder import Encoder
from protofed.engines import Engine, make_engine
from protofed.engines.group import Group, group_clients
from protofed.engines.ranks import ALONE, Ranks
from protofed.errors import UserError
from protofed.evaluation import Evaluation, Evaluator
from protofed.experiment import Experiment
from protofed.look import look
from protofed.messages import Broadcast
from protofed.methods import build_method, parameters
from protofed.methods.base import Clock, Method, PublicExchange
from protofed.models import ModelSpec, parameter_count
from protofed.profiling import profiled_round, section
from protofed.prototypes.describe import counted, describe
from protofed.randomness import generator, key
from protofed.results.folder import RunFolder, write_atomically
from protofed.results.progress import Progress
from protofed.results.result import Result, summarise


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
        self.device = _device(experiment.device, ranks)
        if federation is not None and experiment.encoder is not None:
            raise UserError("encoder", experiment.encoder, "a federation of your own may hold features instead")
        self.encoder = encoder_of(experiment, self.device)
        self.drift = drift_of(experiment, self.encoder) if federation is None else None
        self.federation = federation or (self.drift.at(0) if self.drift else federation_of(experiment, self.encoder))
        groups = group_clients(
            experiment, self.method, self.federation, models or experiment.model.split(","), self.device
        )
        public = public_images(experiment, self.method, self.encoder)
        self.engine, self.engine_reason = make_engine(
            experiment, self.method, self.federation, groups, self.device, public
        )
        self.engine.ranks = ranks
        self.experiment = _resolved(experiment, self.engine)
        self.evaluator: Callable[[Broadcast], Evaluation] = Evaluator(self.engine)
        self.broadcast = self.engine.initial_broadcast()
        self.history: list[dict[str, Any]] = []

    def play(self, folder: RunFolder | None, progress: Progress) -> Result:
        """Play the remaining rounds."""
        progress.begin(self)
        resumable = folder is not None or self.ranks.number > 0
        with _interruptible(resumable) as interrupted, nullcontext() if folder is None else folder.checkpoint:
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
                                folder.checkpoint.save(self.broadcast, self.engine.groups, done)
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
        left_out = self.engine.left_out
        who = [member for member in who if member not in left_out]
        clock = clock._replace(who=tuple(who))
        with section("aggregation"):
            self.broadcast = self.method.aggregate(uploads, sent, clock)
        messages = [self.method.send(sent, member) for member in who]
        sizes = {id(message): message.size() for message in {id(message): message for message in messages}.values()}
        line = {
            "round": clock.round + 1,
            "seconds": self._since(began),
            "loss": statistics.fmean(losses),
            "losses": losses,
            "participants": who,
            "bytes_up": sum(uploads.sizes()) + self.engine.exchanged[0],
            "bytes_down": sum(sizes[id(message)] for message in messages) + self.engine.exchanged[1],
            "scalars_up": uploads.scalars(),
            "prototypes": describe(self.broadcast.prototypes, sent.prototypes),
            "clusters": counted(uploads.prototypes),
            **_not_evaluated(),
        }
        if left_out:
            line["left_out"] = dict(left_out)
        self.history.append(line)
        if self._due(line) or self.over():
            self.evaluate(line)
        return line

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
        line["accuracy"] = evaluation.means()
        line["per_client"] = evaluation.per_client
        line["per_domain"] = evaluation.per_domain
        line["diagnostic"] = evaluation.diagnostic
        line["interval"] = evaluation.interval
        line["seconds"] += self._since(began)

    def _since(self, began: float) -> float:
        """Seconds, of the slowest process; all must agree when the time is used up."""
        return max(self.ranks.exchange(time.perf_counter() - began))

    def _due(self, line: Mapping[str, Any]) -> bool:
        landmark = self.drift is not None and line["round"] - 1 in self.drift.landmarks.values()
        return landmark or bool(line["round"] % self.experiment.eval_every == 0)

    def over(self) -> bool:
        """Whether all rounds are played or the time is used up."""
        budget = self.experiment.time_budget
        spent = sum(line["seconds"] for line in self.history)
        return len(self.history) >= self.experiment.rounds or (budget is not None and spent >= budget)

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
        if found:
            self.broadcast = found[0]

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
            stopped="rounds" if len(self.history) >= experiment.rounds else "time budget",
            accuracy=accuracy,
            drift=self._drifted(),
            drawn_anew=None if experiment.start is None else self._drawn_anew(),
            encoder=None if self.encoder is None else dataclasses.asdict(self.encoder.card),
            folder=None if folder is None else str(folder.path),
        )


def participants(experiment: Experiment, clients: int, number_of_round: int) -> list[int]:
    """Who takes part in a round, in client order."""
    number = max(1, round(experiment.participation * clients))
    draw = torch.randperm(clients, generator=generator(experiment.seed, "participation", number_of_round))
    return sorted(draw[:number].tolist())


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
    for name in ("data_dir", "encoder", "start"):
        path = getattr(experiment, name)
        settled[name] = None if path is None else str(Path(path).resolve())
    return Experiment.from_mapping(dataclasses.asdict(experiment) | settled)


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
