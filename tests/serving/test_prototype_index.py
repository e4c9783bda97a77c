"""The nearest prototype of a pool, and the pool as a file."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.prototypes import Prototypes, nearest_class
from protofed.serving import prototype_index as module
from protofed.serving.prototype_index import PrototypeIndex


def prototypes(*shape: int, empty: float = 0.3) -> Prototypes:
    """Random ones, some slots of which are empty."""
    draws = torch.Generator().manual_seed(len(shape) + shape[-1])
    counts = torch.randint(1, 9, shape[:-1], generator=draws).float()
    counts[torch.rand(shape[:-1], generator=draws) < empty] = 0
    return Prototypes(torch.randn(shape, generator=draws) * (counts > 0).unsqueeze(-1), counts)


def slowly(features: Tensor, pool: PrototypeIndex, top: int) -> list[list[tuple[float, int, int]]]:
    """Distance, class and slot of the nearest prototype of the nearest classes, one after the other."""
    found = []
    for z in features:
        classes = []
        for label in range(len(pool.clients)):
            slots = pool.prototypes.filled[label].nonzero().flatten().tolist()
            far = [(float((z - pool.prototypes.vectors[label, slot]).norm()), label, slot) for slot in slots]
            classes += [min(far)] if far else []
        found.append(sorted(classes)[:top])
    return found


@pytest.mark.parametrize("shape", [(1, 1, 3), (4, 1, 5), (5, 3, 2), (7, 6, 16)])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_nearest_is_what_a_slow_search_finds(
    shape: tuple[int, ...], offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = prototypes(*shape, empty=0.3 if shape[0] > 1 else 0)
    pool = PrototypeIndex.of(Prototypes((given.vectors + offset) * given.filled.unsqueeze(-1), given.counts))
    features = torch.randn(23, shape[-1], generator=torch.Generator().manual_seed(1)) + offset
    monkeypatch.setattr(module, "AT_ONCE", 5 * given.counts.numel())  # five queries at a time
    found = pool.nearest(features, top=3)
    assert found.classes[:, 0].tolist() == nearest_class(features, pool.prototypes).tolist()
    for row, expected in enumerate(slowly(features, pool, 3)):
        assert found.classes[row].tolist() == [label for _, label, _ in expected]
        assert found.slots[row].tolist() == [slot for *_, slot in expected]
        assert found.distances[row].tolist() == pytest.approx([far for far, *_ in expected], rel=1e-5)


def test_no_queries_are_no_answers() -> None:
    assert PrototypeIndex.of(prototypes(3, 2, 4)).nearest(torch.empty(0, 4), top=2).classes.shape == (0, 2)


def test_a_pool_of_clients_remembers_them() -> None:
    sets = prototypes(3, 4, 2, 5)
    members = torch.tensor([7, 2, 9])
    flat = PrototypeIndex.of_clients(sets, members).flat()
    assert len(flat["vectors"]) == int(sets.filled.sum())
    rows = zip(*(flat[name].tolist() for name in ("clients", "classes", "numbers")), strict=True)
    for vector, (client, label, number) in zip(flat["vectors"], rows, strict=True):
        assert torch.equal(vector, sets.vectors[members.tolist().index(client), label, number])


def test_the_file_gives_the_pool_back() -> None:
    pool = PrototypeIndex.of_clients(prototypes(3, 4, 2, 5), torch.tensor([7, 2, 9]))
    flat = pool.flat()
    shuffled = {name: tensor.flip(0) for name, tensor in flat.items()}
    again = PrototypeIndex.from_flat(flat, 4, 5)
    assert all(torch.equal(flat[name], tensor) for name, tensor in again.flat().items())
    features = torch.randn(9, 5)
    assert torch.equal(
        again.nearest(features).classes, PrototypeIndex.from_flat(shuffled, 4, 5).nearest(features).classes
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("vectors", torch.zeros(3, 4), "5 numbers each"),
        ("vectors", torch.full((3, 5), torch.nan), "finite"),
        ("vectors", torch.zeros(0, 5), "5 numbers each"),
        ("counts", torch.tensor([1.0, 0.0, 1.0]), "stand for something"),
        ("classes", torch.tensor([0, 1, 4]), "there are 4 classes"),
        ("classes", torch.tensor([0, 1, -1]), "there are 4 classes"),
        ("clients", torch.tensor([0, 1]), "a client and a number"),
    ],
)
def test_a_file_of_another_form_is_refused(name: str, value: Tensor, says: str) -> None:
    flat = {"vectors": torch.ones(3, 5), "counts": torch.ones(3)}
    flat |= {"classes": torch.arange(3), "clients": torch.arange(3), "numbers": torch.zeros(3, dtype=torch.int64)}
    PrototypeIndex.from_flat(flat, 4, 5)
    with pytest.raises(UserError, match=says):
        PrototypeIndex.from_flat(flat | {name: value}, 4, 5)
    del flat[name]
    with pytest.raises(UserError, match="must hold vectors"):
        PrototypeIndex.from_flat(flat, 4, 5)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_an_appended_class_comes_last(slots: int) -> None:
    pool, more = (
        PrototypeIndex.of_clients(prototypes(3, 4, 2, 5), torch.tensor([7, 2, 9])),
        prototypes(1, slots, 5, empty=0),
    )
    joined = pool.append(more)
    old, new = pool.flat(), joined.flat()
    number = len(old["classes"])
    assert all(torch.equal(new[name][:number], tensor) for name, tensor in old.items())
    assert torch.equal(new["vectors"][number:], more.vectors[0])
    assert new["classes"][number:].tolist() == [4] * slots
    assert new["clients"][number:].tolist() == [-1] * slots
