"""Every block of Python on every page runs, and every command that needs no federation over a network and no download.

A page's blocks run in their order in one folder; what a page leaves to its reader (their data, their network) is made
here. The blocks of docs/api are signatures and examples of docstrings, which tests/docs/test_docstrings.py runs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import protofed
from protofed.data import Shape, load
from protofed.models import build
from protofed.models.encoder import Encoder, EncoderCard
from protofed.serving.export import export
from tests.support.command_line import succeed
from tests.support.exported_runs import arrays, digits, plan, play
from tests.support.pages import PAGES, ROOT, commands, fenced, named

Names = dict[str, Any]


def tensors(_: Path) -> Names:
    """Tensors of two clients."""
    names = ("images", "labels", "images2", "labels2", "test_images", "test_labels", "test_images2", "test_labels2")
    return {
        name: torch.arange(200) % 2 if "label" in name else torch.zeros(200, 1, 8, 8, dtype=torch.uint8)
        for name in names
    }


def encoder(folder: Path) -> Names:
    """An encoder as `encoder train` writes one, untrained."""
    card = EncoderCard("resnet18", 1, 28, [0.1], [0.3], 512, "mnist")
    state = build("resnet18", Shape((1, 28, 28)), 1, 0).state_dict()
    own = {name: tensor for name, tensor in state.items() if not name.startswith("head")}
    Encoder(card, own, torch.device("cpu")).write(folder / "mnist.safetensors")
    return {}


class Wrapped(nn.Module):
    """In place of a network of the package transformers, which is not ours."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.layer = nn.Linear(config.num_channels * config.image_size**2, config.num_labels)

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.layer(pixel_values.flatten(1)))


