"""The page of a playground, without a browser."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import protofed
from protofed.data import load
from protofed.errors import UserError
from protofed.report.playground import build, network_of, write_playground
from protofed.report.playground.content import gather_playground
from protofed.report.playground.runtime import Runtime
from protofed.serving.add_class import read_held_out
from protofed.serving.predictor import Predictor
from tests.support.command_line import TINY, invoke, refused, succeed

FAKE = Runtime("globalThis.ort={};\n", b"\0asm")
EVIL = "</script><img src=x>"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of digits with examples."""
    place = tmp_path_factory.mktemp("page")
    succeed(place, "run", *TINY, "--method", "mp-fedcl", "--out", "run", "--quiet")
    succeed(place, "export", "run", "--examples", "1", "--out", "model")
    return place / "model"


@pytest.fixture(scope="module")
def predictor(model: Path) -> Predictor:
    """The same, read."""
    return protofed.load(model)


def unpacked(page: str) -> dict[str, Any]:
    """What a page holds: its JSON, with arrays for what is packed."""
    told: dict[str, Any] = json.loads(re.findall(r'<script id="data"[^>]*>(.*?)</script>', page, re.DOTALL)[0])
    packed = re.findall(r'<script id="packed"[^>]*>(.*?)</script>', page, re.DOTALL)[0]
    content = gzip.decompress(base64.b64decode(packed))
    parts = told.pop("parts").items()
    return told | {name: np.frombuffer(content[begin : begin + size], kind) for name, (kind, begin, size) in parts}


def test_the_page_holds_the_model(model: Path, predictor: Predictor, tmp_path: Path) -> None:
    held_out = read_held_out(model, predictor.card.feature_size)
    path = write_playground(predictor, held_out, b"network", FAKE, tmp_path / "new" / "page", load("digits"))
    assert [file.name for file in path.parent.iterdir()] == ["index.html"]
    held = unpacked(path.read_text(encoding="utf-8"))
    flat, size = predictor.pool.flat(), predictor.card.feature_size
    assert (held["wasm"].tobytes(), held["network"].tobytes()) == (FAKE.wasm, b"network")
    np.testing.assert_array_equal(held["vectors"].reshape(-1, size), flat["vectors"].numpy())
    assert held["prototypes"]["classes"] == flat["classes"].tolist()
    assert held["prototypes"]["clients"] == flat["clients"].tolist()
    assert held["refusal"] == predictor.card.refusal["nearest"]
    found = predictor.pool.nearest(held_out["features"])
    np.testing.assert_array_equal(held["held_far"], found.distances[:, 0].numpy())
    assert held["held_right"].tolist() == (found.classes[:, 0] == held_out["labels"]).int().tolist()
    test = load("digits").test
    assert [pick["class"] for pick in held["picks"]] == [digit for digit in "0123456789" for _ in range(3)]
    first = test.x[(test.labels == 0).nonzero()[0]]
    assert held["picked"][:64].tolist() == first.flatten().tolist()


def test_each_prototype_has_the_nearest_training_picture_of_its_class(predictor: Predictor) -> None:
    examples, flat = predictor.examples, predictor.pool.flat()
    assert examples is not None
    held = gather_playground(predictor, nothing_held(predictor), None).about
    for vector, label, row in zip(flat["vectors"], flat["classes"], held["prototypes"]["samples"], strict=True):
        same = (examples.labels == label).nonzero().flatten()
        assert row == int(same[(examples.features[same] - vector).norm(dim=-1).argmin()])


def nothing_held(predictor: Predictor) -> dict[str, torch.Tensor]:
    return {"features": torch.empty(0, predictor.card.feature_size), "labels": torch.empty(0, dtype=torch.int64)}


def test_training_pictures_are_picked_from_where_no_others_are_given(predictor: Predictor) -> None:
    examples = predictor.examples
    assert examples is not None
    content = gather_playground(predictor, nothing_held(predictor), None)
    assert {pick["client"] for pick in content.about["picks"]} == {*examples.clients.tolist()}
    assert content.about["placement"]["fill"] == 1.0  # as digits have it
    bare = Predictor(predictor.card, predictor.state, predictor.pool)
    alone = gather_playground(bare, nothing_held(predictor), None)
    assert (alone.about["picks"], alone.about["samples"]) == ([], None)
    assert alone.about["placement"]["by_mass"]  # as MNIST has it


