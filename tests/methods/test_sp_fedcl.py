"""SP-FedCL: it sends class means, and it is MP-FedCL with one prototype."""

from __future__ import annotations

from protofed.methods import build_method
from tests.support.nets import gap, play
from tests.support.trained_clients import assert_class_means, trained
from tests.support.turns import turn_of


def test_class_means_are_the_loop() -> None:
    clients = trained(4)
    assert_class_means(build_method("sp-fedcl", {}).upload(clients, turn_of(clients)).prototypes["local"], clients)


def test_sp_fedcl_is_mp_fedcl_with_one_prototype() -> None:
    single, multiple = play("sp-fedcl"), play("mp-fedcl", {"k": 1})
    assert gap(single.state(), multiple.state()) < 1e-12
    assert [line.per_client for line in single.history] == [line.per_client for line in multiple.history]
    assert gap(single.state(), play("mp-fedcl", {"k": 2}).state()) > 1e-5
