"""Series from .ts and .arff files: what is in them, and one line for what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protofed.data import load
from protofed.data.encodings import decoded, encoded
from protofed.data.series_encoding import SeriesEncoding
from protofed.data.sources.series import arff, ts
from protofed.errors import UserError

HEAD = """# from somewhere
@problemName Toy
@timeStamps false
@univariate false
@dimensions 2
@equalLength false
@classLabel true up down
@data
"""
CASES = "1,2,3:4,5,6:up\n1,2:3,4:down\n"
EQUAL = "@univariate true\n@equalLength true\n@seriesLength 3\n@classLabel true up down\n@data\n"
ARFF = "% a comment\n@relation Toy\n@attribute a numeric\n@ATTRIBUTE b REAL\n@attribute target {up, 'down'}\n\n@data\n"
RELATIONAL = """@relation 'Toy'
@attribute all relational
@attribute a numeric
@attribute b numeric
@attribute c numeric
@end all
@attribute target {up,down}
@data
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def test_unequal_series_are_padded_and_masked(tmp_path: Path) -> None:
    dataset = ts(
        [written(tmp_path, "Toy_TRAIN.ts", HEAD + CASES), written(tmp_path, "Toy_TEST.ts", HEAD + CASES)], None
    )
    assert dataset.name == "Toy"
    assert dataset.classes == ("up", "down")
    assert dataset.train.x.tolist() == [
        [[1, 2, 3], [4, 5, 6], [1, 1, 1]],
        [[1, 2, 0], [3, 4, 0], [1, 1, 0]],
    ]
    assert dataset.train.labels.tolist() == [0, 1]
    assert dataset.preparation.masked
    assert dataset.preparation.mean == pytest.approx(((1 + 2 + 3 + 1 + 2) / 5, (4 + 5 + 6 + 3 + 4) / 5, 0))
    assert dataset.encoding == SeriesEncoding(2, 3, True)


def test_a_test_part_beside_is_taken_and_alone_every_fifth_is_a_test(tmp_path: Path) -> None:
    path = written(tmp_path, "Toy_TRAIN.ts", EQUAL + "1,2,3:up\n4,5,6:down\n" * 5)
    alone = load(f"ts:{path}")
    assert (len(alone.train), len(alone.test)) == (8, 2)
    written(tmp_path, "Toy_TEST.ts", EQUAL + "7,8,9:down\n")
    both = load(f"ts:{path}")
    assert (len(both.train), both.test.x.tolist(), both.test.labels.tolist()) == (10, [[[7, 8, 9]]], [1])
    assert not both.preparation.masked
    again = load(f"ts:{path}")  # from the cache
    assert again.encoding == both.encoding == SeriesEncoding(1, 3, False)
    assert torch.equal(again.train.x, both.train.x)


def test_arff_of_one_channel_and_of_several(tmp_path: Path) -> None:
    flat = arff([written(tmp_path, "flat.arff", ARFF + "1,2,up\n3,4,'down'\n" * 5)], None)
    assert flat.train.x[:2].tolist() == [[[1, 2]], [[3, 4]]]
    assert flat.train.labels[:2].tolist() == [0, 1]
    deep = arff([written(tmp_path, "deep.arff", RELATIONAL + "'1,2,3\\n4,5,6',up\n\"1,2,?\\n3,4,?\",down\n" * 5)], None)
    assert deep.train.x[:2].tolist() == [[[1, 2, 3], [4, 5, 6], [1, 1, 1]], [[1, 2, 0], [3, 4, 0], [1, 1, 0]]]


def test_what_is_missing_lies_between_its_neighbours(tmp_path: Path) -> None:
    path = written(tmp_path, "gaps.ts", HEAD + "?,2,?,8,NaN:1,2,?,4,5:up\n" * 5)
    assert ts([path], None).train.x[0, :2].tolist() == [[2, 2, 5, 8, 8], [1, 2, 3, 4, 5]]


TS_WRONG = {
    "cut before @data": (HEAD.removesuffix("@data\n"), "no @data"),
    "no heading": (CASES, "line 1 is neither a heading"),
    "empty": ("", "no @data"),
    "no series": (HEAD, "no series"),
    "cut in a line": (HEAD + CASES + "1,2,3:4,5\n", "line 11: it has 1 channels, and the heading says 2"),
    "unequal channels": (HEAD + "1,2,3:4,5:up\n", "channels of several lengths"),
    "label not declared": (HEAD + "1,2:3,4:left\n", "the class 'left' is not declared"),
    "no label": (HEAD + "1,2:3,4\n", "channels, and the heading says 2"),
    "too few channels": (HEAD + "1,2:up\n", "it has 1 channels, and the heading says 2"),
    "wrong length": (EQUAL + "1,2:up\n", "it has 2 steps, and the heading says 3"),
    "no number": (HEAD + "1,two:3,4:up\n", "line 9: could not convert"),
    "infinite": (HEAD + "1,inf:3,4:up\n", "not finite"),
    "too large for float32": (HEAD + "1,1e39:3,4:up\n", "not finite, or too large"),
    "nothing but missing": (HEAD + "?,?:3,4:up\n", "a channel has no numbers"),
    "an empty step": (HEAD + "1,,2:1,2,3:up\n", "could not convert"),
    "no classes": (HEAD.replace("@classLabel true up down", "@classLabel false") + CASES, "declares no classes"),
    "regression": (HEAD.replace("@classLabel true up down", "@targetLabel true") + CASES, "regression"),
    "a class twice": (HEAD.replace("up down", "up up") + CASES, "declares a class twice"),
    "time stamps": (HEAD.replace("@timeStamps false", "@timeStamps true") + CASES, "time stamps"),
    "a count that is none": (HEAD.replace("@dimensions 2", "@dimensions -2") + CASES, "not one whole number"),
    "nothing to test": (HEAD + CASES, "no class has five"),
}


