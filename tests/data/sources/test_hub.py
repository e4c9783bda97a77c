"""`hf:`: datasets of the package `datasets`, from folders and from its cache; nothing here needs a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.data import load
from protofed.data.sources.tables import TableOptions
from protofed.errors import UserError
from protofed.experiment import Experiment, absolute_name
from tests.support.command_line import invoke, refused, succeed

datasets: Any = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No network, and caches of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module in (datasets.config, __import__("huggingface_hub").constants):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    return tmp_path / "hf"


def options(**said: str) -> TableOptions:
    return TableOptions.of(Experiment(**said))  # type: ignore[arg-type]


def pictures(number: int) -> Any:
    """Of three classes and two domains; the red of a picture is ten times the number of its class."""
    labels = [row % 3 for row in range(number)]
    red = [torch.zeros(6, 6, 3, dtype=torch.uint8).index_fill(2, torch.tensor(0), 10 * label) for label in labels]
    features = {
        "image": datasets.Image(),
        "kind": datasets.ClassLabel(names=["z", "b", "a"]),
        "site": datasets.Value("string"),
    }
    values = {"image": [one.numpy() for one in red], "kind": labels, "site": ["north", "south"] * (number // 2)}
    return datasets.Dataset.from_dict(values, features=datasets.Features(features))


def texts(number: int) -> Any:
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    values: dict[str, list[Any]] = {"text": [f"{'good' if row % 2 else 'bad'} text" for row in range(number)]}
    values["label"] = [row % 2 for row in range(number)]
    return datasets.Dataset.from_dict(values, features=datasets.Features(features))


def rows(number: int) -> Any:
    values = {"a": [float(row) for row in range(number)], "b": ["u", "v"] * (number // 2)}
    return datasets.Dataset.from_dict({**values, "kind": [row % 2 for row in range(number)]})


def test_pictures_with_classes_in_their_order_and_domains(tmp_path: Path) -> None:
    datasets.DatasetDict(train=pictures(24), test=pictures(6)).save_to_disk(tmp_path / "pets")
    data = load(f"hf:{tmp_path / 'pets'}", columns=options(domain_column="site"), image_size=6)
    assert (data.classes, data.domains, len(data.train), len(data.test)) == (("z", "b", "a"), ("north", "south"), 24, 6)
    assert torch.equal(data.train.x[:, 0, 0, 0], 10 * data.train.labels)
    assert data.train.x.shape[1:] == (3, 6, 6)
    assert len(load(f"hf:{tmp_path / 'pets'}", columns=options(drop="site")).domains) == 1


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_text_of_a_file_or_of_a_folder(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "mail").mkdir()
    if suffix == "parquet":
        texts(20).to_parquet(tmp_path / "mail" / "train.parquet")
        texts(10).to_parquet(tmp_path / "mail" / "test.parquet")
    else:
        texts(20).save_to_disk(tmp_path / "whole")
        (file,) = (tmp_path / "whole").glob("*.arrow")
        (tmp_path / "mail" / "one.arrow").write_bytes(file.read_bytes())
    data = load(f"hf:{tmp_path / 'mail'}")
    assert (len(data.train), len(data.test)) == ((20, 10) if suffix == "parquet" else (16, 4))
    assert data.classes == ("bad", "good")
    assert data.encoding is not None
    assert data.encoding.show(data.train.x[1]) == "good text"


def test_rows_are_a_table(tmp_path: Path) -> None:
    datasets.DatasetDict(train=rows(20), validation=rows(4)).save_to_disk(tmp_path / "rows")
    data = load(f"hf:{tmp_path / 'rows'}", columns=options(label="kind"))
    assert (len(data.train), len(data.test), data.classes) == (20, 4, ("0", "1"))
    assert data.train.x[3].tolist() == [3.0, 0.0, 1.0]
    assert len(load(f"hf:{tmp_path / 'rows'}", columns=options(label="kind", drop="b")).train.x[0]) == 1


def test_test_parts_whose_classes_are_kept_back_are_not_tested_on(tmp_path: Path) -> None:
    hidden = texts(8).map(lambda row: {**row, "label": -1})
    datasets.DatasetDict(train=texts(20), validation=texts(6), test=hidden).save_to_disk(tmp_path / "contest")
    assert len(load(f"hf:{tmp_path / 'contest'}").test) == 6


def test_a_name_is_read_from_the_cache_without_a_network(offline: Path, tmp_path: Path) -> None:
    from datasets.packaged_modules.parquet.parquet import Parquet

    texts(20).to_parquet(tmp_path / "part.parquet")
    for config in ("default", "small"):
        about = {"dataset_name": "mail", "config_name": config, "hash": "0" * 16}
        files = {"train": [str(tmp_path / "part.parquet")]}
        Parquet(cache_dir=str(offline), data_files=files, **about).download_and_prepare()
    place = (offline / "mail").rename(offline / "people___mail")
    for folder in [*place.iterdir()]:
        folder.rename(place / folder.name.partition("-")[0])  # as for files that a repository names
    (tmp_path / "part.parquet").unlink()
    assert len(load("hf:people/mail/small").train) == 16
    assert load("hf:people/mail/default").classes == ("bad", "good")


def test_a_run_from_the_command_line(tmp_path: Path) -> None:
    rows(40).save_to_disk(tmp_path / "rows")
    told = ("--label", "kind", "--clients", "2", "--rounds", "1", "--min-size", "2", "--quiet", "--device", "cpu")
    succeed(tmp_path, "run", "--dataset", "hf:rows", "--model", "linear", "--method", "fedavg", *told)
    assert "classes" in succeed(tmp_path, "data", "hf:rows", "--label", "kind").out


def test_names_stay_names_and_paths_become_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert absolute_name("hf:people/mail") == "hf:people/mail"
    assert absolute_name("hf:mine") == f"hf:{tmp_path / 'mine'}"


@pytest.mark.parametrize(
    ("name", "said", "says"),
    [
        ("nobody/such", (), "neither in the cache"),
        ("such", (), "neither in the cache"),
        ("rows", (), "--label: name the column of the classes"),
        ("rows", ("--label", "kinds"), "did you mean 'kind'"),
        ("empty", (), "neither what save_to_disk wrote"),
        ("script", (), "neither what save_to_disk wrote"),
        ("blank", (), "row 2 of its train part is empty"),
        ("lists", (), "its column 'x' holds"),
        ("holes", (), "row 2 of its train part has no picture"),
        ("damaged", (), "hf:damaged"),
    ],
)
def test_what_cannot_be_read_is_one_line(name: str, said: tuple[str, ...], says: str, tmp_path: Path) -> None:
    rows(20).save_to_disk(tmp_path / "rows")
    (tmp_path / "empty").mkdir()
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "script.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    datasets.Dataset.from_dict({"text": ["a", " "] * 5, "label": [0, 1] * 5}).save_to_disk(tmp_path / "blank")
    datasets.Dataset.from_dict({"x": [[1, 2], [3]] * 5, "label": [0, 1] * 5}).save_to_disk(tmp_path / "lists")
    datasets.Dataset.from_dict(
        {"image": [pictures(2)[0]["image"], None] * 5, "label": [0, 1] * 5},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    ).save_to_disk(tmp_path / "holes")
    rows(20).save_to_disk(tmp_path / "damaged")
    (file,) = (tmp_path / "damaged").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:200])
    assert says in refused(invoke(tmp_path, "data", f"hf:{name}", *said))
    assert not (tmp_path / "executed").exists()


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="needs the package datasets") as caught:
        load("hf:people/mail")
    assert caught.value.hint == "pip install 'protofed[hf]'"