def theirs(_: Path) -> Names:
    """A method, a network, clients and a split of a user's own: those of the example that has all of the page."""
    spec = spec_from_file_location("first_hour", ROOT / "examples/first_hour.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["first_hour"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    names = {"MyMethod": module.Small, "MyNet": module.MyNet, "my_split": module.neighbours}
    return names | {"federation": module.my_data()}


def tables(folder: Path) -> Names:
    """Patients, and people with a name and a hospital."""
    rows = [(30 + n, ("male", "female")[n % 2], f"N{n % 9}", ("a", "b")[n // 2 % 2], n % 3 > 0) for n in range(150)]
    for name, columns in (("people", (0, 1, 2, 3, 4)), ("patients", (0, 1, 4))):
        lines = [("age", "sex", "name", "hospital", "ill"), *rows]
        text = "".join(",".join(str(line[column]) for column in columns) + "\n" for line in lines)
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return {}


def exported(folder: Path) -> Names:
    """A model of the digits, and pictures to ask about."""
    export(play(folder / "run", plan())).write(folder / "model")
    images, _ = digits()
    np.savez(folder / "test.npz", images=images.numpy())
    return {"images": images}


PREPARED: dict[str, Callable[[Path], Names]] = {
    "docs/data.md": tensors,
    "docs/encoders.md": encoder,
    "docs/models.md": lambda _: {"ViTConfig": SimpleNamespace, "ViTForImageClassification": Wrapped},
    "docs/python.md": theirs,
    "docs/tables.md": tables,
    "docs/using.md": exported,
}
"""What a page takes for given."""

CALLED: dict[str, Callable[[Names], object]] = {
    "docs/encoders.md": lambda names: names["make"]()(torch.zeros(2, 1, 8, 8)).shape == (2, 16),
    "docs/models.md": lambda names: (
        [protofed.run("fedavg", model=names[name], quiet=True).rounds for name in ("Mine", "ViT")] == [1, 1]
    ),
    "docs/sequences.md": lambda names: (
        names["Mean"](Shape((9,), 20), 3)(torch.ones(2, 9, dtype=torch.int64))[1].shape == (2, 3)
    ),
    "docs/splits.md": lambda names: protofed.run("fedavg", split=names["odd_and_even"], clients=2).rounds == 1,
    "docs/tables.md": lambda names: len(names["make"]().train.x) == 200,
    "docs/using.md": lambda names: len(names["found"].classes) == 20,
    "docs/onboarding.md": lambda names: {*np.load("newcomer.npz")} == {*names["keys"]},
    "docs/tutorials/own-method.md": lambda names: protofed.run(names["SmallFeatures"]).rounds == 1,
    "docs/adding-a-method.md": lambda names: protofed.run(names["CosinePull"]).rounds == 1,
}
"""What is done with what a page defines."""

LONG = {"docs/encoders.md", "docs/python.md", "docs/sweeps.md"}
PYTHON = [page for page in PAGES if fenced(page, "python") and page.parent.name != "api"]


def _nothing(_: Path) -> Names:
    return {}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, where runs have a round, and studies two seeds, whatever they ask for."""

    def less(name: str, **options: Any) -> Callable[..., Any]:
        whole = getattr(protofed, name)

        def called(*values: Any, **asked: Any) -> Any:
            few = {} if "federation" in asked or ":" in asked.get("dataset", "") else {"train_size": 150}
            return whole(*values, **asked | few | {"rounds": 1, "quiet": True, "engine": "sequential"} | options)

        return called

    one = {"jobs": 1, "threads": 1}
    for name, options in (("run", {}), ("compare", one | {"seeds": 2}), ("sweep", one | {"seeds": 1})):
        monkeypatch.setattr(protofed, name, less(name, **options))
    monkeypatch.setattr(sys, "argv", ["leave_out.py", "digits", "0"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if named(page) in LONG else []) for page in PYTHON],
    ids=[named(page) for page in PYTHON],
)
def test_the_python_of_a_page_runs(
    page: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("page")  # whose name a dataclass looks up
    names = vars(module)
    names |= PREPARED.get(named(page), _nothing)(small)
    monkeypatch.setitem(sys.modules, "page", module)
    for block in fenced(page, "python"):
        exec(compile(block, named(page), "exec"), names)
    assert CALLED.get(named(page), bool)(names)
    if page.name == "README.md":
        shown = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in shown[1:]] == ["fedavg", "fedproto"]


def test_no_preparation_is_for_a_page_that_is_gone() -> None:
    assert {*PREPARED, *CALLED, *LONG} <= {named(page) for page in PYTHON}


OTHER_DATA = {"mnist": "digits", "usps": "digits", "cifar10": "digits", "emnist-letters": "digits"}
OTHER_DATA |= {"digit5": "digit-domains"}
"""Data that come with the package, instead of files that are not here."""

SMALLER = {"--rounds": "1", "--eval-every": "1", "--seeds": "1", "--train-size": "200", "--epochs": "1"}
SMALLER |= {"--max-k": "2"}
TINY_RUN = ["--rounds", "1", "--quiet", "--device", "cpu", "--engine", "sequential"]
TINY_STUDY = [*TINY_RUN, "--seeds", "1", "--jobs", "1"]
ADDED = {"run": TINY_RUN, "encoder": ["--epochs", "1"]} | dict.fromkeys(("compare", "sweep", "choose-k"), TINY_STUDY)
"""What makes a command small, where it does not say it."""

ELSEWHERE = {
    "deploy": "over a network: tests/docs/test_tutorials.py, tests/deploy",
    "watch": "until Ctrl-C: tests/cli",
    "ui": "until Ctrl-C: tests/browser",
    "playground": "fetches a package: tests/browser",
    "reproduce": "the papers' data: tests/studies",
}
UNRUN = {
    "docs/where-to-change.md": "patches of the source: tests/changes",
    "docs/commands": "written from the command line, whose tests are tests/cli",
    "docs/results": "hours, written from what was measured",
    "docs/tutorials": "tests/docs/test_tutorials.py",
}
"""Commands, and pages, that are not run here, and why."""


def shortened(words: list[str]) -> list[str]:
    """A command on data that are here, with little to do."""
    text = "\n".join(words)
    if "digit5" in words:
        text = text.replace("--clients\n5", "--clients\n4")  # which is how many domains ours has
    for published, ours in OTHER_DATA.items():
        text = re.sub(rf"(?<!\w){published}(?!\w)", ours, text)
    words = re.sub(r"\n--data-dir\n[^\n]*|\n--onnx", "", text).split("\n")
    for flag, value in SMALLER.items():
        if flag in words and float(words[words.index(flag) + 1]) > float(value):
            words[words.index(flag) + 1] = value
    added = [*ADDED.get(words[0], []), *(["--shots", "5"] if "ways" in words else [])]
    for flag in [flag for flag in added if flag.startswith("--") and flag in words]:
        if flag == "--quiet":
            added.remove(flag)
        else:
            del added[added.index(flag) : added.index(flag) + 2]
    return [*words, *added]


MISSING = r"…|\b(DIR|RUN|FILE|import)\b|minilm|mail.tsv|japanese"
"""Words that stand for others, and data of other packages."""


def runnable(block: str) -> list[list[str]]:
    """The commands of a block that can be run here."""
    ours = [words for words in commands(block) if words[0] == "protofed" or words[1:2] == ["leave_out.py"]]
    return [words for words in ours if words[1] not in ELSEWHERE and not re.search(MISSING, " ".join(words))]


RUN = [page for page in PAGES if any(map(runnable, fenced(page, "sh"))) and not named(page).startswith(tuple(UNRUN))]
RUN += [ROOT / "docs/commands/examples.md"]


def pictures(folder: Path, domains: tuple[str, ...] = ("",)) -> None:
    """A folder of pictures, `class/picture` or `domain/class/picture`."""
    from PIL import Image

    train = load("digits").train
    for place in range(60):
        target = folder / domains[place % len(domains)] / f"c{place % 3}"
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(train.x[place, 0].numpy()).save(target / f"{place}.png")


def files(folder: Path) -> None:
    """What commands name: pictures, arrays, tables, encoders, a federation of PFLlib's, and rows."""
    encoder(folder)
    shutil.copy(folder / "mnist.safetensors", folder / "imagenet.safetensors")
    tables(folder)
    shutil.copy(folder / "people.csv", folder / "patients.csv")
    pictures(folder / "photos", ("north", "south"))
    for name in ("pictures", "folder"):
        pictures(folder / name)
    shutil.copy(folder / "folder/c0/0.png", folder / "picture.png")
    arrays(folder / "images.npz", 0, 20, labels=False)
    arrays(folder / "mine.npz", 0, 200)
    for part in ("train", "test"):
        (folder / "dataset/FashionMNIST" / part).mkdir(parents=True)
        for client in range(2):
            samples = {"x": np.zeros((20, 1, 28, 28), np.float32), "y": np.arange(20) % 2}
            np.savez(folder / f"dataset/FashionMNIST/{part}/{client}.npz", data=np.array(samples))
    (block,) = fenced(ROOT / "docs/onboarding.md", "python")
    (folder / "leave_out.py").write_text(block, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=named)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    files(tmp_path)
    for block in fenced(page, "sh"):
        made = set[str]()
        for program, *words in runnable(block):
            if program == "python":
                subprocess.run([sys.executable, *words], cwd=tmp_path, check=True)
                continue
            call = shortened(words)
            out = call[call.index("--out") + 1] if "--out" in call else "no such"
            if (tmp_path / out).exists() and out not in made:  # an earlier block's
                _remove(tmp_path / out)
            succeed(tmp_path, *call)
            made.add(out)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.mark.parametrize("call", [["methods"], ["methods", "fedproto"], ["splits"], ["datasets"], ["data", "digits"]])
def test_quick_commands_run(call: list[str], tmp_path: Path) -> None:
    assert len(succeed(tmp_path, *call).out.splitlines()) > 3
