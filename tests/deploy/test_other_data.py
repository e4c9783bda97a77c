"""Clients with data of their own that are no pictures: tables, series and text, each with a file of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from protofed.data import Shape
from protofed.deploy.client import UNUSABLE, Failed, WarmClient, check_data
from protofed.deploy.connections import NEW_TOKENS, OTHER_LAYOUT
from protofed.deploy.layouts import form_of
from protofed.deploy.owner import Owner
from protofed.deploy.server import serve
from protofed.deploy.server_settings import Settings
from protofed.deploy.wire import pack
from protofed.errors import UserError
from protofed.experiment import Experiment
from tests.deploy.test_rounds import QUICK, lines
from tests.support.command_line import succeed
from tests.support.loopback import Loopback, with_folder

Trouble = Callable[[Message], list[Message]]
COLUMNS = ("age", "pulse", "sex")
HALF = np.arange(40) % 2


def table(path: Path, number: int, columns: tuple[str, ...] = COLUMNS, sexes: tuple[str, ...] = ("f", "m")) -> str:
    rng = np.random.default_rng(number)
    rows = []
    for row in range(40):
        values = {"age": f"{rng.integers(30, 80)}", "pulse": f"{60 + 30 * (row % 2) + rng.integers(9)}"}
        values["sex"] = sexes[row // 2 % len(sexes)]
        rows.append(",".join([*(values[name] for name in columns), ("well", "ill")[row % 2]]))
    (path / f"{number}.csv").write_text("\n".join([",".join([*columns, "class"]), *rows]) + "\n")
    return f"csv:{path / f'{number}.csv'}"


def text(path: Path, number: int, more: str = "") -> str:
    words = (("sun", "warm", "dry"), ("rain", "cold", "wet"))
    rows = [f"{('fine', 'bad')[row % 2]}\t{' '.join(words[row % 2])} {row % 7} {more}" for row in range(40)]
    (path / f"{number}.tsv").write_text("\n".join(rows) + "\n")
    return f"text:{path / f'{number}.tsv'}"


def series(path: Path, number: int) -> str:
    rng = np.random.default_rng(number)
    labels = np.arange(40) % 2
    waves = (np.linspace(-1, 1, 12) * (1 - 2 * labels)[:, None])[:, None] + rng.normal(0, 0.1, (40, 2, 12))
    np.savez(path / f"{number}.npz", x=waves.astype(np.float32), labels=labels)
    return f"npz:{path / f'{number}.npz'}"


def play(
    place: Path, data: list[str], method: str, model: str, trouble: Trouble | None = None, **more: Any
) -> list[dict[str, Any]]:
    nodes = {100 + k: with_folder(place, k, data=said) for k, said in enumerate(data)}
    machine: dict[str, Any] = {"engine": "sequential", "device": "cpu", "threads": 1}
    asked = {
        "method": method,
        "model": model,
        "clients": len(data),
        "rounds": 4,
        "lr": 0.1,
        "batch_size": 8,
        **machine,
        **more,
    }
    (place / "nodes.json").write_text(json.dumps({k: 100 + k for k in range(len(data))}))
    settings = Settings(str(place / "run"), nodes=str(place / "nodes.json"), **{**QUICK, "deadline": 30.0})
    serve(Loopback(nodes, trouble), Experiment.from_mapping(asked), settings)
    return lines(place / "run")


@pytest.mark.parametrize(
    ("make", "model", "method"),
    [
        (table, "mlp", "mp-fedcl"),
        (table, "linear", "fedavg"),
        (text, "embedding-bag", "fedavg"),
        (series, "cnn1d", "fedproto"),
        (series, "gru", "fedavg"),
    ],
)
def test_they_are_trained_on_and_tested(make: Any, model: str, method: str, tmp_path: Path) -> None:
    found = play(tmp_path, [make(tmp_path, number) for number in range(3)], method, model)
    assert [line["participants"] for line in found] == [[0, 1, 2]] * 4
    assert not any("left_out" in line for line in found)
    assert found[-1]["accuracy"]["own/own/head"] > 60


def test_who_has_other_columns_is_not_averaged_with_the_others(tmp_path: Path) -> None:
    """The same number of columns in another order, or with another category, would go unnoticed."""
    data = [table(tmp_path, 0), table(tmp_path, 1), table(tmp_path, 2, ("pulse", "age", "sex"))]
    data.append(table(tmp_path, 3, sexes=("female", "male")))
    found = play(tmp_path, data, "fedavg", "mlp")
    assert found[-1]["participants"] == [0, 1]
    assert found[-1]["left_out"] == {"2": OTHER_LAYOUT, "3": OTHER_LAYOUT}


def test_who_shares_no_weights_may_have_other_columns(tmp_path: Path) -> None:
    data = [table(tmp_path, 0), table(tmp_path, 1, ("pulse", "age", "sex")), table(tmp_path, 2, ("age", "sex"))]
    assert play(tmp_path, data, "fedproto", "mlp")[-1]["participants"] == [0, 1, 2]


def test_words_of_their_own_are_not_averaged(tmp_path: Path) -> None:
    data = [text(tmp_path, 0), text(tmp_path, 1, "fog"), text(tmp_path, 2, "ice")]
    found = play(tmp_path, data, "fedavg", "embedding-bag")
    assert found[-1]["participants"] == [0]
    assert found[-1]["left_out"] == {"1": OTHER_LAYOUT, "2": OTHER_LAYOUT}


def one_class(path: Path, number: int) -> str:
    name = table(path, number)
    file = path / f"{number}.csv"
    file.write_text(file.read_text().replace(",well", ",ill"))
    return name


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "mp-fedcl"])
def test_a_client_may_have_a_single_class(method: str, tmp_path: Path) -> None:
    data = [table(tmp_path, 0), table(tmp_path, 1), one_class(tmp_path, 2)]
    found = play(tmp_path, data, method, "mlp", metrics="auc,f1")
    assert [line["participants"] for line in found] == [[0, 1, 2]] * 4
    assert len(found[-1]["per_client"]["own/own/head"]) == 3


def test_clients_that_all_have_the_same_class_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="all clients' samples are of the class 'ill'"):
        play(tmp_path, [one_class(tmp_path, number) for number in range(2)], "fedavg", "mlp")


def ids(path: Path, number: int, largest: int = 20, length: int = 6, **more: Any) -> str:
    rng, labels = np.random.default_rng(number), np.arange(40) % 2
    x = rng.integers(1, largest // 2, (40, length)) + labels[:, None] * (largest // 2)
    np.savez(path / f"{number}.npz", x=x, labels=labels, **more)
    return f"npz:{path / f'{number}.npz'}"


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_clients_whose_largest_token_ids_differ_train_together(method: str, tmp_path: Path) -> None:
    data = [ids(tmp_path, 0, 20), ids(tmp_path, 1, 30), ids(tmp_path, 2, 10, tokens=np.int64(50))]
    found = play(tmp_path, data, method, "embedding-bag")
    assert [line["participants"] for line in found] == [[0, 1, 2]] * 4
    label = json.loads((tmp_path / "run" / "flower.json").read_text())
    assert label["tokens"] == [50, 50, 50]  # of all, which the third one declares


def vectors(path: Path, number: int, size: int = 6) -> str:
    rng, labels = np.random.default_rng(number), np.arange(40) % 2
    x = rng.normal(size=(40, size)) + 3 * labels[:, None]
    np.savez(path / f"{number}.npz", x=x.astype(np.float32), labels=labels)
    return f"npz:{path / f'{number}.npz'}"


def waves(path: Path, number: int, steps: int = 9) -> str:
    rng, head = np.random.default_rng(number), "@problemName p\n@univariate true\n@classLabel true a b\n@data\n"
    rows = [",".join(f"{v:.3f}" for v in rng.normal(size=steps) + 3 * (k % 2)) + f":{'ab'[k % 2]}" for k in range(40)]
    (path / f"{number}.ts").write_text(head + "\n".join(rows) + "\n")
    return f"ts:{path / f'{number}.ts'}"


def test_vectors_of_another_size_are_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    data = [vectors(tmp_path, 0), vectors(tmp_path, 1), vectors(tmp_path, 2, size=5)]
    found = play(tmp_path, data, "fedavg", "mlp")
    assert [line["participants"] for line in found] == [[0, 1]] * 4
    assert found[-1]["left_out"] == {"2": OTHER_LAYOUT}


def test_who_shares_no_weights_may_have_vectors_of_another_size(tmp_path: Path) -> None:
    data = [vectors(tmp_path, 0), vectors(tmp_path, 1), vectors(tmp_path, 2, size=5)]
    assert play(tmp_path, data, "fedproto", "mlp")[-1]["participants"] == [0, 1, 2]
    (tmp_path / "linear").mkdir()  # but features must be of one size, and those of this model are the samples
    assert play(tmp_path / "linear", data, "fedproto", "linear")[-1]["left_out"] == {"2": OTHER_LAYOUT}


def test_what_no_model_is_for_is_left_out_with_the_reason(tmp_path: Path) -> None:
    found = play(tmp_path, [ids(tmp_path, 0), ids(tmp_path, 1), vectors(tmp_path, 2)], "fedproto", "embedding-bag")
    assert found[-1]["participants"] == [0, 1]
    assert "for --model: it takes token ids" in found[-1]["left_out"]["2"]


@pytest.mark.parametrize(("model", "there"), [("cnn1d", [0, 1, 2]), ("mlp", [0, 1])])
def test_series_of_another_length_are_averaged_where_a_model_takes_any(
    model: str, there: list[int], tmp_path: Path
) -> None:
    found = play(tmp_path, [waves(tmp_path, 0), waves(tmp_path, 1), waves(tmp_path, 2, steps=11)], "fedavg", model)
    assert found[-1]["participants"] == there


def test_why_data_does_not_fit_an_experiment_is_said_at_the_server(tmp_path: Path) -> None:
    """`--normalise pixels` is for pictures, which one of them has not."""
    pictures = tmp_path / "p.npz"
    np.savez(pictures, x=np.zeros((40, 8, 8), np.uint8) + np.arange(40, dtype=np.uint8)[:, None, None] % 2, labels=HALF)
    data = [f"npz:{pictures}", f"npz:{pictures}", vectors(tmp_path, 2)]
    found = play(tmp_path, data, "fedproto", "mlp", normalise="pixels")
    assert found[-1]["left_out"]["2"] == (
        "error 102: invalid value 'pixels' for --normalise: it is for pictures, and these samples are torch.float32 [6]"
    )


def test_where_an_owner_keeps_files_is_not_told(tmp_path: Path) -> None:
    nodes = {100 + k: with_folder(tmp_path, k, **({"data_dir": str(tmp_path)} if k == 2 else {})) for k in range(3)}
    client = WarmClient(Owner.read(Path(nodes[102]["client"])))
    asked = {"run": "ab", "experiment": asdict(Experiment(dataset="usps", clients=3, device="cpu"))}
    answer = client.answer("query.hello", pack(asked))
    assert isinstance(answer, Failed)
    assert "usps" in answer.reason
    assert str(tmp_path) not in answer.reason


def test_a_file_that_was_spoilt_since_the_start_is_told_of_at_the_client_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = [table(tmp_path, number) for number in range(3)]
    with (tmp_path / "2.csv").open("a") as file:
        file.write("secret,60,f,ill\n")
    caplog.set_level("ERROR", logger="protofed.client")
    found = play(tmp_path, data, "fedavg", "mlp")
    assert found[-1]["left_out"] == {"2": f"it refuses: {UNUSABLE}"}
    assert "secret" in caplog.text
    assert "secret" not in (tmp_path / "run" / "rounds.jsonl").read_text()


def test_data_that_no_experiment_can_use_is_refused_at_the_start(tmp_path: Path) -> None:
    check_data(Owner(0, data=one_class(tmp_path, 0)))  # others may have more classes
    np.savez(tmp_path / "f.npz", x=np.zeros((30, 3), np.float32))
    with pytest.raises(UserError, match="no array `labels`"):
        check_data(Owner(0, data=f"npz:{tmp_path / 'f.npz'}"))
    with pytest.raises(UserError, match="for --label"):
        check_data(Owner(0, data=table(tmp_path, 1), columns={"label": "klass"}))


def test_a_run_that_goes_on_has_the_token_ids_that_it_began_with(tmp_path: Path) -> None:
    data = [ids(tmp_path, 0, 20), ids(tmp_path, 1, 30), ids(tmp_path, 2, 20)]

    def stop(answer: Message) -> list[Message]:
        if answer.metadata.group_id == "3":
            raise KeyboardInterrupt
        return [answer]

    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, data, "fedavg", "embedding-bag", trouble=stop)
    ids(tmp_path, 2, 40)
    found = play(tmp_path, data, "fedavg", "embedding-bag")
    assert [line["participants"] for line in found] == [[0, 1, 2]] * 2 + [[0, 1]] * 2
    assert found[-1]["left_out"] == {"2": NEW_TOKENS}


def test_two_methods_over_a_network_are_compared_in_one_table(tmp_path: Path) -> None:
    data = [waves(tmp_path, number) for number in range(3)]
    for method in ("fedavg", "fedproto"):
        (tmp_path / method).mkdir()
        play(tmp_path / method, data, method, "cnn1d", rounds=2)
    words = ("report", "fedavg/run", "fedproto/run", "--out", "both.html", "--figures", "figures")
    succeed(tmp_path, *words)
    table = (tmp_path / "figures" / "tables.tex").read_text()
    assert {"fedavg", "fedproto"} <= {line.split("&")[0].strip().lower() for line in table.splitlines() if "&" in line}


def test_samples_that_would_make_a_huge_model_take_no_memory() -> None:
    """A client may name any shape: the server does not make room for a model of 34 GB."""
    plan = Experiment(method="fedavg", model="mlp", clients=2)
    assert "for --model: for samples of [16777216] it has 34" in str(form_of(plan, "mlp", Shape((2**24,))))
