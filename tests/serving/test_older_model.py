r"""Models that version 0.1 exported are still loaded and used.

`version_0_1/model` is what the last version with such cards made of

    protofed run --method fednh --model cnn --clients 2 --dataset digits --train-size 150 --min-size 4 --rounds 2 \
      --engine sequential --device cpu --threads 1

and `answers.json` what that version said of 20 images, and of a client that came later.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import protofed
from protofed.errors import UserError
from protofed.serving.card import Rule
from protofed.serving.export import export
from protofed.serving.onboard import onboard
from tests.support.command_line import succeed
from tests.support.exported_runs import arrays, digits, plan, play

HERE = Path(__file__).parent / "version_0_1"


@pytest.fixture
def answers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "answers.json").read_text())
    return found


def aged(path: Path, **told: Any) -> Path:
    """The same model with a card as version 0.1 would have written it."""
    card = path / "card.json"
    values = json.loads(card.read_text())
    del values["extended_by"]
    card.write_text(json.dumps(values | told))
    return path


@pytest.mark.parametrize("rule", ["nearest", "head"])
def test_it_answers_as_it_did(answers: dict[str, Any], rule: Rule) -> None:
    model = protofed.load(HERE / "model")
    assert model.card.extended_by == "fednh"
    rows = model.predict(digits(20)[0], rule).rows()
    assert [row["class"] for row in rows] == [row["class"] for row in answers[rule]]
    assert [row["distance"] for row in rows] == pytest.approx([row["distance"] for row in answers[rule]], rel=1e-4)


def test_a_client_joins_as_it_did(answers: dict[str, Any], tmp_path: Path) -> None:
    made, found = onboard(protofed.load(HERE / "model"), arrays(tmp_path / "new.npz", 200, 400), 1)
    for when, accuracy in (("before", found.before), ("after", found.after)):
        assert accuracy == pytest.approx(answers["onboard"][when])
    made.write(tmp_path / "client")
    assert "head.prototypes" in protofed.load(tmp_path / "client").state


def test_a_class_is_added(tmp_path: Path) -> None:
    shutil.copytree(HERE / "model", tmp_path / "model")
    arrays(tmp_path / "examples.npz", 0, 5, labels=False)
    succeed(tmp_path, "add-class", "model", "eleven", "--data", "examples.npz", "--out", "larger")
    assert protofed.load(tmp_path / "larger").card.classes[-1] == "eleven"


def test_a_projection_is_read(tmp_path: Path) -> None:
    made = export(play(tmp_path / "run", plan("moon", params={"projection": True})))
    made.write(tmp_path / "model")
    old = protofed.load(aged(tmp_path / "model", head="linear", projected=True))
    assert old.card == made.predictor.card


def test_a_method_of_ones_own_that_added_nothing_need_not_be_named(tmp_path: Path) -> None:
    """Nor is it: its name may be that of one that adds something."""
    export(play(tmp_path / "run", plan("fedavg"))).write(tmp_path / "model")
    told = {"name": "fednh", "params": {"own": 1}}
    assert protofed.load(aged(tmp_path / "model", head="linear", projected=False, method=told)).method is None


def test_a_method_of_ones_own_that_added_something_has_to_be_named(tmp_path: Path) -> None:
    export(play(tmp_path / "run", plan("fednh"))).write(tmp_path / "model")
    told = {"name": "mine", "params": {}}
    old = aged(tmp_path / "model", head="normalised", projected=False, method=told)
    with pytest.raises(UserError, match="the method mine, which is your own code"):
        protofed.load(old)
    assert len(protofed.load(old, method="fednh").predict(digits(3)[0])) == 3
