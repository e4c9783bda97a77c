"""Local training is what FedProto without its term and FedPer of one client come to."""

from __future__ import annotations

from protofed.methods.fedper import FedPer
from protofed.methods.local import Local
from tests.support.nets import federation, gap, own, play
from tests.support.whole_runs import Restless, run_of


def test_without_its_term_fedproto_trains_exactly_as_local() -> None:
    assert gap(own(play("fedproto", {"lam": 0})), own(play("local"))) == 0


def test_fedper_with_one_client_is_local_training() -> None:
    clients = federation([{0: 9, 1: 10}], test=30)
    alone, personal = (run_of(method, "sequential", 3, Restless, clients=clients) for method in (Local(), FedPer()))
    assert gap(own(alone), own(personal)) < 1e-14