@pytest.mark.parametrize("name", TS_WRONG)
def test_a_wrong_ts_file_is_one_line(name: str, tmp_path: Path) -> None:
    content, why = TS_WRONG[name]
    with pytest.raises(UserError, match=why) as raised:
        load(f"ts:{written(tmp_path, 'toy.ts', content)}")
    assert "\n" not in str(raised.value)


ARFF_WRONG = {
    "text": (ARFF.replace("b REAL", "b string") + "1,2,up\n", "is 'string', and series are numeric"),
    "no classes": (ARFF.replace("@attribute target {up, 'down'}\n", "") + "1,2,up\n", "declares no classes"),
    "classes first": ("@attribute t {up}\n@attribute a real\n@data\n1,up\n", "must be its last attribute"),
    "too few numbers": (ARFF + "1,up\n", "the 2 numbers that the heading declares"),
    "not quoted": (RELATIONAL + "1,2,3,up\n", "not a quoted series"),
    "no quote at the end": (RELATIONAL + "'1,2,3\\n4,5,6,up\n", "not a quoted series"),
    "unequal rows": (RELATIONAL + "'1,2,3\\n4,5',up\n", "the 3 numbers"),
    "label not declared": (ARFF + "1,2,left\n", "'left' is not declared"),
}


@pytest.mark.parametrize("name", ARFF_WRONG)
def test_a_wrong_arff_file_is_one_line(name: str, tmp_path: Path) -> None:
    content, why = ARFF_WRONG[name]
    with pytest.raises(UserError, match=why) as raised:
        load(f"arff:{written(tmp_path, 'toy.arff', content)}")
    assert "\n" not in str(raised.value)


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    train = written(tmp_path, "Toy_TRAIN.ts", HEAD + CASES)
    test = written(tmp_path, "Toy_TEST.ts", HEAD.replace("up down", "up left") + "1,2:3,4:up\n")
    with pytest.raises(UserError, match=r"classes are not those of Toy_TRAIN\.ts: up, down"):
        ts([train, test], None)
    written(tmp_path, "Toy_TEST.ts", EQUAL + "1,2,3:up\n")
    with pytest.raises(UserError, match="as many channels"):
        ts([train, test], None)


def test_bytes_that_are_no_text_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "toy.ts").write_bytes(HEAD.encode() + b"1,\xff:up\n")
    with pytest.raises(UserError, match=r"line 9.*not UTF-8 text: byte 2 is 0xff"):
        load(f"ts:{tmp_path}/toy.ts")
    with pytest.raises(UserError, match="it is a folder"):
        load(f"arff:{tmp_path}")


def test_one_endless_series_among_many_short_ones_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protofed.data.sources.series.MOST", 4 * 3 * 2 * 6 - 1)
    path = written(tmp_path, "toy.ts", HEAD + "1:2:up\n" + "1,2,3,4,5,6:1,2,3,4,5,6:down\n")
    with pytest.raises(UserError, match="2 series of up to 6 steps take more than"):
        load(f"ts:{path}")


def test_new_series_go_the_same_way() -> None:
    masked, plain = SeriesEncoding(1, 3, True), SeriesEncoding(1, 3, False)
    assert masked.encode([[[1, 2, 3, 4]]]).tolist() == [[[1, 2, 3], [1, 1, 1]]]  # what is longer is cut off
    assert decoded(encoded(masked)) == masked
    with pytest.raises(UserError, match=r"it is \[1, 2\] and must be \[1, 3\]"):
        plain.encode([[[1, 2]]])
    with pytest.raises(UserError, match=r"it is \[2, 3\] and must be \[1, steps\]"):
        masked.encode([[[1, 2, 3], [1, 2, 3]]])
    with pytest.raises(UserError, match=r"invalid value '1' for series: .*a step or more"):
        plain.encode([[[1, 2, 3]], [[]]])
    assert plain.show(torch.tensor([[7.0, 7.0, 7.0]])) == "▁▁▁ (3 steps)"
    assert masked.show(torch.zeros(2, 3)) == " (0 steps)"


@pytest.mark.parametrize(
    "said",
    [
        {"channels": 0, "length": 3, "masked": True},
        {"channels": 1, "length": 2**40, "masked": False},
        {"channels": 1, "length": "3", "masked": False},
        {"channels": 1, "length": 3},
        {"channels": 1, "length": 3, "masked": True, "more": 1},
    ],
)
def test_a_card_s_encoding_is_checked(said: dict[str, object]) -> None:
    with pytest.raises(UserError):
        decoded({"kind": "series", **said})