def test_pictures_of_another_size_are_fitted(predictor: Predictor) -> None:
    content = gather_playground(predictor, nothing_held(predictor), load("digit-domains", train_size=50))
    assert content.tensors["picked"].shape[1:] == predictor.card.shape


def test_a_set_of_many_classes_gives_few_pictures(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protofed.report.playground.content.PICKED_BYTES", 7 * 64)
    content = gather_playground(predictor, nothing_held(predictor), load("digits"))
    assert [pick["class"] for pick in content.about["picks"]] == [*"0123456"]


def test_the_policy_allows_what_is_on_the_page_and_no_more(predictor: Predictor) -> None:
    page = build.playground_page(gather_playground(predictor, nothing_held(predictor), None), b"n", FAKE)
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[0].replace("&#39;", "'")
    scripts = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digests = [
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in (*scripts, style)
    ]
    assert policy.split("; ") == [
        "default-src 'none'",
        f"script-src {digests[0]} {digests[1]} 'wasm-unsafe-eval'",
        f"style-src {digests[2]}",
        "img-src data:",
        "connect-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert not re.search(r'\s(style|on\w+)="', page.partition("<body>")[2].partition("<script")[0])


def test_names_end_no_script(predictor: Predictor) -> None:
    card = dataclasses.replace(predictor.card, classes=[EVIL, *predictor.card.classes[1:]])
    card.data["dataset"] = EVIL
    named = Predictor(card, predictor.state, predictor.pool)
    page = build.playground_page(gather_playground(named, nothing_held(named), None), b"n", FAKE)
    assert EVIL not in page
    assert unpacked(page)["classes"][0] == EVIL


def test_the_same_model_gives_the_same_page(predictor: Predictor) -> None:
    pages = {
        build.playground_page(gather_playground(predictor, nothing_held(predictor), None), b"n", FAKE) for _ in range(2)
    }
    assert len(pages) == 1


def test_the_network_is_that_of_the_folder_or_made(
    model: Path, predictor: Predictor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "can_write_onnx", lambda: False)
    with pytest.raises(UserError, match=r"it has no model\.onnx, and what makes one is not installed") as caught:
        network_of(model, predictor)
    assert "protofed[onnx]" in str(caught.value.hint)
    (tmp_path / "model.onnx").write_bytes(b"made before")
    assert network_of(tmp_path, predictor) == b"made before"
    monkeypatch.setattr(build, "can_write_onnx", lambda: True)
    monkeypatch.setattr(build, "write_onnx", lambda _, path: path.write_bytes(b"made now"))
    assert network_of(model, predictor) == b"made now"


def test_only_pictures_can_be_drawn(model: Path, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "rows.npz", x=np.random.default_rng(0).normal(size=(60, 5)).astype("f4"), labels=np.arange(60) % 2
    )
    succeed(
        tmp_path,
        "run",
        "--dataset",
        "npz:rows.npz",
        "--method",
        "fedproto",
        "--clients",
        "2",
        "--model",
        "mlp",
        "--rounds",
        "1",
        "--out",
        "run",
        "--quiet",
    )
    succeed(tmp_path, "export", "run", "--out", "rows")
    said = refused(invoke(tmp_path, "playground", "rows", "--out", "page"))
    assert "it is not of pictures, which alone can be drawn" in said
    with pytest.raises(UserError, match="it holds no pictures"):
        gather_playground(
            protofed.load(model), nothing_held(protofed.load(model)), load(f"npz:{tmp_path / 'rows.npz'}")
        )
    assert not (tmp_path / "page").exists()


def test_a_folder_that_is_there_is_kept(model: Path, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    assert "it exists already" in refused(invoke(tmp_path, "playground", str(model), "--out", "page"))
