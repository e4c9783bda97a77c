"""A frozen encoder: what it makes of images, its file, and runs on its features."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.cli.encoder import encoder_of
from protofed.data import Client, Federation, load
from protofed.data.augmentation import IMAGENET
from protofed.data.build import federation_of
from protofed.data.preparation import Preparation
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.models import build
from protofed.models.encoder import CARD, Encoder, EncoderCard
from protofed.models.published import imported
from protofed.runs.progress import Progress
from protofed.runs.run import Run, new_run
from tests.support.nets import assert_same_run, gap

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "protofed" / "features"


@pytest.fixture(scope="module")
def run() -> Run:
    """A classifier, trained a little in one place."""
    central: dict[str, Any] = {"method": "local", "split": "iid", "clients": 1, "model": "cnn", "rounds": 2}
    trained = new_run(Experiment(**central, train_size=200, engine="sequential", device="cpu", momentum=0.9))
    trained.play(None, Progress())
    return trained


@pytest.fixture
def encoder(run: Run) -> Encoder:
    return encoder_of(run)


@pytest.fixture
def file(encoder: Encoder, tmp_path: Path) -> Path:
    encoder.write(tmp_path / "encoder.safetensors")
    return tmp_path / "encoder.safetensors"


def seen(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    middle, scale = (torch.tensor(part).view(-1, 1, 1) for part in (mean, std))
    return (images.float() / 255 - middle) / scale


def test_features_are_those_of_the_trained_model_in_eval_mode(run: Run, encoder: Encoder) -> None:
    client, module = run.federation.clients[0], run.engine.groups[0].module
    module.load_state_dict({name: value[0] for name, value in run.engine.groups[0].own.take([0]).items()})
    with torch.no_grad():
        slow = [
            module.eval()(seen(image[None], client.preparation.mean, client.preparation.std)).features
            for image in client.pool.x[:20]
        ]
    found = encoder.features(client.pool.x[:20])
    assert found.shape == (20, 50, 1, 1)
    assert_close(found.flatten(1), torch.cat(slow), rtol=1e-4, atol=1e-5)


def test_the_card_says_what_it_is_and_how_good(run: Run, encoder: Encoder) -> None:
    card = encoder.card
    assert (card.model, card.shape, card.feature_size) == ("cnn", (1, 8, 8), 50)
    assert (card.source, card.epochs, card.seed) == ("digits", 2, 0)
    assert card.accuracy == run.history[-1].accuracy["own/all/head"]
    assert not any(name.startswith("head.") for name in encoder.state)


def test_a_file_holds_the_encoder(encoder: Encoder, file: Path) -> None:
    again = Encoder.read(file, CPU)
    assert again.card == encoder.card
    images = load("digits").test.x
    assert torch.equal(again.features(images), encoder.features(images))
    assert [path.name for path in file.parent.iterdir() if path.is_file()] == [file.name]  # and no draft


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="--out"):
        encoder.write(tmp_path / "there")
    with pytest.raises(UserError, match="--out"):
        encoder.write(tmp_path / "no" / "such.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_images_of_other_sizes_and_colours_are_fitted() -> None:
    draws = torch.randint(0, 256, (3, 1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    card = replace(imported_card(), model="cnn", image_size=12, feature_size=50)
    module = build("cnn", card.shape, 1, 5).eval()
    state = {name: value for name, value in module.state_dict().items() if not name.startswith("head.")}
    with torch.no_grad():
        slow = module(seen(draws.expand(-1, 3, -1, -1), *IMAGENET)).features
    found = Encoder(card, state, CPU).features(draws)
    assert_close(found.flatten(1), slow, rtol=1e-4, atol=1e-5)
    assert Encoder(card, state, CPU).features(draws.expand(-1, 3, -1, -1)[..., :9]).shape == (3, 50, 1, 1)


def test_features_are_computed_once(encoder: Encoder, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = load("digits").test.x[:30]
    first = encoder.features(images)
    other = encoder.features(images.flip(0))
    assert len(list(cache.iterdir())) == 2
    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "computed", lambda *_: pytest.fail("it was there already"))
        assert torch.equal(encoder.features(images), first)
        assert torch.equal(encoder.features(images.flip(0)), other)
    changed = {name: value + 1 for name, value in encoder.state.items()}
    assert not torch.equal(Encoder(encoder.card, changed, CPU).features(images), first)


@pytest.mark.parametrize("damage", ["truncated", "another's"])
def test_a_damaged_cache_is_made_anew(encoder: Encoder, cache: Path, damage: str) -> None:
    images = load("digits").test.x[:30]
    first = encoder.features(images)
    (kept,) = cache.iterdir()
    if damage == "truncated":
        kept.write_bytes(kept.read_bytes()[:-100])
    else:
        save_file({"features": torch.zeros(2, 50, 1, 1)}, kept)
    assert torch.equal(encoder.features(images), first)
    assert torch.equal(load_file(kept)["features"], first)


def test_a_cache_that_cannot_be_written_is_done_without(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a-file"))
    assert len(encoder.features(load("digits").test.x[:5])) == 5


def small(**settings: Any) -> Experiment:
    given: dict[str, Any] = {"method": "mp-fedcl", "model": "head", "train_size": 150, "clients": 3, "rounds": 2}
    return Experiment(**{**given, "device": "cpu", "engine": "sequential", "precision": "float64", **settings})


def played(experiment: Experiment, federation: Federation | None = None) -> Run:
    run = new_run(experiment, federation=federation)
    run.play(None, Progress())
    return run


def test_a_run_on_an_encoder_is_a_run_on_its_features(encoder: Encoder, file: Path) -> None:
    plain = federation_of(small(val_fraction=0.2))
    pool = replace(plain.clients[0].pool, x=encoder.features(plain.clients[0].pool.x))
    clients = []
    for client in plain.clients:
        train, held = (replace(part, x=encoder.features(part.x)) for part in (client.train, client.validation) if part)
        clients.append(Client(train, pool, client.own, held, Preparation()))
    by_hand = replace(plain, clients=tuple(clients))
    found = played(small(encoder=str(file), val_fraction=0.2))
    assert_same_run(found, played(small(), by_hand))
    assert found.engine.groups[0].module.hidden.weight.shape == (256, 50)  # type: ignore[union-attr]


def test_engines_agree_on_features(file: Path) -> None:
    runs = [played(small(encoder=str(file), engine=engine)) for engine in ("sequential", "stacked")]
    assert_same_run(runs[0], runs[1])
    assert gap(runs[0].state(), played(small(encoder=str(file), rounds=1)).state()) > 1e-5


def test_the_result_says_which_encoder(encoder: Encoder, file: Path) -> None:
    run = played(small(encoder=str(file)))
    assert run.result(None).encoder == asdict(encoder.card)
    assert json.loads(run.result(None).to_json())["encoder"]["source"] == "digits"
    assert run.experiment.encoder == str(file.resolve())
    assert "encoder" not in json.loads(played(small(model="mlp")).result(None).to_json())


def test_public_images_become_features_too(file: Path) -> None:
    params = {"public_images": 40, "public_batch": 20}
    run = played(small(method="fccl-plus", public="digit-domains", encoder=str(file), params=params))
    assert run.engine.public is not None
    assert run.engine.public.shape == (40, 50, 1, 1)


def test_features_of_ones_own_are_normalised_like_images() -> None:
    features = torch.randn(8, 5, 1, 1, generator=torch.Generator().manual_seed(1)) * 3 + 2
    samples = replace(load("digits").train.take(torch.arange(8)), x=features)
    client = Client.of(samples, samples)
    group = new_run(small(min_size=1), federation=Federation((client,), tuple("0123456789"))).engine.groups[0]
    seen_by_model = group.inputs(features)
    assert_close(seen_by_model.mean(0), torch.zeros_like(seen_by_model[0]), atol=1e-6, rtol=0)
    assert_close(seen_by_model.std(0, correction=0), torch.ones_like(seen_by_model[0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [{"augment": "crop"}, {"normalise": "imagenet"}, {"image_size": 16}],
    ids=lambda given: next(iter(given)),
)
def test_what_the_encoder_decides_cannot_be_said_twice(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="encoder knows"):
        new_run(small(encoder="e.safetensors", **settings))


def test_an_encoder_is_not_for_a_federation_of_ones_own(file: Path) -> None:
    with pytest.raises(UserError, match="federation of your own"):
        new_run(small(encoder=str(file)), federation=federation_of(small()))


# Files that are none.


def with_card(file: Path, **changes: Any) -> None:
    tensors = load_file(file)
    save_file(tensors, file, {CARD: json.dumps({**asdict(Encoder.read(file, CPU).card), **changes})})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "resnet99"}, "did you mean 'resnet"),
        ({"model": "head"}, "9330 numbers.*has 16640"),
        ({"model": "cnn-18"}, "missing, of another shape"),
        ({"image_size": 10**9}, "from 1 to 1024"),
        ({"image_size": 1024, "channels": 1024}, "at most"),  # an image of 4 GB
        ({"model": "mlp", "image_size": 1024}, "for samples of"),  # weights of 2 GB
        ({"image_size": "8"}, "type int"),
        ({"channels": 3}, "for each channel"),
        ({"mean": [float("nan")]}, "finite"),
        ({"std": [0.0]}, "above 0"),
        ({"feature_size": 51}, "it is 50 for cnn"),
        ({"colour": 1}, "colour"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_card_that_cannot_be_right_is_refused(file: Path, changes: dict[str, Any], says: str) -> None:
    with_card(file, **changes)
    with pytest.raises(UserError, match=says):
        Encoder.read(file, CPU)


def test_a_mean_may_be_a_whole_number_however_large(file: Path) -> None:
    with_card(file, mean=[2**63])
    assert Encoder.read(file, CPU).computed(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).shape == (1, 50, 1, 1)


def test_a_card_cannot_have_code_executed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nEvil = None\n")
    with_card(file, model=f"{tmp_path}/evil.py:Evil")
    with pytest.raises(UserError, match="evil"):
        Encoder.read(file, CPU)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("damage", ["missing", "truncated", "text", "no card", "no json", "one less", "one more"])
def test_a_file_that_is_no_encoder_is_refused_by_name(encoder: Encoder, file: Path, damage: str) -> None:
    card = {CARD: json.dumps(asdict(encoder.card))}
    first = next(iter(encoder.state))
    match damage:
        case "missing":
            file.unlink()
        case "truncated":
            file.write_bytes(file.read_bytes()[:-1000])
        case "text":
            file.write_text("weights")
        case "no card":
            save_file(encoder.state, file)
        case "no json":
            save_file(encoder.state, file, {CARD: "{"})
        case "one less":
            save_file({name: value for name, value in encoder.state.items() if name != first}, file, card)
        case "one more":
            save_file({**encoder.state, "extra": torch.zeros(1)}, file, card)
    with pytest.raises(UserError, match=r"'.*encoder.safetensors' for --encoder"):
        Encoder.read(file, CPU)


# torchvision's ResNet-18, written down as torchvision names it.


class Block(nn.Module):
    """Two convolutions and a shortcut, with the ReLU at the end."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + self.downsample(x)
        return changed.relu()


