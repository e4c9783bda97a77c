"""What of an experiment a client would refuse, said before anybody asks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from protofed.deploy.client import experiment_here, federation_here
from protofed.deploy.owner import PARTS, Owner
from protofed.deploy.supervise import owner_at, place_of
from protofed.engines.private import made_up_upload
from protofed.errors import RefusedError
from protofed.evaluation.names import ACCURACY, NONE
from protofed.experiment import Experiment
from protofed.runs.setup import prepare


def explained(folder: Path, number: int, data: str | None, experiment: Experiment) -> list[str]:
    """What the client would refuse, each in one line; nothing is sent, and no server is asked.

    Args:
        folder: the client's folder, or its federation's.
        number: which client.
        data: what `--data` says.
        experiment: as `deploy run` would send it.

    Raises:
        UserError: client.yaml or the data cannot be used, or the experiment cannot be run with it at all.
    """
    owner = owner_at(place_of(folder, number), number).with_data(data)
    found = owner.objections(experiment)
    if found:  # among them may be files that are not to be opened
        return found
    try:
        _check_turn(owner, experiment)
    except RefusedError as error:
        return [str(error)]
    return []


def _check_turn(owner: Owner, experiment: Experiment) -> None:
    """Refuse what is known from the data and from what the method sends."""
    here = federation_here(experiment, owner)
    owner.check_samples(len(here.clients[0].train), experiment)
    plain = replace(experiment, metrics=NONE, val_metric=ACCURACY)  # they may be of classes that others have
    setup = prepare(experiment_here(plain, owner), federation=here)
    owner.check_epochs(sum(phase.epochs for phase in setup.method.phases(experiment.epochs)))
    upload = made_up_upload(setup.engine, setup.engine.groups[0], len(here.classes))[1]
    owner.check_parts([part for part in PARTS if getattr(upload, part)])
    owner.check_size(upload.client(0).size())
