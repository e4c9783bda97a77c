"""What crosses the line: the wire form, its size in bytes, and the papers' counts of what each method sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor
from torch.testing import assert_close

from protofed.messages import Broadcast, Message, Upload
from protofed.methods import METHODS
from protofed.methods.base import Clock
from protofed.models import parameter_count
from protofed.prototypes import Prototypes
from tests.support.nets import Noisy, Part, Plain, federation, one_of_each_kind, play
from tests.support.prototype_cases import random_prototypes

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**16)


def message(shape: tuple[int, ...], seed: int, empty: float = 0.5) -> Broadcast:
    """Weights of several types, two sets of prototypes and two numbers."""
    rng = torch.Generator().manual_seed(seed)
    weights = {
        "body.0.weight": torch.randn(3, 2, 2, generator=rng),
        "head.bias": torch.randn(4, generator=rng, dtype=torch.float64),
        "norm.batches": torch.randint(0, 99, (), generator=rng),
    }
    second = random_prototypes(3, 1, 2, seed=seed)
    few = Prototypes(second.vectors.float(), second.counts.float())
    sets = {"pool": random_prototypes(*shape, seed=seed, empty=empty), "a/b": few}
    return Broadcast(weights, sets, {"samples": torch.tensor(7), "rates": torch.randn(2, generator=rng)})


def assert_same(a: Message, b: Message) -> None:
    for part in ("weights", "prototypes", "numbers"):
        left, right = getattr(a, part), getattr(b, part)
        assert left.keys() == right.keys()
        for name in left:
            assert_close(left[name], right[name], atol=0, rtol=0)


shapes = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)),
)


@quick
@given(shape=shapes, seed=seeds, empty=st.sampled_from([0.0, 0.5, 1.0]))
def test_a_message_survives_the_wire(shape: tuple[int, ...], seed: int, empty: float) -> None:
    sent = message(shape, seed, empty)
    wire = save(sent.flat())
    assert_same(Broadcast.from_flat(load(wire)), sent)
    assert isinstance(Broadcast.from_flat(load(wire)), Broadcast)
    assert sent.size() == len(wire)


@quick
@given(shape=shapes, seed=seeds)
def test_empty_slots_are_not_sent(shape: tuple[int, ...], seed: int) -> None:
    prototypes = random_prototypes(*shape, seed=seed)
    flat = Broadcast({}, {"pool": prototypes}).flat()
    assert flat["prototypes/pool/vectors"].shape == (int(prototypes.filled.sum()), shape[-1])
    wider = prototypes.widen(shape[-2] + 3)
    assert Broadcast({}, {"pool": wider}).size() == Broadcast({}, {"pool": prototypes}).size()


def test_an_empty_message_is_not_sent() -> None:
    assert Upload().size() == Broadcast().size() == 0
    assert Broadcast().flat() == {}
    assert_same(Broadcast.from_flat({}), Broadcast())
    nothing = Broadcast({}, {"pool": random_prototypes(3, 2, 4, seed=0, empty=1.0)})
    assert nothing.size() == len(save(nothing.flat())) > 0  # that there is nothing has to be said


def test_size_grows_by_the_bytes_of_what_is_added() -> None:
    one, two = (Broadcast({"w": torch.zeros(n)}) for n in (1000, 3000))
    assert two.size() - one.size() == 4 * 2000
    double = Broadcast({"w": torch.zeros(1000, dtype=torch.float64)})
    assert double.size() - one.size() == 4 * 1000


def uploads(seed: int, clients: int, slots: int) -> Upload:
    rng = torch.Generator().manual_seed(seed)
    return Upload(
        {"w": torch.randn(clients, 2, 3, generator=rng)},
        {"local": random_prototypes(clients, 3, slots, 2, seed=seed)},
        {"samples": torch.randint(1, 9, (clients,), generator=rng)},
    )


def test_groups_with_different_slots_join_without_losing_any() -> None:
    groups = [uploads(0, 2, 1), uploads(1, 3, 4), uploads(2, 1, 2)]
    joined = Upload.join(groups)
    assert joined.prototypes["local"].counts.shape == (6, 3, 4)
    everyone = [(group, row) for group in groups for row in range(len(group.numbers["samples"]))]
    for position, (group, row) in enumerate(everyone):
        result, expected = joined.client(position), group.client(row)
        assert torch.equal(result.weights["w"], expected.weights["w"])
        assert torch.equal(result.numbers["samples"], expected.numbers["samples"])
        assert_close(result.prototypes["local"].compact(), expected.prototypes["local"].compact(), atol=0, rtol=0)
        assert result.size() == expected.size()


@quick
@given(seed=seeds, clients=st.integers(1, 4), slots=st.integers(1, 3))
def test_the_sizes_of_all_are_those_of_each(seed: int, clients: int, slots: int) -> None:
    several = uploads(seed, clients, slots)
    two = Upload(several.weights, {**several.prototypes, "more": random_prototypes(clients, 2, 2, 3, seed=seed + 1)})
    for each in (
        several,
        two,
        Upload({}, several.prototypes),
        Upload(several.weights),
        Upload({}, {}, several.numbers),
    ):
        assert each.sizes() == [each.client(row).size() for row in range(clients)]
    assert Upload().sizes() == []


DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


@quick
@given(
    tensors=st.dictionaries(
        st.text(st.sampled_from('aZ0./"\\é☃\n'), min_size=1, max_size=30),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 12), max_size=4)),
        min_size=1,
        max_size=8,
    )
)
def test_the_size_is_that_of_the_file_that_safetensors_writes(
    tensors: dict[str, tuple[torch.dtype, list[int]]],
) -> None:
    sent = Broadcast({name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in tensors.items()})
    assert sent.size() == len(save(sent.flat()))


def test_a_copy_on_the_host_is_a_copy() -> None:
    sent = message((2, 3, 2), 0)
    sent = Broadcast(sent.weights, sent.prototypes, sent.numbers, kept={"cache": torch.arange(3)})
    copy = sent.on_host()
    assert_same(copy, sent)
    assert_close(dict(copy.kept), dict(sent.kept))
    for tensors in (sent.weights, sent.numbers, sent.kept):
        for value in tensors.values():
            value.zero_()
    sent.prototypes["pool"].vectors.zero_()
    again = message((2, 3, 2), 0)
    assert_same(copy, again)
    assert copy.kept["cache"].tolist() == [0, 1, 2]


def test_changes_are_a_row_a_client_whatever_the_shape() -> None:
    weights = {"matrix": torch.ones(2, 3, 4), "number": torch.tensor([5.0, 7.0]), "steps": torch.tensor([1, 2])}
    sent = Broadcast({"number": torch.tensor(4.0), "steps": torch.tensor(0)}, {})
    changes = Upload(weights, {}, {}).changes(sent)
    assert {name: list(rows.shape) for name, rows in changes.items()} == {"matrix": [2, 12], "number": [2, 1]}
    assert changes["number"].tolist() == [[1], [3]]


def test_reordering_moves_everything_of_a_client() -> None:
    before = uploads(3, 4, 2)
    after = before.reorder(torch.tensor([2, 0, 3, 1]))
    for position, row in enumerate([2, 0, 3, 1]):
        assert_same(after.client(position), before.client(row))
    assert_same(Upload.join([before]), before)


def test_clients_of_different_groups_come_back_in_client_order() -> None:
    """Models are dealt in blocks, but datasets and inputs may group clients in any way."""
    together = federation([{0: 12}, {1: 12}, {2: 12}, {3: 12}], test=30)
    other = federation([{0: 12}, {1: 12}, {2: 12}, {3: 12}], test=30)
    mixed = type(together)(
        (together.clients[0], other.clients[1], together.clients[2], other.clients[3]), together.classes
    )
    run = play("fedproto", clients=mixed, rounds=0, model=Plain)
    assert [group.members for group in run.engine.groups] == [(0, 2), (1, 3)]
    upload = run.engine.round([0, 1, 2], run.broadcast, Clock(0, 1)).uploads
    assert upload.prototypes["means"].present.nonzero()[:, 1].tolist() == [0, 1, 2]


def floats(flat: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in flat.values() if tensor.is_floating_point())


PARTS: tuple[Part, ...] = ({0: 9, 1: 8}, {0: 3, 2: 7, 3: 9}, {4: 10})
C_K, C, D, K = [2, 3, 1], 5, 6, 2
HEAD = 6 * D + 6


def expected_scalars(method: str, w: int) -> tuple[list[int], int]:
    """What each client sends, and what the server sends to one; empty slots are not sent."""
    return {
        "local": ([0, 0, 0], 0),
        "fedavg": ([w, w, w], w),
        "fedprox": ([w, w, w], w),
        "fedproto": ([c * D for c in C_K], C * D),
        "mp-fedcl": ([w + K * c * D for c in C_K], w + K * sum(C_K) * D),
        "sp-fedcl": ([w + c * D for c in C_K], w + sum(C_K) * D),
        "fedsc": ([w + c * D for c in C_K], w + (sum(C_K) + C) * D),
        "fedper": ([w - HEAD] * 3, w - HEAD),
        "fedrep": ([w - HEAD] * 3, w - HEAD),
        "fesem": ([w] * 3, w),
        "moon": ([w] * 3, w),
        "fedproc": ([w + c * D for c in C_K], w + C * D),
        "fedpcl": ([c * D for c in C_K], (sum(C_K) + C) * D),
        "fpl": ([w + c * D for c in C_K], w + C * D),  # at most two means a class: one cluster
        "fedntd": ([w] * 3, w),
        "fednh": ([w + c * D for c in C_K], w + 6 * D),  # its classifier has a row for each of the six classes
        "fedrcl": ([w] * 3, w),
        "fedcda": ([w + 1] * 3, w),
        "fedbn": ([w] * 3, w),  # of a model without BatchNorm
        "lg-fedavg": ([HEAD] * 3, HEAD),
        "fedbabu": ([w - HEAD] * 3, w),
        "fedlc": ([w] * 3, w),
        "fedrod": ([w - HEAD] * 3, w - HEAD),  # without the private head
        "fedetf": ([w] * 3, w),
        "fednova": ([w + 1] * 3, w),  # and ‖a_i‖₁
        "scaffold": ([2 * w] * 3, 2 * w),  # control variates are as large as the model
        "feddyn": ([w] * 3, w),
        "ditto": ([w // 2] * 3, w // 2),  # of its two models one
        "fedheal": ([w] * 3, w),  # and which updates are kept, which are no numbers
        "fedgh": ([c * D for c in C_K], HEAD),
        "fedtgp": ([c * D for c in C_K], C * D),
        "fedncm": ([6 * D + 6] * 3, HEAD),  # sums have all six classes
        "fed3r": ([(D + 1) ** 2 + 6 * (D + 1)] * 3, HEAD),
        "fedcof": ([c * D for c in C_K], HEAD),
        "fedpac": ([w + c * D + 6 * D + 1 for c in C_K], w + C * D),
        "ccvr": ([w + 6 * (1 + D + D**2)] * 3, w),
        "fccl-plus": ([w] * 3, w),  # and what goes to and fro about public images, tested with the method
    }[method]


# What DBSCAN and FINCH find is not known beforehand: they have tests of their own.
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("dp-fedcl", "fedplvm", "fedplcc")])
def test_methods_send_as_many_scalars_as_the_papers_count(method: str) -> None:
    params = {"personal": "head"} if method in ("fedper", "fedrep") else None
    run = play(method, params, clients=federation(PARTS, test=30), rounds=1, model=Plain, participation=1.0)
    up, down = expected_scalars(method, parameter_count(run.engine.groups[0].module))
    upload = run.engine.round([0, 1, 2], run.broadcast, Clock(1, 2, (0, 1, 2), 3)).uploads
    assert [floats(upload.client(row).flat()) for row in range(3)] == up
    assert floats(run.method.send(run.broadcast, 0).flat()) == down


def test_with_every_class_everywhere_mp_fedcl_sends_the_whole_grid() -> None:
    clients = federation([dict.fromkeys(range(4), 5)] * 3, classes=4, test=30)
    run = play("mp-fedcl", {"k": 3}, clients=clients, rounds=1, model=Plain, participation=1.0)
    assert floats(run.broadcast.flat()) == parameter_count(run.engine.groups[0].module) + 3 * 3 * 4 * D


def test_dp_fedcl_sends_the_clusters_it_found() -> None:
    clients = federation(PARTS, test=30)
    run = play("dp-fedcl", {"eps": 0.1, "min_samples": 2}, clients=clients, rounds=1, model=Plain, participation=1.0)
    upload = run.engine.round([0, 1, 2], run.broadcast, Clock(1, 2)).uploads
    found = upload.prototypes["local"].filled.sum((1, 2)).tolist()
    assert sum(found) > sum(C_K)  # some class has more than one region
    w = parameter_count(run.engine.groups[0].module)
    assert [floats(upload.client(row).flat()) for row in range(3)] == [w + n * D for n in found]


@pytest.mark.parametrize("precision", ["float32", "float64"])
@one_of_each_kind
def test_reported_bytes_are_the_bytes_of_the_serialised_messages(method: str, precision: str) -> None:
    run = play(method, rounds=0, model=Noisy, precision=precision)
    for number in range(2):
        sent = run.broadcast
        again: Any = play(method, rounds=number, model=Noisy, precision=precision)
        line = run.play_round()
        clock = Clock(number, 1, tuple(line.participants), 5)
        outcome = again.engine.round(line.participants, again.broadcast, clock)
        upload = outcome.uploads
        wires = [save(upload.client(row).flat()) if upload.client(row).flat() else b"" for row in range(3)]
        messages = [run.method.send(sent, client).flat() for client in line.participants]
        down = [save(message) if message else b"" for message in messages]
        if method == "fccl-plus":  # its clients also exchange what they make of public images
            assert line.bytes_up > sum(map(len, wires))
            assert line.bytes_down > sum(map(len, down))
        else:
            assert (line.bytes_up, line.bytes_down) == (sum(map(len, wires)), sum(map(len, down)))
            assert (line.bytes_up, line.bytes_down) == (outcome.traffic.up, outcome.traffic.down)
    assert (line.bytes_up == 0) == (method == "local")
    assert_same(Broadcast.from_flat(run.broadcast.flat()), run.broadcast)


def test_nothing_is_sent_that_a_method_does_not_share() -> None:
    run = play("fedproto", rounds=2, model=Noisy)
    assert not run.broadcast.weights
    assert run.history[0].bytes_down == 0  # there are no prototypes yet
    assert 0 < run.history[1].bytes_up < play("fedavg", rounds=1, model=Noisy).history[0].bytes_up
