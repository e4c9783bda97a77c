"""Series and text from the command line: a run in either engine, and one line for what does not go together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import invoke, refused

WORDS = {"weather": "rain and wind", "sport": "goal and match"}
SHORT = ("--rounds", "2", "--clients", "2", "--split", "iid", "--device", "cpu", "--lr", "0.5", "--json", "--quiet")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = [f"{label}\t{words} {n}\n" for n in range(20) for label, words in WORDS.items()]
    (tmp_path / "news.tsv").write_text("".join(lines))
    heading = "@univariate true\n@equalLength false\n@classLabel true up down\n@data\n"
    rising = [f"{','.join(str(step) for step in range(3 + n % 4))}:up\n" for n in range(20)]
    falling = [f"{','.join(str(-step) for step in range(3 + n % 4))}:down\n" for n in range(20)]
    (tmp_path / "slopes.ts").write_text(heading + "".join(rising + falling))
    return tmp_path


@pytest.mark.parametrize("engine", ["sequential", "stacked", "auto"])
@pytest.mark.parametrize(
    ("data", "model"), [("text:news.tsv", "embedding-bag"), ("ts:slopes.ts", "gru"), ("ts:slopes.ts", "cnn1d")]
)
def test_two_rounds_learn_what_is_easy(place: Path, data: str, model: str, engine: str) -> None:
    words = ("run", "--method", "fedavg", "--dataset", data, "--model", model, "--engine", engine, "--length", "8")
    outcome = invoke(place, *words, "--epochs", "20", *SHORT)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["accuracy"]["global/all/head"]["last"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--dataset", "text:news.tsv", "--model", "mlp"), "'mlp' for --model: it takes numbers"),
        (("--dataset", "text:news.tsv", "--model", "cnn"), "'cnn' for --model: it takes pictures"),
        (("--dataset", "ts:slopes.ts", "--model", "embedding-bag"), "'embedding-bag' for --model: it takes token ids"),
        (("--dataset", "digits", "--model", "gru"), "'gru' for --model: it takes series"),
        (("--dataset", "text:news.tsv", "--model", "gru", "--image-size", "16"), "--image-size: news holds no"),
        (
            ("--dataset", "text:news.tsv", "--model", "gru", "--normalise", "all"),
            "for --normalise: token ids are names",
        ),
        (("--dataset", "text:news.tsv", "--model", "gru", "--augment", "crop"), "for --augment: it crops"),
        (("--dataset", "text:news.tsv", "--model", "gru", "--length", "0"), "'0' for --length"),
        (("--dataset", "text:news.tsv", "--model", "gru", "--tokenizer", "no.json"), "for --tokenizer"),
        (("--dataset", "ts:news.tsv", "--model", "gru"), "neither a heading"),
        (("--dataset", "arff:slopes.ts", "--model", "gru"), "declares no classes"),
    ],
)
def test_what_does_not_go_together_is_one_line(place: Path, words: tuple[str, ...], why: str) -> None:
    assert why in refused(invoke(place, "run", "--method", "fedavg", "--split", "iid", *words))
