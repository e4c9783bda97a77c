"""What clients send to be added up: on the wire, screened, hidden, attacked and defended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.errors import RefusedError, UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Server, Summed
from protofed.prototypes import Prototypes
from protofed.trust.attacks import ATTACKS
from protofed.trust.defences import DEFENCES
from protofed.trust.dp_mechanisms import clipped_and_noised, lengths, private_sum
from protofed.trust.integer_noise import system_gaussian
from protofed.trust.screening import Schema, refusals, tensors_of, without
from protofed.trust.summation import summed, terms, upload_of
from tests.methods.contract.class_covariances import ClassCovariances
from tests.support.nets import assert_same_run, gap
from tests.support.prototype_cases import random_prototypes
from tests.support.whole_runs import run_of

SENT = Broadcast({"w": torch.zeros(3)})


def sums(seed: int, clients: int, **more: Tensor) -> dict[str, Tensor]:
    """A matrix, a number and whole numbers of each client."""
    rng = torch.Generator().manual_seed(seed)
    return {
        "products": torch.randn(clients, 2, 4, 4, generator=rng),
        "total": torch.randn(clients, generator=rng, dtype=torch.float64),
        "counts": torch.randint(0, 50, (clients, 5), generator=rng),
        **more,
    }


def uploads(seed: int, clients: int, **more: Tensor) -> Upload:
    """With weights, prototypes and numbers of samples beside them."""
    rng = torch.Generator().manual_seed(seed + 1)
    weights = {"w": torch.randn(clients, 3, generator=rng)}
    samples = torch.randint(1, 9, (clients,), generator=rng)
    sets = {"means": random_prototypes(clients, 3, 1, 4, seed=seed)}
    return Upload(weights, sets, {"samples": samples}, sums(seed, clients, **more))


def same(one: Upload, other: Upload) -> None:
    assert one.sums.keys() == other.sums.keys()
    assert_close(dict(one.sums), dict(other.sums), atol=0, rtol=0)


seeds = st.integers(0, 999)
quick = settings(max_examples=15, deadline=None)


@quick
@given(seed=seeds, clients=st.integers(1, 4))
def test_the_wire_brings_them_as_they_are_and_their_bytes_are_counted(seed: int, clients: int) -> None:
    several = uploads(seed, clients)
    for row in range(clients):
        one = several.client(row)
        same(Upload.decode(one.encode()), one)
        assert one.size() == len(one.encode())
        assert one.size() > replace(one, sums={}).size()
    assert several.sizes() == [several.client(row).size() for row in range(clients)]
    only = Upload(sums=several.sums)
    assert only.sizes() == [only.client(row).size() for row in range(clients)]


@quick
@given(seed=seeds, clients=st.integers(1, 4), more=st.integers(1, 3))
def test_groups_are_joined_and_reordered(seed: int, clients: int, more: int) -> None:
    groups = [uploads(seed, clients), uploads(seed + 5, more)]
    joined = Upload.join(groups)
    everyone = [group.client(row) for group in groups for row in range(len(group.sums["total"]))]
    for row, one in enumerate(everyone):
        same(joined.client(row), one)
    same(Upload.gather(everyone), joined)
    order = torch.randperm(clients + more, generator=torch.Generator().manual_seed(seed))
    back = joined.reorder(order)
    for place, row in enumerate(order.tolist()):
        same(back.client(place), everyone[row])


def test_a_server_sends_none() -> None:
    with pytest.raises(UserError, match=r"'a, b' for sums of a broadcast: a server sends numbers"):
        Broadcast(sums={"a": torch.ones(1), "b": torch.ones(1)})


# Screening.


@pytest.mark.parametrize("name", ["products", "total", "counts"])
def test_a_sum_far_longer_than_the_others_is_rejected_where_lengths_are_compared(name: str) -> None:
    several = uploads(0, 5, total=torch.ones(5, dtype=torch.float64))
    changed = {**several.sums, name: several.sums[name].clone()}
    changed[name][3] *= 100_000
    far = replace(several, sums=changed)
    assert refusals(several, SENT, None, lengths=True) == {}
    assert refusals(far, SENT, None, lengths=True) == {3: "its sums are far longer than the others'"}
    assert refusals(far, SENT, None) == {}
    same(without(far, {3}), several.reorder(torch.tensor([0, 1, 2, 4])))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["products", "total"])
def test_a_sum_that_is_not_finite_is_rejected(bad: float, name: str) -> None:
    several = uploads(0, 4)
    several.sums[name].view(4, -1)[2, 0] = bad
    for compared in (True, False):
        assert refusals(several, SENT, None, compared) == {2: "it holds a number that is not finite"}
    only = Upload(sums={name: several.sums[name]})
    assert refusals(only, SENT, None) == {2: "it holds a number that is not finite"}


def test_the_form_of_sums_is_that_of_the_method() -> None:
    one = uploads(0, 2).client(0)
    schema = Schema.of(one)
    same(Upload.from_flat(schema.check(tensors_of(one.encode()))), Upload.decode(one.encode()))
    for wrong in (
        {**one.sums, "more": torch.ones(1)},
        {name: tensor for name, tensor in one.sums.items() if name != "total"},
        {**one.sums, "products": one.sums["products"][:1]},
        {**one.sums, "counts": one.sums["counts"].double()},
        {**one.sums, "products": one.sums["products"] * torch.nan},
    ):
        with pytest.raises(RefusedError):
            schema.check(tensors_of(replace(one, sums=wrong).encode()))


# Secure summation.


@quick
@given(seed=seeds, clients=st.integers(1, 5))
def test_what_is_summed_securely_is_the_sum(seed: int, clients: int) -> None:
    several = uploads(seed, clients)
    found = terms(several, Summed())
    for name, tensor in several.sums.items():
        assert torch.equal(found[f"sums/{name}"], tensor)
    total = upload_of({path: tensor.sum(0) for path, tensor in found.items()}, clients)
    for name, tensor in several.sums.items():
        assert torch.equal(total.sums[name], tensor.sum(0, keepdim=True))
    assert upload_of({}, clients).sums == {}


def test_a_server_makes_of_the_sum_what_it_makes_of_all() -> None:
    method, clock = ClassCovariances(), Clock(0, 3, (0, 1, 2), 3)
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(3, 20, 4, generator=rng, dtype=torch.float64)
    member = torch.nn.functional.one_hot(torch.randint(0, 3, (3, 20), generator=rng), 4).double()
    products = torch.einsum("nbc,nbi,nbj->ncij", member, z, z)
    weights = {"w": torch.randn(3, 2, generator=rng, dtype=torch.float64)}
    each = Upload(
        weights,
        {},
        {"samples": torch.tensor([3, 4, 5])},
        {"numbers": member.sum(1), "features": member.mT @ z, "products": products},
    )
    found = terms(each, summed(method, "--secure"))
    together = upload_of({path: tensor.sum(0) for path, tensor in found.items()}, 3)
    one, other = (method.aggregate(some, Server(Broadcast(), clock)) for some in (each, together))
    assert_close(dict(one.numbers), dict(other.numbers))
    assert_close(dict(one.weights), dict(other.weights))


# Privacy.


def private(**options: Any) -> Experiment:
    return Experiment(**{"privacy": "client", "clip": None, "noise": 0.0, **options})


@quick
@given(seed=seeds, clients=st.integers(1, 40))
def test_without_clip_and_noise_it_is_the_plain_sum_to_the_bit(seed: int, clients: int) -> None:
    several = uploads(seed, clients)
    found = private_sum(several, SENT, clients, private(), 0).sums
    for name, tensor in several.sums.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor.sum(0, keepdim=True))


@quick
@given(seed=seeds, size=st.floats(0.01, 100), clip=st.floats(0.1, 5))
def test_no_client_moves_a_sum_by_more_than_the_clip(seed: int, size: float, clip: float) -> None:
    several = uploads(seed, 4)
    several = replace(several, sums={n: size * t for n, t in several.sums.items() if t.is_floating_point()})
    asked = private(clip=clip)
    whole, others = (private_sum(some, SENT, 4, asked, 0).sums for some in (several, several.reorder(torch.arange(3))))
    moved = sum(float((whole[name] - others[name]).double().square().sum()) for name in whole)
    assert moved**0.5 <= clip * (1 + 1e-5)
    norms = lengths(several, SENT, clip)
    scale = float((clip / norms[3]).clamp(max=1))
    assert_close(whole["total"] - others["total"], scale * several.sums["total"][3:], atol=1e-9, rtol=1e-6)


def test_sums_of_whole_numbers_are_clipped_as_numbers_and_rounded() -> None:
    several = Upload(sums={"counts": torch.tensor([[30, 40], [3, 4]])})  # of length 50 and 5
    (found,) = private_sum(several, SENT, 2, private(clip=25.0), 0).sums.values()
    assert found.tolist() == [[18, 24]]
    sent = clipped_and_noised(several.reorder(torch.tensor([0])), SENT, 25.0, 0.0, system_gaussian)
    assert sent.sums["counts"].tolist() == [[15, 20]]
    assert sent.sums["counts"].dtype == torch.int64


def test_the_noise_of_a_sum_has_its_scale() -> None:
    several = Upload(sums={"products": torch.zeros(3, 100, 100), "total": torch.zeros(3)})
    found = private_sum(several, SENT, 3, private(clip=2.0, noise=3.0), 0).sums
    assert abs(float(found["products"].std()) - 6.0) < 0.2
    again, other = (private_sum(several, SENT, 3, private(clip=2.0, noise=3.0), n).sums for n in (0, 1))
    assert torch.equal(found["products"], again["products"])
    assert not torch.equal(found["products"], other["products"])


def test_an_owner_clips_and_noises_sums_with_the_rest() -> None:
    one = replace(uploads(3, 1), sums={"products": torch.full((1, 2, 2), 3.0), "total": torch.tensor([4.0])})
    found = clipped_and_noised(one, SENT, 1.0, 0.0, system_gaussian)
    held = (one.prototypes["means"].counts > 0).unsqueeze(-1)
    parts = [found.weights["w"], found.prototypes["means"].vectors * held, *found.sums.values()]
    assert_close(sum(float(part.double().square().sum()) for part in parts), 1.0)
    assert_close(found.sums["products"] / found.sums["total"], one.sums["products"] / one.sums["total"])


def test_client_level_privacy_runs_a_method_with_sums() -> None:
    plain, hidden = (
        run_of(ClassCovariances(averaging="uniform"), "stacked", **options)
        for options in ({"participation": 1.0}, {"participation": 1.0, "privacy": "client"})
    )
    assert gap(plain.state(), hidden.state()) < 1e-12
    with pytest.raises(UserError, match="its clients also send: features, numbers, products"):
        run_of(ClassCovariances(), "sequential", privacy="example", clip=1.0)


# Attacks and defences.


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_change_sums_as_they_say(name: str) -> None:
    several, who = uploads(0, 4), (1, 3)
    attack = ATTACKS[name](who, 0)
    found = attack.send(several, SENT, Clock(0, 3, (0, 1, 2, 3), 4), {})
    factor = {"sign-flip": -1, "free-rider": 0}.get(name, 1)
    for part, tensor in several.sums.items():
        expected = tensor.clone()
        expected[list(who)] *= factor
        assert torch.equal(found.sums[part], expected)
        assert found.sums[part].dtype == tensor.dtype


def test_stale_sums_are_sent_again() -> None:
    attack, memory = ATTACKS["stale-replay"]((1,), 0), dict[str, Tensor]()
    first, second = uploads(0, 3), uploads(7, 3)
    attack.send(first, SENT, Clock(0, 3, (0, 1, 2), 3), memory)
    found = attack.send(second, SENT, Clock(1, 3, (0, 1, 2), 3), memory)
    for name in found.sums:
        assert torch.equal(found.sums[name][1], first.sums[name][1])
        assert torch.equal(found.sums[name][[0, 2]], second.sums[name][[0, 2]])


@pytest.mark.parametrize("name", ATTACKS)
def test_who_sends_sums_alone_can_attack_too(name: str) -> None:
    several = Upload(sums=sums(0, 3))
    found = ATTACKS[name]((1,), 0).send(several, SENT, Clock(0, 3, (0, 1, 2), 3), {})
    assert {n: t.shape for n, t in found.sums.items()} == {n: t.shape for n, t in several.sums.items()}


@pytest.mark.parametrize("name", DEFENCES)
def test_a_defence_leaves_sums_of_those_it_does_not_suspect(name: str) -> None:
    several = uploads(0, 6)
    alike = replace(several, weights={"w": torch.ones(6, 3)}, prototypes=_alike(several.prototypes["means"]))
    found, suspected, _ = DEFENCES[name](alike, SENT)
    assert not suspected
    same(found, alike)
    same(DEFENCES[name](Upload(sums=several.sums), SENT).uploads, Upload(sums=several.sums))


def test_sums_of_a_suspect_are_zero() -> None:
    several = uploads(0, 6)
    weights = torch.ones(6, 3)
    weights[2] *= -5
    alike = replace(several, weights={"w": weights}, prototypes=_alike(several.prototypes["means"]))
    found, suspected, _ = DEFENCES["outliers"](alike, SENT)
    assert list(suspected) == [2]
    for name, tensor in several.sums.items():
        assert not found.sums[name][2].any()
        others = [0, 1, 3, 4, 5]
        assert torch.equal(found.sums[name][others], tensor[others])


def _alike(found: Prototypes) -> dict[str, Prototypes]:
    return {"means": Prototypes(found.vectors[:1].expand_as(found.vectors), torch.ones_like(found.counts))}


def test_an_attacked_and_defended_run_is_the_same_in_both_engines() -> None:
    options: dict[str, Any] = {"participation": 1.0, "attack": "sign-flip", "attackers": 0.2, "defence": "outliers"}
    runs = [run_of(ClassCovariances(), engine, **options) for engine in ("sequential", "stacked")]
    assert_same_run(runs[0], runs[1])
