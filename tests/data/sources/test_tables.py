"""A user's own tables: what becomes of their columns, and what is refused, as a user types it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from protofed.data import Column, Dataset, TableEncoding, load
from protofed.data.encodings import decoded, encoded
from protofed.data.records import read_records
from protofed.data.sources import table_files
from protofed.data.sources.tables import TableOptions
from protofed.errors import UserError
from protofed.experiment import Experiment
from tests.support.command_line import invoke, refused, succeed

ROWS = [
    {"age": str(30 + row), "sex": "male" if row % 3 else "female", "city": f"c{row % 4}", "label": "ny"[row % 2]}
    for row in range(40)
]


def write(path: Path, rows: list[dict[str, str]] = ROWS, delimiter: str = ",") -> Path:
    lines = [delimiter.join(rows[0]), *(delimiter.join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(path: Path, **options: str) -> Dataset:
    return load(f"csv:{path}", columns=TableOptions.of(Experiment.from_mapping(options)))


def by_hand(rows: list[dict[str, str]]) -> torch.Tensor:
    """Age, two sexes, four cities."""
    sexes, cities = ("female", "male"), ("c0", "c1", "c2", "c3")
    return torch.tensor(
        [
            [
                float(row["age"]),
                *(float(row["sex"] == one) for one in sexes),
                *(float(row["city"] == c) for c in cities),
            ]
            for row in rows
        ]
    )


def test_rows_become_numbers_and_ones_among_zeros(tmp_path: Path) -> None:
    dataset = read(write(tmp_path / "people.csv"))
    tests = [row for place, row in enumerate(ROWS) if place // 2 % 5 == 4]
    trained = [row for row in ROWS if row not in tests]
    assert torch.equal(dataset.train.x, by_hand(trained))
    assert torch.equal(dataset.test.x, by_hand(tests))
    assert dataset.classes == ("n", "y")
    assert dataset.train.labels.tolist() == [int(row["label"] == "y") for row in trained]
    assert (dataset.name, dataset.preparation.kind) == ("people", "standardise")
    ages = np.array([float(row["age"]) for row in trained])
    assert dataset.preparation.mean[0] == pytest.approx(ages.mean())
    assert dataset.preparation.std[0] == pytest.approx(ages.std())


def test_new_rows_are_encoded_like_those_of_the_file(tmp_path: Path) -> None:
    dataset = read(write(tmp_path / "people.csv"))
    table = dataset.encoding
    assert isinstance(table, TableEncoding)
    assert torch.equal(table.encode(ROWS[:1]), dataset.train.x[:1])
    assert torch.equal(table.encode([(30, "female", "c0")]), dataset.train.x[:1])
    assert table.show(dataset.train.x[1]) == "age=31 sex=male city=c1"
    assert decoded(json.loads(json.dumps(encoded(table)))) == table


@pytest.mark.parametrize("at_once", [1, 7, 10_000])
def test_missing_values_take_the_training_mean_or_are_a_category(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(table_files, "AT_ONCE", at_once)
    rows = [dict(row) for row in ROWS]
    for place in (0, 1, 8):  # rows 8 and 9 are tests
        rows[place]["age"] = ["", "na", "?"][place % 3]
    rows[2]["sex"] = "NULL"
    dataset = read(write(tmp_path / f"people{at_once}.csv", rows))
    mean = np.mean([float(row["age"]) for p, row in enumerate(rows) if p // 2 % 5 != 4 and p not in (0, 1)])
    assert isinstance(dataset.encoding, TableEncoding)
    assert dataset.encoding.columns[0].fill == pytest.approx(mean, rel=1e-6)
    assert dataset.encoding.columns[1].categories == ("female", "male", None)
    assert dataset.train.x[[0, 1], 0].tolist() == pytest.approx([mean, mean])
    assert dataset.test.x[0, 0].item() == pytest.approx(mean)
    assert dataset.train.x[2, 1:4].tolist() == [0, 0, 1]
    assert dataset.encoding.show(dataset.train.x[2]) == "age=32 sex=? city=c2"
    assert dataset.encoding.encode([{"age": None, "sex": "male", "city": "c1"}])[0, 0].item() == pytest.approx(mean)


def test_rows_with_missing_values_are_left_out(tmp_path: Path) -> None:
    rows = [dict(row) for row in ROWS]
    rows[0]["sex"], rows[3]["age"], rows[5]["label"] = "", "?", ""
    dataset = read(write(tmp_path / "people.csv", rows), fill="drop-row")
    left = [row for place, row in enumerate(rows) if place not in (0, 3, 5)]
    counts: dict[str, int] = {}
    trained = []
    for row in left:
        counts[row["label"]] = counts.get(row["label"], 0) + 1
        if counts[row["label"]] % 5:
            trained.append(row)
    assert torch.equal(dataset.train.x, by_hand(trained))
    assert len(dataset.train) + len(dataset.test) == 37
    assert isinstance(dataset.encoding, TableEncoding)
    with pytest.raises(UserError, match="age in row 1: it is missing"):
        dataset.encoding.encode([{"age": "?", "sex": "male", "city": "c1"}])


def test_columns_by_their_options(tmp_path: Path) -> None:
    rows = [{**row, "when": "test" if place % 4 == 0 else "train"} for place, row in enumerate(ROWS)]
    dataset = read(
        write(tmp_path / "people.csv", rows), label="sex", domain_column="city", test_column="when", drop="label"
    )
    assert dataset.classes == ("female", "male")
    assert dataset.domains == ("c0", "c1", "c2", "c3")
    assert dataset.train.x.shape == (30, 1)
    assert dataset.test.domains.tolist() == [0] * 10
    coded = read(write(tmp_path / "coded.csv", rows), drop="when,sex,city", categories="age", label="label")
    assert coded.train.x.shape[1] == 40
    assert torch.equal(coded.train.x.sum(1), torch.ones(len(coded.train)))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(tmp_path: Path, delimiter: str) -> None:
    assert torch.equal(
        read(write(tmp_path / "some.csv", delimiter=delimiter)).train.x, read(write(tmp_path / "other.csv")).train.x
    )


def test_a_byte_order_mark_quotes_line_breaks_and_packing(tmp_path: Path) -> None:
    text = write(tmp_path / "people.csv").read_text().replace("c0", '"a, ""b""\nc"').replace("\n\n", "\n")
    (tmp_path / "quoted.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode() + b"\n\n"))
    dataset = read(tmp_path / "quoted.csv.gz")
    assert isinstance(dataset.encoding, TableEncoding)
    assert dataset.encoding.columns[0].name == "age"
    assert dataset.encoding.columns[2].categories == ('a, "b"\nc', "c1", "c2", "c3")
    assert torch.equal(dataset.train.x, read(tmp_path / "people.csv").train.x)


def test_the_cache_knows_the_options(tmp_path: Path) -> None:
    path = write(tmp_path / "people.csv")
    assert [read(path, label=label).classes for label in ("label", "sex", "label")] == [
        ("n", "y"),
        ("female", "male"),
        ("n", "y"),
    ]


HEAD = "age,sex,label\n"
PEOPLE = HEAD + "".join(f"{30 + row},{'mf'[row % 2]},{'ny'[row // 5 % 2]}\n" for row in range(20))


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (PEOPLE, "--label lable", "for --label: t.csv has the columns age, sex, label"),
        (
            PEOPLE.replace("label", "ill"),
            "",
            "missing value for --label: name the column of the classes: t.csv has age",
        ),
        (PEOPLE, "--drop age,sxe", "invalid value 'sxe' for --drop"),
        (PEOPLE, "--drop label", "invalid value 'label' for --drop: the column is also said to be: label"),
        (PEOPLE, "--drop age,sex", "no column is left"),
        (PEOPLE.replace("35,", "old,"), "", "invalid value 'old' for column age: the column holds numbers, and row 6"),
        (PEOPLE.replace("35,", "1_0,"), "", "invalid value '1_0' for column age"),
        (PEOPLE.replace("35,", "inf,"), "", "invalid value 'inf' for column age: row 6 is not a finite number"),
        (PEOPLE.replace("35,", "1e39,"), "", "row 6 is not a finite number"),
        (PEOPLE.replace("35,", "nan,"), "--missing ?", "invalid value 'nan' for column age: row 6 is not a finite"),
        ("", "", "it is empty"),
        ("\n \n", "", "it is empty"),
        (HEAD, "", "it has a header and no rows"),
        ("1,2,3\n4,5,6\n", "", "its first line holds numbers"),
        ("age\n5\n", "", "its only column is 'age'"),
        (PEOPLE.replace("sex", "age"), "", "two columns are named 'age'"),
        (PEOPLE.replace("age", ""), "", "column 1 has no name in the header"),
        (PEOPLE + "1,m\n", "", "row 21 has 2 values, and the header names 3 columns"),
        (PEOPLE + '1,"m,n\n', "", "cannot be read: unexpected end of data"),
        (PEOPLE.replace("35,f,y", "35,f,"), "", "missing value for the label: row 6 has none in the column 'label'"),
        (PEOPLE + "1,m,x\n", "", "class 'x' has a single row"),
        (HEAD + "1,m,n\n2,f,y\n3,m,n\n4,f,y\n", "", "no class has five"),
        (PEOPLE.replace("m,", ",").replace("f,", ","), "", "invalid value 'sex' for column: it has no values at all"),
        (PEOPLE.replace("m,", "?,").replace("f,", "?,"), "--fill drop-row", "it has no values at all"),
        (PEOPLE, "--test-column sex", "invalid value 'f' for column sex: it must be one of"),
        (PEOPLE, "--fill median", "for --fill: it must be one of drop-row, mean"),
    ],
)
def test_refusals(tmp_path: Path, text: str, options: str, reason: str) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert reason in refused(invoke(tmp_path, *f"run --dataset csv:t.csv {options}".split()))


def test_a_suggestion_for_a_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(PEOPLE)
    with pytest.raises(UserError) as caught:
        read(tmp_path / "t.csv", label="lable")
    assert caught.value.hint == "did you mean 'label'?"


def test_many_categories_are_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "AT_ONCE", 200)
    path = tmp_path / "t.csv"
    path.write_text("name,label\n" + "".join(f"n{row},{row % 2}\n" for row in range(100_000)) + "ragged\n")
    with pytest.raises(
        UserError, match="'name' for column: it has more than 100 categories, such as n0, n1, n2"
    ) as error:
        read(path)  # the last row, which is wrong too, is never reached
    assert "--drop name" in str(error.value.hint)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(PEOPLE.replace("m", "é").encode("latin-1"))
    assert "it is not UTF-8 text: byte 0xe9" in refused(invoke(tmp_path, "run", "--dataset", "csv:t.csv"))


def test_a_packed_file_that_is_cut(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(PEOPLE.encode())[:-20])
    assert "it is damaged or cut short" in refused(invoke(tmp_path, "run", "--dataset", "csv:t.csv.gz"))


def test_options_of_tables_are_refused_elsewhere(tmp_path: Path) -> None:
    assert "--label: it is for tables, and digits is none" in refused(
        invoke(tmp_path, "run", "--dataset", "digits", "--label", "y")
    )


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        {"columns": [], "missing": []},
        {"columns": [{"name": "a"}, {"name": "a"}], "missing": []},
        {"columns": [{"name": "a", "fill": "x"}], "missing": []},
        {"columns": [{"name": "a", "categories": ["b"], "fill": 1.0}], "missing": []},
        {"columns": [{"name": "a", "more": 1}], "missing": []},
        {"columns": [{"name": "a"}], "missing": [], "more": 1},
    ],
)
def test_an_encoding_of_anything_else_is_refused(said: object) -> None:
    with pytest.raises(UserError):
        TableEncoding.from_json(said)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"age": "x", "sex": "m"}, "it must be a number"),
        ({"age": "inf", "sex": "m"}, "it must be a finite number"),
        ({"age": "1", "sex": "w"}, "invalid value 'w' for sex in row 1"),
        ({"age": "1"}, "row 1"),
        ((1, "m", 2), "give 2 values"),
        ("1m", "give 2 values"),
        ({"age": "1", "sex": ""}, "it is missing"),
    ],
)
def test_rows_that_cannot_be_encoded(row: dict[str, object], reason: str) -> None:
    table = TableEncoding((Column("age", fill=1.0), Column("sex", ("f", "m"))), ("",))
    with pytest.raises(UserError, match=reason):
        table.encode([row])


def test_a_run_writes_its_columns_down(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(PEOPLE.replace("label", "ill"))
    words = "run --dataset csv:t.csv --label ill --split iid --clients 2 --rounds 1 --method fedavg --quiet --out run"
    succeed(tmp_path, *words.split())
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "label: ill" in config
    assert f"csv:{(tmp_path / 't.csv').resolve()}" in config


def test_parquet_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").touch()
    with pytest.raises(UserError, match="needs the package pyarrow") as error:
        load(f"parquet:{tmp_path / 't.parquet'}")
    assert error.value.hint == "pip install 'protofed[parquet]'"


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="an extra")
def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [{**row, "age": float(row["age"])} for row in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "people.parquet")
    packed, plain = load(f"parquet:{tmp_path / 'people.parquet'}"), read(write(tmp_path / "people.csv"))
    assert torch.equal(packed.train.x, plain.train.x)
    assert packed.encoding == plain.encoding


def test_a_look_at_a_table(tmp_path: Path) -> None:
    rows = [{**row, "who": f"p{place % 8}"} for place, row in enumerate(ROWS)]
    rows[7]["age"] = "?"
    write(tmp_path / "people.csv", rows)
    words = ("data", "people.csv", "--client-column", "who", "--drop", "city")
    about = json.loads(succeed(tmp_path, *words, "--json").out)
    kinds = {one["name"]: one["kind"] for one in about["columns"]}
    assert kinds == {"age": "number", "sex": "category", "city": "dropped", "label": "label", "who": "client"}
    assert [one["missing"] for one in about["columns"]] == [1, 0, None, 0, 0]
    assert about["clients"] == {f"p{number}": 5 for number in range(8)}
    assert about["classes"] == {"n": [16, 4], "y": [16, 4]}
    assert (about["rows"], about["shape"], about["refused"], about["left_out"]) == (40, [3], [], 0)
    shown = succeed(tmp_path, *words).out
    assert "age=30 sex=female" in shown
    assert "n 16+4, y 16+4" in shown


def test_a_look_names_all_that_is_refused_and_fits_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [f"name{row},{'x' if row == 9 else row},{row % 2}" for row in range(150)]
    (tmp_path / "t.csv").write_text("\n".join(["id,age,label", *lines]))
    outcome = invoke(tmp_path, "data", "t.csv")
    assert outcome.code == 2
    assert "more than 100 categories" in outcome.err
    assert "invalid value 'x' for column age: the column holds numbers, and row 10 is none" in outcome.err
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_a_look_at_other_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "a+b.npz", x=np.eye(10, dtype=np.float32), labels=np.arange(10) % 2)
    assert json.loads(succeed(tmp_path, "data", "a+b.npz", "--json").out)["shape"] == [10]
    (tmp_path / "t.xlsx").touch()
    assert "the end of its name does not say what it is" in refused(invoke(tmp_path, "data", "t.xlsx"))
    about = json.loads(succeed(tmp_path, "data", "digits", "--json").out)
    assert (about["train"], about["test"], about["shape"], about["preparation"]) == (1442, 355, [1, 8, 8], "pixels")
    assert "there is none of that name" in refused(invoke(tmp_path, "data", "digit"))
    assert "there is no file none.csv" in refused(invoke(tmp_path, "data", "csv:none.csv"))


def test_new_rows_need_no_label_and_may_have_one_column(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age\n5\n")
    table = TableEncoding((Column("age"),), ("",))
    assert table.encode(read_records(tmp_path / "new.csv", table)[1]).tolist() == [[5.0]]
