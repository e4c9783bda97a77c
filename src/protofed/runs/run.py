"""One experiment from beginning to end: the state of a run, the loop over rounds, and what it writes."""

from __future__ import annotations

import dataclasses
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from types import FrameType
from typing import Any, NamedTuple

import torch

from protofed.data.federation import Federation
from protofed.data.federation_file import is_federation
from protofed.engines.base import Outcome
from protofed.engines.client_group import Group
from protofed.engines.client_models import Store
from protofed.engines.distributed import ALONE, Ranks
from protofed.engines.draws import without_draws
from protofed.errors import LostError, UserError
from protofed.evaluation.accuracy import Evaluation, lacking, validation_name
from protofed.evaluation.backdoor import backdoor_rate
from protofed.evaluation.motion import Recorder
from protofed.evaluation.names import asked_metrics, best_of
from protofed.evaluation.snapshot import Snapshot, take_snapshot
from protofed.experiment import Experiment
from protofed.internal.atomic_files import full_disk_is_said, write_text
from protofed.internal.digests import json_with_digest
from protofed.internal.memory import let_go
from protofed.internal.profiling import profiled_round, section
from protofed.messages import Broadcast, Traffic
from protofed.methods import parameters
from protofed.methods.base import Clock, Method
from protofed.models import ModelSpec, parameter_count
from protofed.prototypes.describe import counted, describe, most
from protofed.runs.asynchronous import AsynchronousClients
from protofed.runs.checkpoint import ServerState
from protofed.runs.clients import Clients, LocalClients
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder
from protofed.runs.process import process_settings
from protofed.runs.progress import Progress, Standing, seconds_left, told_score
from protofed.runs.result import Result, further, summarise
from protofed.runs.setup import Setup, prepare
from protofed.server.participation import participants
from protofed.server.pipeline import Processed
from protofed.server.public_exchange import Agreement, agree, exchange_of
from protofed.server.round import Round
from protofed.trust.attacker import AttackMemory

CUSTOM = "custom"
"""What results call the dataset of a federation of the user's own."""


class Interrupted(Exception):
    """Ctrl-C: the run stopped after a whole round."""


class Ended(NamedTuple):
    """How a run has ended: what its models are taken from when the run itself is gone."""

    experiment: Experiment
    history: Sequence[Round]
    broadcast: Broadcast
    own: Sequence[Store]
    taken: Sequence[torch.Tensor]


