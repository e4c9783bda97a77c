"""A round's uploads added up: of their sum the server makes what it makes of each client's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods import METHODS, build_method, method_class, parameters
from protofed.methods.base import Clock, Method, Server
from protofed.methods.fedproto import FedProto
from protofed.prototypes import Prototypes
from protofed.runs.run import new_run
from protofed.trust.summation import summed, terms, upload_of

SUMMED: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {},
    "fedper": {},
    "fedrep": {},
    "moon": {},
    "fedntd": {},
    "fedrcl": {},
    "fedproto": {},
    "fedproc": {},
    "fednh": {},
    "fedbn": {},
    "lg-fedavg": {},
    "fedbabu": {},
    "fedlc": {},
    "fedrod": {},
    "fedetf": {},
    "scaffold": {},
    "ditto": {},
    "fedncm": {},
    "fed3r": {},
    "ccvr": {},
}
READINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, params) for name, params in SUMMED.items()),
    ("fedavg", {"averaging": "uniform"}),
    ("fedproto", {"weighting": "samples", "share_weights": True}),
    ("fedproc", {"weighting": "samples"}),
    ("fednh", {"averaging": "samples"}),
]


def close(found: Broadcast, expected: Broadcast) -> None:
    assert found.weights.keys() == expected.weights.keys()
    for name, tensor in expected.weights.items():
        torch.testing.assert_close(found.weights[name], tensor, rtol=1e-9, atol=1e-9)
    assert found.prototypes.keys() == expected.prototypes.keys()
    for name, sets in expected.prototypes.items():
        torch.testing.assert_close(found.prototypes[name].vectors, sets.vectors, rtol=1e-9, atol=1e-9)
        assert found.prototypes[name].counts.tolist() == sets.counts.tolist()
    assert found.numbers.keys() == expected.numbers.keys()
    for name, tensor in expected.numbers.items():
        torch.testing.assert_close(found.numbers[name], tensor, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "params"), READINGS)
def test_the_sum_is_all_that_the_server_needs(name: str, params: dict[str, Any]) -> None:
    options = {"model": "cnn", "device": "cpu", "train_size": 120, "clients": 4, "rounds": 2, "precision": "float64"}
    run = new_run(Experiment.from_mapping({"method": name, "params": params, "alpha": 0.3, "min_size": 1, **options}))
    run.play_round()
    clock = Clock(1, 2, (0, 1, 2, 3), 4)
    uploads = run.engine.round([0, 1, 2, 3], run.broadcast, clock).uploads
    how = summed(run.method, "--secure")
    total = {path: tensor.sum(0) for path, tensor in terms(uploads, how).items()}
    close(
        run.method.aggregate(upload_of(total, clients=4), Server(run.broadcast, clock._replace(who=(0,)))),
        run.method.aggregate(uploads, Server(run.broadcast, clock)),
    )


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(SUMMED) - {"local"}))
def test_a_method_that_needs_each_client_is_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}.*each client's own"):
        summed(build_method(name, {}), "--secure")


def test_the_equation_that_divides_twice_is_no_mean_of_sums() -> None:
    with pytest.raises(UserError):
        summed(build_method("fedproto", {"weighting": "literal"}), "--secure")


@pytest.mark.parametrize("name", [name for name in SUMMED if "norm" in parameters(method_class(name))])
def test_total_variances_are_no_sum(name: str) -> None:
    with pytest.raises(UserError, match="each client's own"):
        summed(build_method(name, {"norm": "total"}), "--secure")


def test_an_average_by_distances_is_no_sum() -> None:
    with pytest.raises(UserError, match="each client's own"):
        summed(build_method("fedavg", {"averaging": "prototypes"}), "--secure")


@dataclass(frozen=True)
class Medians(FedProto):
    """An aggregation of its own."""

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:  # noqa: ARG002
        return Broadcast()


def test_a_subclass_with_another_aggregation_is_not_taken_for_a_sum() -> None:
    method: Method = Medians()
    with pytest.raises(UserError):
        summed(method, "--secure")


def test_a_class_that_nobody_holds_stays_empty() -> None:
    counts = torch.tensor([[[2.0], [0.0]], [[1.0], [0.0]]])
    vectors = torch.ones(2, 2, 1, 3) * counts.unsqueeze(-1)
    added = terms(Upload({}, {"means": Prototypes(vectors, counts)}), summed(FedProto(), "--secure"))
    one = upload_of({path: tensor.sum(0) for path, tensor in added.items()}, clients=2)
    assert one.prototypes["means"].counts.tolist() == [[[3], [0]]]
    assert one.prototypes["means"].vectors.tolist() == [[[[1.5] * 3], [[0.0] * 3]]]
