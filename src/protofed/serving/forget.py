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
from protofed.runs.result import Result
from protofed.runs.run import Run, new_run
from protofed.serving.export import Exported, export_run, restored


@dataclass(frozen=True)
class Forgotten:
    """What was taken out."""

    method: str
    client: int
    exact: bool  # whether the model is the one of a run that never had the client
    prototypes: int  # of the client, that were in the server's pool

    def words(self) -> str:
        """What that means."""
        if self.exact:
            return f"exact: the model is that of a run without client {self.client}, to rounding"
        return (
            f"not exact: {self.prototypes} prototypes of client {self.client} were taken out, but the others' models "
            f"were trained beside them and remember it; only training again without the client forgets it"
        )

    def to_json(self) -> str:
        """What `--json` prints."""
        return json.dumps({**dataclasses.asdict(self), "note": self.words()}, indent=2) + "\n"


def forget(folder: RunFolder, client: int) -> tuple[Exported, Forgotten]:
    """The model that a run would export without a client, and whether it is the one of a run that never had it.

    Raises:
        UserError: there is no such client, it never took part, or the server holds nothing of it by itself.
    """
    if folder.over_network:
        raise UserError("DIR", str(folder.path), "its clients are elsewhere, and what they sent is not kept")
    run = restored(folder)
    if client not in run.federation.members:
        raise UserError("--client", client, f"clients are numbered from 0 to {run.federation.total - 1}")
    if not any(client in played.participants for played in run.history):
        raise UserError("--client", client, "it never took part in the run")
    exact = run.method.forget(run.broadcast, client, _first_upload(run, client))
    removed = 0
    if exact is None:
        run.broadcast, removed = _without_prototypes(run, client)
    else:
        run.broadcast = exact
    ended = Result.read(folder.path).stopped if folder.result.exists() else None
    found = Forgotten(run.method.name, client, exact is not None, removed)
    return export_run(run, None, ended, without=[client]), found


def _first_upload(run: Run, client: int) -> Upload:
    """What a client sends in its first turn."""
    fresh = new_run(run.experiment)
    clock = Clock(0, run.experiment.rounds, (client,), run.federation.total, run.experiment.seed)
    return fresh.engine.round([client], fresh.broadcast, clock).uploads


def _without_prototypes(run: Run, client: int) -> tuple[Broadcast, int]:
    """The server's pool without the prototypes of one client, and how many they were."""
    who = list(run.history[-1].participants)
    sets, removed = dict(run.broadcast.prototypes), 0
    for name, (vectors, counts) in sets.items():
        if counts.dim() == 3 and len(counts) == len(who) and run.method.sets_are_of_clients() and client in who:
            row = torch.tensor([who.index(client)])
            removed += int((counts[row] > 0).sum())
            sets[name] = Prototypes(vectors.index_fill(0, row, 0), counts.index_fill(0, row, 0))
    if not removed:
        why = f"the server of {run.method.name} holds nothing of client {client} by itself, only averages"
        raise UserError("--client", client, why, hint="train again without it")
    return dataclasses.replace(run.broadcast, prototypes=sets), removed