class Run:
    """A federation in training: its state, and the loop over rounds."""

    def __init__(self, setup: Setup, clients: Clients | None = None) -> None:
        """A run at its beginning; its clients are those of the setup's engine, unless others are given."""
        self.setup, self.engine = setup, setup.engine
        self.experiment, self.method, self.device = setup.experiment, setup.method, setup.device
        self.ranks, self.encoder, self.drift = setup.ranks, setup.encoder, setup.drift
        self.attack, self.privacy = setup.attack, setup.privacy
        self.clients = clients or clients_of(setup)
        self.pipeline = setup.pipeline(self.clients)
        self.federation = setup.federation
        self.broadcast = setup.engine.initial_broadcast()
        self.history: list[Round] = []
        self.members = {*range(self.federation.total)}
        """Who could take part in the last round."""
        self.called_off = False
        """Whether a user's function has ended it."""
        self.recorder: Recorder | None = None
        """Keeps how features and prototypes move, for the report of a run that has a folder."""

    def play(self, folder: RunFolder | None, progress: Progress) -> Result:
        """Play the remaining rounds."""
        progress.tell(self.standing())
        resumable = folder is not None or self.ranks.number > 0
        written = nullcontext() if folder is None else folder
        with process_settings(self.experiment), _interruptible(resumable) as interrupted, full_disk_is_said(), written:
            if folder is not None:
                folder.keep_rounds(self.history)
                self._record_motion(folder)
            stop = False
            while not (stop or self.over()):
                with profiled_round():
                    late = self._awaits_test()
                    with self._failure(folder):
                        played = self.play_round()
                    if late and folder is not None:
                        folder.keep_rounds(self.history[:-1])  # the last of which has been tested now
                    asked = self.ranks.exchange((interrupted(), progress.stops(played)))
                    stop, self.called_off = (any(answers) for answers in zip(*asked, strict=True))
                    if (stop or self.called_off) and not played.accuracy:
                        played = self.history[-1] = self.evaluated(played)
                    if folder is not None:
                        self._write_round(folder, played, stop)
                progress.tell(self.standing(played))
            if folder is not None:
                self._write_end(folder)
            if stop or interrupted():
                raise Interrupted(f"stopped after round {len(self.history)} of {self.experiment.rounds}")
        return self.result(folder)

    @contextmanager
    def _failure(self, folder: RunFolder | None) -> Iterator[None]:
        """Write why a run fails into its folder; it can be played again from its last checkpoint."""
        try:
            yield
        except (Interrupted, UserError, LostError):
            raise
        except Exception as error:
            if folder is not None:
                FailedRun.of(self.experiment, error, len(self.history)).write(folder.path)
            raise

    def _record_motion(self, folder: RunFolder) -> None:
        """Begin to keep how features and prototypes move, or go on with it; of clients elsewhere nothing is known."""
        if self.experiment.motion and self.clients.here:
            self.recorder = Recorder(self.engine, self.setup.federation, self.experiment.seed, self.experiment.rounds)
            self.recorder.restore(folder.motion, len(self.history))

    def _keep_motion(self, folder: RunFolder, played: Round) -> None:
        """Keep a round that is due, before the checkpoint: who goes on from there finds every frame until then."""
        if self.recorder is not None and (played.round in self.recorder.due or self.over()):
            with section("evaluation"):
                self.recorder.keep(played.round, self.broadcast, played.participants)
                self.recorder.motion.write(folder.motion)

    def _write_round(self, folder: RunFolder, played: Round, stop: bool) -> None:
        self._keep_motion(folder, played)
        folder.append_round(played)
        if stop or self.over() or played.round % self.experiment.checkpoint_every == 0:
            with section("checkpoint"):
                folder.checkpoint.save(self.server_state(), self.engine.groups)

    def _write_end(self, folder: RunFolder) -> None:
        """What a complete run leaves behind; of one that was interrupted, only the checkpoint is waited for."""
        folder.checkpoint.wait()
        if self.over():
            if self.clients.here:
                self.snapshot().write(folder.snapshot)
            write_text(folder.result, json_with_digest(self.result(folder).to_json()))

    def snapshot(self) -> Snapshot:
        """How the run stands, for the report."""
        return take_snapshot(self.engine, self.broadcast, self.experiment.seed, self.history[-1].participants)

    def standing(self, played: Round | None = None) -> Standing:
        """How far the run is, and what it has just played."""
        engine = f"{self.clients.name} engine on {self.device} ({self.setup.engine_reason})"
        seed, rounds = self.experiment.seed, self.experiment.rounds
        standing = Standing(self.method.name, seed, rounds, len(self.history), engine)
        if played is None:
            return standing
        numbers = {name: getattr(played, name) for name in ("loss", "seconds", "bytes_up", "bytes_down")}
        known = self.history[-2:] if self.clients.tests_late else [played]  # a test may come with the next round
        return dataclasses.replace(
            standing,
            loss=played.loss,
            score=told_score(self.method.score, next((one.accuracy for one in reversed(known) if one.accuracy), {})),
            seconds_left=seconds_left(
                [played.seconds for played in self.history], self.experiment.rounds, self.experiment.time_budget
            ),
            numbers=numbers | dict(played.accuracy),
        )

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The process as the experiment asks for it, while the method and its models are asked for something."""
        with process_settings(self.experiment), without_draws(self.method, self.device):
            yield

    def play_round(self) -> Round:
        """One round: local training, aggregation and, where it is due, evaluation."""
        with self.at_work():
            began = time.perf_counter()
            if self.drift:
                self._drift(self.drift.at(len(self.history)))
            members = self.clients.members()
            who = tuple(members[at] for at in participants(self.experiment, len(members), len(self.history)))
            places = max(self.federation.total, members[-1] + 1)  # over a network clients may join a run that goes on
            clock = Clock(len(self.history), self.experiment.rounds, who, places, self.experiment.seed)
            self.broadcast = self.method.with_room(self.broadcast, places)
            agreed = self._agreed(clock)
            outcome = self._trained(agreed, clock._replace(who=agreed.who))
            with section("aggregation"):
                server = self.pipeline.process(outcome.uploads, self.broadcast, clock._replace(who=outcome.who))
            joined, removed = sorted({*members} - self.members), sorted(self.members - {*members})
            played = dataclasses.replace(
                self._record(agreed, outcome, server), seconds=self._since(began), joined=joined, removed=removed
            )
            self.members = {*members}
            self.broadcast = server.broadcast
            self.history.append(played)
            if self.over() or (self._due(played) and not self.clients.tests_late):
                self.history[-1] = self.evaluated(played)
            return self.history[-1]

    def _trained(self, agreed: Agreement, clock: Clock) -> Outcome:
        """The round's training; if the round before is still to be tested, that with it."""
        if not self._awaits_test():
            return self.clients.round(agreed.who, agreed.broadcast, clock)
        evaluation, outcome = self.clients.test_and_round(agreed.who, agreed.broadcast, clock)
        self.history[-1] = self._with_test(self.history[-1], evaluation)
        return outcome

    def _awaits_test(self) -> bool:
        """Whether the models after the last round are tested with the turns of the next."""
        return bool(self.history) and self._due(self.history[-1]) and not self.history[-1].accuracy

    def _record(self, agreed: Agreement, outcome: Outcome, server: Processed) -> Round:
        """What rounds.jsonl says of a round, before it is timed and evaluated."""
        number = len(self.history) + 1
        traffic = agreed.traffic + outcome.traffic
        if self.attack is not None:  # they send something else than what they have trained
            traffic += Traffic(up=sum(server.arrived.sizes()) - sum(outcome.uploads.sizes()))
        pairs = zip(outcome.who, outcome.losses, strict=True)
        losses = [loss for member, loss in pairs if member not in server.rejected]
        ages = None if outcome.staleness is None else dict(zip(outcome.who, outcome.staleness, strict=True))
        scalars = server.arrived.scalars()
        return Round(
            round=number,
            seconds=0.0,
            loss=statistics.fmean(losses) if losses else self.history[-1].loss if self.history else 0.0,
            losses=losses,
            participants=list(server.who),
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            scalars_up={"weights": scalars["weights"], "prototypes": scalars["prototypes"]},
            prototypes=describe(server.broadcast.prototypes, self.broadcast.prototypes),
            clusters=counted(server.arrived.prototypes),
            most_clusters=most(server.arrived.prototypes) if self.method.clusters_features() else None,
            left_out={**agreed.left_out, **outcome.left_out, **server.rejected},
            suspected=server.suspected if self.setup.defences else None,
            epsilon=None if self.privacy is None else self.privacy.epsilon(number),
            clock=self._virtual_time(outcome),
            staleness=None if ages is None else [ages[member] for member in server.who],
        )

    def _virtual_time(self, outcome: Outcome) -> float | None:
        """When a round ends: where all wait for each other, as long after the last one as its slowest client takes."""
        if outcome.clock is not None or self.experiment.delays is None:
            return outcome.clock
        before = self.history[-1].clock if self.history else 0.0
        seconds = self.experiment.turn_seconds(self.federation.total)
        return (before or 0.0) + max((seconds[member] for member in outcome.who), default=0.0)

    def _agreed(self, clock: Clock) -> Agreement:
        """What clients train from: the broadcast or, for some methods, what they agree on over public images first."""
        exchange = exchange_of(self.method)
        if exchange is None or not clock.who:
            return Agreement(self.broadcast, clock.who, {}, Traffic())
        with section("forward/backward"):
            clients = self.clients.public_clients(exchange, clock.who, self.broadcast, clock)
            return agree(exchange, clients, clock)

    def _drift(self, federation: Federation) -> None:
        """What clients hold from now on."""
        if federation is not self.federation:
            self.federation = federation
            self.clients.move(federation)

    def evaluated(self, played: Round) -> Round:
        """A round's record, with how good the models are now."""
        began = time.perf_counter()
        with section("evaluation"):
            evaluation = self.clients.evaluate(self.broadcast)
        backdoor = None
        if self.attack is not None and self.attack.backdoor:
            backdoor = backdoor_rate(self.engine, self.broadcast, self.attack)
        tested = self._with_test(played, evaluation)
        return dataclasses.replace(tested, seconds=played.seconds + self._since(began), backdoor=backdoor)

    def _with_test(self, played: Round, evaluation: Evaluation) -> Round:
        """With what a test has found; what is defined at no client is left out."""
        without = self.attack.who if self.attack else ()
        accuracy = evaluation.means(without)
        metrics = asked_metrics(self.experiment, self.federation.classes)
        return dataclasses.replace(
            played,
            bytes_up=played.bytes_up + evaluation.traffic.up,
            bytes_down=played.bytes_down + evaluation.traffic.down,
            accuracy=accuracy | evaluation.worst(metrics, without),
            per_client={name: values for name, values in evaluation.per_client.items() if name in accuracy},
            per_domain=evaluation.per_domain,
            diagnostic=[name for name in evaluation.diagnostic if name in accuracy],
            interval=evaluation.interval,
            tested=evaluation.tested,
            undefined={name: who for name, who in evaluation.undefined.items() if name in accuracy},
        )

    def _since(self, began: float) -> float:
        """Seconds, of the slowest process; all must agree when the time is used up."""
        return max(self.ranks.exchange(time.perf_counter() - began))

    def _due(self, played: Round) -> bool:
        """Whether a round is evaluated even if it is not the last."""
        landmark = self.drift is not None and played.round - 1 in self.drift.landmarks.values()
        return landmark or played.round % self.experiment.eval_every == 0

    def over(self) -> bool:
        """Whether there are no more rounds."""
        return self.ended_by() is not None

    def ended_by(self) -> str | None:
        """Why there are no more rounds; none while there are."""
        budget = self.experiment.time_budget
        if len(self.history) >= self.experiment.rounds:
            return "rounds"
        if self.called_off:
            return "callback"
        if self._exhausted():
            return "privacy budget"
        if budget is not None and sum(played.seconds for played in self.history) >= budget:
            return "time budget"
        return "patience" if self._stale() else None

    def _stale(self) -> bool:
        """Whether what validation data decides by is no better for as many evaluations as patience lasts.

        An evaluation that was made because a run was interrupted does not count: without that it would not be there.
        """
        patience = self.experiment.patience
        if patience is None:
            return False
        tested = [one.accuracy for one in self.history if self._due(one)]
        known = {name for accuracy in tested for name in accuracy}
        score = validation_name(self.method.score, self.experiment.val_metric, known)
        values = [accuracy[score] for accuracy in tested if score in accuracy]
        return bool(values) and len(values) - 1 - values.index(best_of(score)(values)) >= patience

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
            memory = group.own.memory(range(len(group.members)))
            state |= {f"memory/{number}/{name}": tensor for name, tensor in memory.items()}
            state[f"taken/{number}"] = group.taken.clone()
        return state

    def restore(self, folder: RunFolder) -> None:
        """Go back to a folder's last checkpoint."""
        groups = [] if folder.over_network else self.engine.groups  # those of a network keep their own
        state = folder.checkpoint.load(groups)
        if state is None:
            return
        if state.data and not folder.over_network and state.data != self.data_digest:
            folder.release()  # who mends the data goes on in the same process
            why = f"its samples, labels or who holds them are not those that {folder.path} was trained on"
            raise UserError("--dataset", self._dataset_name(self.experiment), why)
        self.history = self.ranks.first(lambda: folder.read_rounds(state.rounds))
        ended = self.over()
        for place, played in enumerate(self.history[:-1] if ended else self.history):
            if not self._due(played):  # it was evaluated because the run stopped there
                self.history[place] = played.without_evaluation()
        self.broadcast = state.broadcast
        for played in self.history:
            self.members = (self.members | {*played.joined}) - {*played.removed}
        if self.pipeline.attacking is not None:
            self.pipeline.attacking.memory = dict(state.attack)
        self.clients.restore(state.flight)
        self.pipeline.restore(state.flight)
        if self.drift:
            self._drift(self.drift.at(len(self.history) - 1))

    def ended(self) -> Ended:
        """What is left of this run, which trains no more: not its data, and nothing on its device."""
        stores = [group.own.to_host() for group in self.engine.groups]
        taken = [group.taken.cpu() for group in self.engine.groups]  # which waits for what is under way
        return Ended(self.experiment, self.history, self.broadcast.on_host(), stores, taken)

    def take_over(self, other: Ended) -> None:
        """Go to where another run of the same experiment has ended; this one is on the CPU."""
        self.history, self.broadcast = list(other.history), other.broadcast
        for group, store, taken in zip(self.engine.groups, other.own, other.taken, strict=True):
            for row in sorted(store.trained):  # one by one, as all may be too large for the memory
                group.own.put_packed([row], store.packed([row]))
            group.taken.copy_(taken)
        if self.drift:
            self._drift(self.drift.at(len(self.history) - 1))

    def server_state(self) -> ServerState:
        """What the next round depends on beside the clients' models, for a checkpoint."""
        attack: AttackMemory = {} if self.pipeline.attacking is None else self.pipeline.attacking.memory
        flight = {**self.clients.state(), **self.pipeline.state()}
        return ServerState(self.broadcast, len(self.history), attack, flight, self.data_digest)

    @cached_property
    def data_digest(self) -> str:
        """Of what clients held at the beginning; of clients that are elsewhere nothing is known."""
        return self.setup.federation.digest(features=self.encoder is not None) if self.clients.here else ""

    def client_memory(self, group: Group) -> int:
        """Bytes a client has to keep between rounds: what it does not receive, or its whole last model; its memory."""
        shared = set() if self.method.keeps_previous else self.method.shared(group.own.initial)
        kept = [value for name, value in group.own.initial.items() if name not in shared]
        return sum(value.nbytes for value in (*kept, *group.own.first_memory.values()))

    def _drifted(self) -> dict[str, dict[str, float]] | None:
        """The accuracies before, at and after a drift, as far as the run has come."""
        if self.drift is None:
            return None
        marks = self.drift.landmarks.items()
        return {name: dict(self.history[round].accuracy) for name, round in marks if round < len(self.history)}

    def _drawn_anew(self) -> list[str]:
        """What of the models was not in the file they started from."""
        return list(dict.fromkeys(name for group in self.engine.groups for name in group.drawn_anew))

    def _stays(self) -> list[str] | None:
        """What the averaged model lacks, where the method's score is of one."""
        group = self.engine.groups[0]
        lacks = lacking(self.method, group, self.method.send(self.broadcast, group.members[0]))
        return sorted(lacks) or None if self.method.score.startswith("global/") else None

    @staticmethod
    def _dataset_name(experiment: Experiment) -> str:
        return CUSTOM if is_federation(experiment.dataset) else experiment.dataset

    def result(self, folder: RunFolder | None) -> Result:
        """What came out so far."""
        experiment = self.clients.trained_on(self.experiment)
        accuracy = summarise(self.history)
        result = Result(
            method=self.method.name,
            dataset=self._dataset_name(experiment),
            split=experiment.split,
            clients=self.federation.total,
            rounds=len(self.history),
            seed=experiment.seed,
            engine=self.clients.name,
            device=str(self.device),
            model=experiment.model,
            params={name: getattr(self.method, name) for name in parameters(type(self.method))},
            model_parameters=[parameter_count(group.module) for group in self.engine.groups],
            client_memory=max(self.client_memory(group) for group in self.engine.groups),
            score=self.method.score if self.method.score in accuracy else "own/own/head",
            bytes_up=sum(played.bytes_up for played in self.history),
            bytes_down=sum(played.bytes_down for played in self.history),
            seconds=sum(played.seconds for played in self.history),
            stopped=self.ended_by() or "cut off",
            accuracy=accuracy,
            most_clusters=max((played.most_clusters or 0 for played in self.history), default=0) or None,
            **further(self.history),
            drift=self._drifted(),
            drawn_anew=None if experiment.start is None else self._drawn_anew(),
            stays=self._stays(),
            encoder=None if self.encoder is None else dataclasses.asdict(self.encoder.card),
            preparation=self.setup.federation.prepared if self.clients.here else None,
            privacy=None if self.privacy is None else experiment.privacy,
            epsilon=None if self.privacy is None else self.privacy.spent(len(self.history)),
            delta=None if self.privacy is None else experiment.delta,
            folder=None if folder is None else str(folder.path),
        )
        return result.with_history(self.history)


def clients_of(setup: Setup) -> Clients:
    """The clients of a run in this process."""
    return LocalClients(setup.engine) if setup.experiment.async_ is None else AsynchronousClients(setup.engine)


def new_run(
    experiment: Experiment,
    method: Method | None = None,
    federation: Federation | None = None,
    models: Sequence[ModelSpec] | None = None,
    ranks: Ranks = ALONE,
) -> Run:
    """A run of an experiment at its beginning; see `prepare`."""
    let_go()
    return Run(prepare(experiment, method, federation, models, ranks))


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