class TorchvisionsResNet18(nn.Module):
    """Up to the features; `fc` is there for its name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        for number, (inputs, outputs, stride) in enumerate([(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]):
            setattr(
                self, f"layer{number + 1}", nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1))
            )
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for number in range(4):
            x = self.get_submodule(f"layer{number + 1}")(x)
        return x.mean((-2, -1))


@pytest.fixture(scope="module")
def torchvisions() -> TorchvisionsResNet18:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = TorchvisionsResNet18()
        for name, tensor in module.state_dict().items():
            if "bn" in name and tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    return module.eval()


def imported_card() -> EncoderCard:
    mean, std = (list(part) for part in IMAGENET)
    return EncoderCard("resnet18", 3, 40, mean, std, 512, "resnet18.pth")


@pytest.mark.parametrize("form", ["pth", "safetensors"])
def test_torchvisions_weights_give_torchvisions_features(
    form: str, torchvisions: TorchvisionsResNet18, tmp_path: Path
) -> None:
    file, state = tmp_path / f"resnet18.{form}", torchvisions.state_dict()
    if form == "pth":
        torch.save(OrderedDict(state), file)
    else:
        save_file(state, file)
    encoder = imported(file, 40)
    assert encoder.card == replace(imported_card(), source=file.name)
    images = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        slow = torchvisions(seen(images, *IMAGENET))
    assert float(slow.std()) > 0.01
    assert_close(encoder.features(images).flatten(1), slow, rtol=1e-3, atol=1e-4)


class Trap:
    """What a pickle may do to who reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("what", ["missing", "text", "pickle", "torch pickle", "list", "another network"])
