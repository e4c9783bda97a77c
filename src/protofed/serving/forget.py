"""A model without a client: what the server has of it is taken out of a finished run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import torch

from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock
from protofed.prototypes import Prototypes
from protofed.runs.folder import RunFolder
from protofed.runs.run import Run, new_run
from protofed.serving.export import Exported, export_of, restored

TRAINED = "the others' models were trained beside it and remember it; only training again without it forgets it"


@dataclass(frozen=True)
class Forgotten:
    """What was taken out."""

    method: str
    client: int
    exact: bool  # whether the model is the one of a run that never had the client
    prototypes: int  # of the client, that were in the server's pool
    why: str = ""  # it is not exact

    def words(self) -> str:
        """What that means."""
        if self.exact:
            return f"exact: the model is that of a run without client {self.client}, to rounding"
        sent = f"{self.prototypes} prototypes of client {self.client} were"
        held = f"what the server held of client {self.client} by itself was"
        return f"not exact: {sent if self.prototypes else held} taken out, but {self.why}"

    def to_json(self) -> str:
        """What `--json` prints."""
        return json.dumps({**dataclasses.asdict(self), "note": self.words()}, indent=2) + "\n"


def forget(folder: RunFolder, client: int, data: str | None = None) -> tuple[Exported, Forgotten]:
    """The model that a run would export without a client, and whether it is the one of a run that never had it.

    Args:
        folder: that of the run.
        client: its number.
        data: of a federation over a network, images that the model is measured with.

    Raises:
        UserError: there is no such client, it never took part, or nothing of it alone can be taken out.
    """
    run = restored(folder, data)
    if client not in run.federation.members:
        raise UserError("--client", client, f"clients are numbered from 0 to {run.federation.total - 1}")
    who = {member for played in run.history for member in played.participants}
    if client not in who:
        raise UserError("--client", client, "nothing that it sent was aggregated: it never took part, or was refused")
    if who == {client}:
        raise UserError("--client", client, "nobody else took part: without it nothing is left")
    trained = TRAINED if run.method.phases(run.experiment.epochs) else None
    unlike = _unlike(run)
    unknown = unlike or ("over a network what clients sent is not kept" if data is not None else None)
    cleaned = run.method.forget(run.broadcast, client, None if unknown else _first_upload(run, client))
    run.broadcast, removed = _without_prototypes(run, cleaned or run.broadcast, client)
    if cleaned is None and not removed:
        averages = f"nothing of client {client} by itself, only averages"
        sums = f"only sums, of which client {client} cannot be taken out: {unknown}"
        why = f"the server of {run.method.name} holds {averages if trained else sums}"
        raise UserError("--client", client, why, hint="train again without it")
    found = Forgotten(run.method.name, client, not (trained or unlike), removed, trained or unlike or "")
    return export_of(run, folder, data=data, without=[client]), found


def _unlike(run: Run) -> str | None:
    """Why a server made something else of a round than of what its clients have computed; None if it did not."""
    experiment = run.experiment
    if experiment.hides_clients:
        return "with --privacy client uploads were clipped, and their sum was noised"
    if experiment.attack != "none":
        return f"with --attack {experiment.attack} attackers send what they like"
    if experiment.defence != "none":
        return f"with --defence {experiment.defence} what counted of an upload depended on the others"
    if experiment.drift != "none":
        return f"with --drift {experiment.drift} what clients hold has changed"
    if any(played.rejected for played in run.history):
        return "uploads were refused"
    return None


def _first_upload(run: Run, client: int) -> Upload:
    """What a client sends in its first turn."""
    fresh = new_run(run.experiment)
    clock = Clock(0, run.experiment.rounds, (client,), run.federation.total, run.experiment.seed)
    return fresh.engine.round([client], fresh.broadcast, clock).uploads


def _without_prototypes(run: Run, broadcast: Broadcast, client: int) -> tuple[Broadcast, int]:
    """A broadcast without the prototypes of one client in the pool, and how many they were."""
    who = list(run.history[-1].participants)
    sets, removed = dict(broadcast.prototypes), 0
    for name, (vectors, counts) in sets.items():
        if counts.dim() == 3 and len(counts) == len(who) and run.method.sets_are_of_clients() and client in who:
            row = torch.tensor([who.index(client)])
            removed += int((counts[row] > 0).sum())
            sets[name] = Prototypes(vectors.index_fill(0, row, 0), counts.index_fill(0, row, 0))
    return dataclasses.replace(broadcast, prototypes=sets), removed
