"""A client's model of a run, for its owner: what the server never has, where clients keep weights of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protofed.deploy.client import experiment_here, federation_here
from protofed.deploy.client_memory import FolderMemory, recall
from protofed.deploy.layouts import with_tokens
from protofed.deploy.owner import Owner
from protofed.deploy.received import RECEIVED, Received
from protofed.errors import UserError, listed, unknown
from protofed.runs.run import new_run
from protofed.serving.export import Exported, export_run

OWN_DATA = "the client's own data"
"""On the card, in place of a path."""


def exported(owner: Owner, name: str | None = None, own: bool = False, examples: int = 0) -> Exported:
    """Make a model of a run that this client took part in; nothing is sent, and no server is asked.

    Args:
        owner: what client.yaml says; without data in it, that of the turn is taken.
        name: the run, a folder of the client's memory; the last one unless given.
        own: the client's own model, also where the server sends a whole one.
        examples: training samples that are kept with each prototype.

    Returns:
        The averaged model where the server sends one, the client's own where it does not or that is asked for.

    Raises:
        UserError: there is no such run, or the client had no turn in it.
    """
    if examples < 0:
        raise UserError("--examples", examples, "it must be 0 or more")
    memory = FolderMemory(_place(owner, name))
    found, rounds = Received.read(memory), sorted(memory.rounds())
    if found is None or not rounds:
        raise UserError("--run", memory.folder.name, "this client has had no turn in it, or under an older protofed")
    if owner.data is None and found.trained_on is not None:  # `deploy client --data`
        owner = owner.with_data(found.trained_on)
    federation = federation_here(found.experiment, owner).named(found.classes, found.domains)
    federation = with_tokens(federation, found.tokens)
    run = new_run(experiment_here(found.experiment, owner), federation=federation)
    recall(memory, run.engine.groups[0], rounds[-1])
    run.broadcast = found.broadcast
    made = export_run(run, owner.id if own else None, None, examples=examples)
    card, played = made.predictor.card, max(found.rounds, rounds[-1] + 1)
    complete = found.rounds == found.experiment.rounds
    told: dict[str, Any] = {
        "rounds": {
            "played": played,
            "planned": found.experiment.rounds,
            "stopped": "rounds" if complete else "cut off",
            "complete": complete,
        },
        "shared": {name: card.shared[name] for name in ("up", "down")},  # bytes are in events.jsonl
        "data": card.data if owner.data is None else {**card.data, "dataset": OWN_DATA},
    }
    return Exported(made.predictor.with_card(**told), made.held_out)


def runs_of(owner: Owner) -> list[str]:
    """The runs of which a model can be exported, the last one first."""
    files = Path(owner.memory or "").glob(f"*/{RECEIVED}")
    return [file.parent.name for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]


def _place(owner: Owner, name: str | None) -> Path:
    """The folder of a run."""
    there = runs_of(owner)
    if not there:
        raise UserError("DIR", owner.memory, "this client has taken part in no run")
    if name is not None and name not in there:
        raise unknown("--run", name, there, see=f"it has {listed(there)}")
    return Path(owner.memory or "") / (name or there[0])