def test_what_is_not_torchvisions_resnet18_is_refused_and_not_executed(
    what: str, torchvisions: TorchvisionsResNet18, tmp_path: Path
) -> None:
    file, trap = tmp_path / "weights.pth", Trap(tmp_path / "executed")
    match what:
        case "text":
            file.write_text("weights")
        case "pickle":
            file.write_bytes(pickle.dumps(trap, protocol=2))
        case "torch pickle":
            torch.save({"conv1.weight": trap}, file)
        case "list":
            torch.save([torch.zeros(1)], file)
        case "another network":
            state = torchvisions.state_dict()
            torch.save({name: state[name] for name in state if not name.startswith("layer4.1")}, file)
    with pytest.raises(UserError, match="FILE"):
        imported(file, 32)
    assert not trap.path.exists()


def test_a_pickle_that_takes_forever_is_not_loaded(tmp_path: Path) -> None:
    """A key of 2**60 empty tuples, in either of the forms of torch.save."""
    evil = b"\x80\x02})" + b"q\x01h\x01\x86" * 60 + b"K\x01s."
    (tmp_path / "old.pth").write_bytes(evil)
    with zipfile.ZipFile(tmp_path / "new.pth", "w") as archive:
        archive.writestr("archive/data.pkl", evil)
    for name in ("old.pth", "new.pth"):
        with pytest.raises(UserError, match=rf"{name}.*repeats a tuple"):
            imported(tmp_path / name, 32)
