"""What crosses the line is as much as the papers say, and what a client keeps between rounds is counted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from protofed.methods.base import Clock, Method
from protofed.methods.fedntd import FedNTD
from protofed.methods.fedpcl import FedPCL
from protofed.methods.fedper import FedPer
from protofed.methods.fedplcc import FedPLCC
from protofed.methods.fedplvm import FedPLVM
from protofed.methods.fedproc import FedProc
from protofed.methods.fedrcl import FedRCL
from protofed.methods.fedrep import FedRep
from protofed.methods.fedsc import FedSC
from protofed.methods.fpl import FPL
from protofed.methods.moon import Moon
from protofed.models import parameter_count
from protofed.prototypes.relations import consistent_prototypes, discrepancy_weights
from tests.support import cluster_runs, relation_runs, whole_runs
from tests.support.cluster_runs import DIM, trained
from tests.support.nets import Part, Plain, federation, play
from tests.support.turns import turn_of


@pytest.mark.parametrize(
    "method",
    [Moon(), pytest.param(Moon(projection=True), id="moon projection"), FedPer(), FedRep(), FedNTD(), FedRCL()],
    ids=lambda method: method.name,
)
def test_bytes_are_those_of_the_shared_weights(method: Method) -> None:
    """|w|, or |base| for FedPer and FedRep, both ways; in float64, plus names and the sample count."""
    run = whole_runs.played(method, "stacked")
    group = run.engine.groups[0]
    scalars = sum(value.numel() for name, value in group.module.state_dict().items() if method.shares(name))
    if isinstance(method, FedPer):
        assert scalars == 3 * 9 + 3 + 4 * 3  # the convolution, and BatchNorm's weight, bias and statistics
    else:
        assert scalars == sum(value.numel() for value in group.module.state_dict().values())
    last = run.history[-1]
    up, down = (sent / len(last.participants) for sent in (last.bytes_up, last.bytes_down))
    header = 100 * (1 + len(group.own.initial))
    assert 8 * scalars < down <= up <= 8 * scalars + header


def test_what_a_client_keeps_between_rounds_is_counted() -> None:
    methods = (Moon(), FedPer(), FedRep(), FedNTD(), FedRCL())
    runs = {method.name: whole_runs.played(method, "stacked") for method in methods}
    memory = {name: run.client_memory(run.engine.groups[0]) for name, run in runs.items()}
    whole = sum(value.numel() for value in runs["moon"].engine.groups[0].own.initial.values())
    assert memory["moon"] == 8 * whole
    assert memory["fedper"] == memory["fedrep"] == 8 * (whole - 42)
    assert memory["fedntd"] == memory["fedrcl"] == 0


@pytest.mark.parametrize("method", [FPL(), FedPLVM(lam=1.0), FedPLCC(lambda1=0.5), FedProc()], ids=lambda m: m.name)
def test_what_crosses_the_line(method: Method) -> None:
    """|w| and d numbers a prototype; each travels with its slot and its number of samples."""
    run, (_, received) = cluster_runs.played(method, "stacked")
    model = sum(value.numel() for value in run.engine.groups[0].own.initial.values())
    (known,) = received.prototypes.values()
    (key,) = received.prototypes
    flat = received.flat()
    assert sum(value.numel() for part, value in flat.items() if part.startswith("weights/")) == model
    assert flat[f"prototypes/{key}/vectors"].numel() == int(known.filled.sum()) * 8
    assert flat[f"prototypes/{key}/index"].shape == (int(known.filled.sum()), 2)
    payload = 8 * (model + int(known.filled.sum()) * 8) + 4 * (2 * int(known.filled.sum()) + 3)
    last = run.history[-1]
    assert last.bytes_down == len(last.participants) * received.size()
    assert 0 < received.size() - payload < 2500  # names and shapes

    upload = run.method.upload(trained(3), turn_of(trained(3)))
    (local,) = upload.prototypes.values()
    one = upload.client(1).flat()
    held = len({y for y in trained(3).labels[1].tolist() if y >= 0})
    number = int(local.filled[1].sum())
    assert number == held if isinstance(method, FPL | FedProc) else number > held
    (vectors,) = (value for part, value in one.items() if part.endswith("/vectors"))
    assert vectors.shape == (number, DIM)
    assert set(upload.numbers) == {"samples"}


def test_only_participants_make_prototypes() -> None:
    run = relation_runs.played("fedsc", "sequential")
    who = run.history[-1].participants
    sent = run.broadcast.prototypes
    held = run.federation.counts[torch.tensor(who)]
    assert torch.equal(sent["relational"].counts.squeeze(-1), held.to(torch.float64))
    assert torch.equal(sent["consistent"].counts.squeeze(-1), held.sum(0).to(torch.float64))
    e = discrepancy_weights(sent["relational"].counts)
    assert_close(sent["consistent"].vectors, (e.unsqueeze(-1) * sent["relational"].vectors).sum(0))
    assert_close(consistent_prototypes(sent["relational"]).vectors, sent["consistent"].vectors)
    pcl = relation_runs.played("fedpcl", "sequential")
    assert pcl.broadcast.prototypes["sets"].counts.shape == (len(pcl.history[-1].participants), 6, 1)


def floats(flat: dict[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in flat.values() if tensor.is_floating_point())


def test_as_many_scalars_are_sent_as_section_8_counts() -> None:
    """FedSC: |w| + C_k d up, |w| + Σ_k C_k d + C d down; FedPCL the same without weights. Counts are integers."""
    parts: tuple[Part, ...] = ({0: 9, 1: 8}, {0: 3, 2: 7, 3: 9}, {4: 10})
    held, present, dim = [2, 3, 1], 5, 6
    for method in (FedSC(), FedPCL()):
        run = relation_runs.play(method, rounds=1, clients=federation(parts, test=30), model=Plain, participation=1.0)
        w = parameter_count(run.engine.groups[0].module) if isinstance(method, FedSC) else 0
        upload = run.engine.round([0, 1, 2], run.broadcast, Clock(1, 2)).uploads
        assert [floats(upload.client(k).flat()) for k in range(3)] == [w + c * dim for c in held]
        assert floats(run.broadcast.flat()) == w + (sum(held) + present) * dim
        name = "means" if isinstance(method, FedSC) else "sets"
        assert upload.client(1).flat()[f"prototypes/{name}/index"].shape == (3, 2)


PARTS = ({0: 9, 1: 8}, {0: 3, 2: 7, 3: 9}, {4: 10})
HELD, FEATURES, CLASSES = [2, 3, 1], 6, 6


@pytest.mark.parametrize("method", ["fesem", "fednh", "fedcda"])
def test_bytes_are_those_of_the_papers(method: str) -> None:
    """Classes that a client does not hold are not sent."""
    run = play(method, clients=federation(PARTS, test=30), rounds=2, model=Plain, participation=1.0)
    w = parameter_count(run.engine.groups[0].module)  # FedNH's W is no parameter
    up, down = {
        "fesem": ([w, w, w], w),
        "fednh": ([w + c * FEATURES for c in HELD], w + CLASSES * FEATURES),
        "fedcda": ([w + 1] * 3, w),
    }[method]
    uploads = run.engine.round([0, 1, 2], run.broadcast, Clock(1, 2, (0, 1, 2), 3)).uploads
    sent = [run.method.send(run.broadcast, client) for client in range(3)]
    assert [floats(uploads.client(row).flat()) for row in range(3)] == up
    assert [floats(message.flat()) for message in sent] == [down] * 3
    counts = [uploads.client(row).flat().get("prototypes/means/index", torch.empty(0, 2)) for row in range(3)]
    assert [len(found) for found in counts] == (HELD if method == "fednh" else [0, 0, 0])
    assert run.broadcast.kept or method == "fednh"
    assert run.history[-1].bytes_down == sum(message.size() for message in sent)  # what is kept is not counted
