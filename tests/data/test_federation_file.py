"""A federation as a file: what is read is what was written, and nothing else is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from protofed.data import Federation, federate
from protofed.data.build import drift_of, federation_of
from protofed.data.federation_file import KIND, read_federation, write_federation
from protofed.data.preparation import Preparation
from protofed.data.samples import Samples
from protofed.errors import UserError
from protofed.experiment import Experiment
from tests.support.toy_data import PLAIN, toy


def whole() -> Federation:
    """With everything that one may have."""
    dataset = replace(toy(12, domains=2), novel=None)
    found = federate(dataset, PLAIN, 3, 0, 0.2)
    novel = Samples.of(torch.zeros(4, *found.clients[0].train.x.shape[1:], dtype=torch.uint8), torch.arange(4))
    clients = (
        *found.clients[:2],
        replace(found.clients[2], validation=None, preparation=Preparation("pixels", (0.1,), (1 / 3,))),
    )
    return replace(found, clients=clients, novel=novel)


def same(one: Samples | None, other: Samples | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(torch.equal(getattr(one, part), getattr(other, part)) for part in ("x", "labels", "domains"))


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    written = whole()
    write_federation(written, tmp_path / "federation.safetensors")
    read = federation_of(Experiment(dataset=f"{KIND}{tmp_path / 'federation.safetensors'}"))
    assert (read.classes, read.domains) == (written.classes, written.domains)
    assert same(read.novel, written.novel)
    for mine, theirs in zip(read.clients, written.clients, strict=True):
        assert same(mine.train, theirs.train)
        assert same(mine.validation, theirs.validation)
        assert torch.equal(mine.own, theirs.own)
        assert mine.preparation == theirs.preparation
    assert len({id(client.pool) for client in read.clients}) == 1  # they are tested together
    assert same(read.clients[0].pool, written.clients[0].pool)


def test_a_federation_of_which_some_are_elsewhere_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="elsewhere"):
        write_federation(replace(whole(), numbers=(0, 1, 2), size=9), tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, "it must hold names and values"),
        ('{"clients": []}', "does not say"),
        ('{"clients": [], "classes": ["a"], "domains": ["b"], "novel": null, "encoding": null}', "at least one"),
        (
            '{"clients": [{"train": 7, "pool": 0, "validation": null, "preparation": {}}],'
            ' "classes": ["a"], "domains": ["b"], "novel": null, "encoding": null}',
            "7/x",
        ),
        ("[[", "cannot be read as a federation"),
    ],
)
def test_a_file_that_is_none_is_one_error(tmp_path: Path, said: str | None, message: str) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "file", None if said is None else {"federation": said})
    with pytest.raises(UserError, match=message):
        read_federation(tmp_path / "file")


def test_a_file_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read as a federation"):
        read_federation(tmp_path / "file")
    with pytest.raises(UserError, match="only that one has"):
        federation_of(Experiment(dataset="session:nothing"))


def test_what_is_about_data_that_is_divided_is_refused(tmp_path: Path) -> None:
    write_federation(whole(), tmp_path / "file")
    with pytest.raises(UserError, match="stays as it is"):
        drift_of(Experiment(dataset=f"{KIND}{tmp_path / 'file'}", drift="sudden"))
