"""The benchmarks run, and their plain loops do the work that ProtoFed does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmarks import measure, parity_gpu, plain, report
from benchmarks.__main__ import main
from protofed.data import Client, Federation, Samples
from protofed.data.preparation import Preparation
from protofed.experiment import Experiment
from protofed.methods.base import Clock, Server
from protofed.models import build
from protofed.randomness import key
from protofed.runs.run import new_run

SHAPE = (1, 8, 8)
CPU = torch.device("cpu")


def toy(classes: int, images: int) -> Federation:
    """Three clients of equal size with unequal labels; each class a little different from noise."""
    draws = torch.Generator().manual_seed(1)

    def samples(number: int, first: int) -> Samples:
        labels = (torch.arange(number) % classes + torch.randint(0, 2, (number,), generator=draws) + first) % classes
        noise = torch.randint(0, 200, (number, *SHAPE), generator=draws)
        return Samples.of((noise + 5 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels)

    pool = samples(20, 0)
    clients = [
        Client(samples(images, k), pool, torch.arange(10), None, Preparation("pixels", (0.4,), (0.3,)))
        for k in range(3)
    ]
    return Federation(tuple(clients), tuple(str(c) for c in range(classes)))


def with_weights_of(ours: nn.Module, model: nn.Module) -> nn.Module:
    """A plain model with the weights of ours: the same layers in the same order."""
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), ours.parameters(), strict=True):
            mine.copy_(theirs)
    return model


@pytest.mark.parametrize("method", plain.METHODS)
def test_the_plain_loops_have_the_losses_of_protofed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # With all samples in one batch no draw is left but the start of k-means; at most two samples a class need none.
    federation = toy(*((10, 10) if method == "mp-fedcl" else (3, 24)))
    experiment = Experiment(
        method=method, model="mlp", clients=3, batch_size=24, epochs=2, lr=0.001 if method == "fedplcc" else 0.1,
        weight_decay=0.01, rounds=3, lr_decay=0.5, device="cpu", engine="sequential",
        params=dict(plain.FEDSC if method == "fedsc" else {"lambda1": 100.0} if method == "fedplcc" else {}),
    )  # fmt: skip
    run = new_run(experiment, federation=federation)
    ours = build("mlp", SHAPE, len(federation.classes), key(experiment.seed, "weights"))
    monkeypatch.setitem(plain.MODELS, "mlp", lambda shape, c: with_weights_of(ours, plain.Mlp(shape, c)))
    loop = plain.METHODS[method](experiment, federation, CPU)
    for number in range(3):
        clock = Clock(number, 3, (0, 1, 2), 3, 0)
        outcome = run.engine.round(range(3), run.broadcast, clock)
        run.broadcast = run.method.aggregate(outcome.uploads, Server(run.broadcast, clock))
        assert loop.round(range(3)) == pytest.approx(sum(outcome.losses) / 3, rel=1e-5), f"round {number}"
    scores = loop.evaluate()
    assert scores
    assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mlp", SHAPE), ("cnn", (1, 28, 28)), ("resnet10", (3, 16, 16)), ("mobilenet-v2", (3, 16, 16))],
)
def test_the_plain_models_are_those_of_protofed(name: str, shape: tuple[int, int, int]) -> None:
    ours = build(name, shape, 10, 0).eval()
    theirs = with_weights_of(ours, plain.MODELS[name](shape, 10)).eval()
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, (features, logits) = ours(x), theirs(x)
    torch.testing.assert_close(features, expected.features)
    torch.testing.assert_close(logits, expected.logits)


def test_plain_k_means_finds_separate_groups() -> None:
    rows = torch.tensor([[0.0, 0], [0, 2], [10, 0], [10, 2], [10, 4]])
    assert sorted(plain.kmeans(rows, 2).tolist()) == [[0, 1], [10, 2]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted), max_size=8))
def test_the_covered_time_is_the_length_of_a_union(intervals: list[list[int]]) -> None:
    seconds = {second for start, end in intervals for second in range(start, end)}
    assert measure.covered([(start, end) for start, end in intervals]) == len(seconds)


def test_the_floor_counts_the_arithmetic_and_the_traffic_of_a_round() -> None:
    experiment = Experiment(method="fedavg", model="mlp", clients=3, batch_size=8, epochs=2)
    loop = plain.FedAvg(experiment, toy(3, 20), CPU)
    layers = [(64, 512), (512, 512), (512, 256), (256, 3)]
    products = sum(inputs * outputs for inputs, outputs in layers)
    kept = 4 * 8 * (64 + 512 + 512 + 256 + 3)  # inputs of the layers and the log-probabilities; a batch of 8
    found = measure.floor(loop, [0, 2], CPU)
    assert found["steps"] == 12
    assert found["flops"] == 80 * (6 * products - 2 * 64 * 512)  # no gradient is asked for the images
    parameters = products + 512 + 512 + 256 + 3
    assert found["bytes"] - 12 * 8 * 4 * parameters == pytest.approx(2 * kept * 80 / 8, rel=0.05)
    assert "seconds" not in found  # nothing is known of this CPU


def test_contenders_take_turns_and_keep_their_own_settings() -> None:
    before, seen = measure.Flags.now(), []

    def contender(name: str, tune: bool) -> Callable[[], measure.Contender]:
        def make() -> measure.Contender:
            torch.backends.cudnn.benchmark = tune
            return measure.Contender(lambda: seen.append((name, torch.backends.cudnn.benchmark)))

        return make

    makers = {"a": contender("a", True), "b": contender("b", False)}
    found = measure.race(makers, 2, measure.Deadline(None), CPU)
    assert seen == [("a", True), ("b", False)] * 2
    assert [len(entry["repeats"]) for entry in found.values()] == [2, 2]
    assert measure.Flags.now() == before

    found = measure.race(makers, 2, measure.Deadline(0), CPU)
    assert [len(entry["repeats"]) for entry in found.values()] == [1, 1]


def test_the_tables_hold_ratios_to_the_plain_loop_and_to_the_floor() -> None:
    ours = {"seconds": 0.02, "busy": 0.8, "memory": 5e6, "floor": {"seconds": 0.01}}
    entries = {"plain loop": {"seconds": 2.0, "busy": 0.1}, "ProtoFed": ours}
    work = {
        "title": "A round", "set-up": "small", "data": "MNIST", "target": "25 ms", "contenders": entries,
        "images": 1000,
    }  # fmt: skip
    about = {"device": "cuda", "cores": 8, "threads": 4, "torch": "2", "python": "3"}
    text = report.markdown({"a GPU": {"about": about, "workloads": {"round": work}}})
    assert "| ProtoFed | 20 ms | 25 ms | 100.0 | 50,000 | 10 ms | 2.0× | 80 % | 5 MB |" in text
    text = report.markdown({"a CPU": {"about": about | {"device": "cpu"}, "workloads": {"round": work}}})
    assert "| A round | ProtoFed |  | plain loop | 100.00 |" in text
    assert "20 ms" not in text  # a CPU's seconds stay in the JSON


@pytest.mark.slow
def test_a_smoke_run_saves_and_merges_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--tiny", "--device", "cpu", "--repeats", "1", "--out", str(tmp_path)]
    for names in (["fedproto-20", "model-mlp"], ["table-vi"]):
        assert main([*common, *(word for name in names for word in ("--only", name))]) == 0
    ((_, saved),) = json.loads((tmp_path / "performance.json").read_text(encoding="utf-8")).items()
    assert list(saved["workloads"]) == ["fedproto-20", "table-vi", "model-mlp"]
    for work in saved["workloads"].values():
        assert list(work["contenders"])[:2] == ["plain loop", "ProtoFed"]
        assert all(entry["seconds"] > 0 for entry in work["contenders"].values())
    assert saved["workloads"]["fedproto-20"]["data"] == "random 1×28×28 images"
    assert (tmp_path / "performance.md").read_text(encoding="utf-8") in capsys.readouterr().out
    assert (tmp_path / "performance.png").stat().st_size > 1000


def test_workloads_are_named_and_nothing_starts_after_the_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--list", "--only", "model-*"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "model-mlp", "model-cnn", "model-resnet10", "model-mobilenet-v2",
    ]  # fmt: skip
    assert main(["--tiny", "--device", "cpu", "--budget", "0", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "performance.json").read_text(encoding="utf-8")) == {}
    with pytest.raises(SystemExit, match="nonsense"):
        main(["--only", "nonsense"])


def test_a_failing_workload_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plain.METHODS["fedproto"]

    class Broken(whole):  # type: ignore[misc, valid-type]  # a class chosen by name
        def round(self, who: Any) -> float:  # noqa: ARG002
            raise RuntimeError("out of luck")

    monkeypatch.setitem(plain.METHODS, "fedproto", Broken)
    words = ["--tiny", "--device", "cpu", "--repeats", "1", "--out", str(tmp_path)]
    assert main([*words, "--only", "fedproto-20", "--only", "mp-fedcl"]) == 1
    ((_, saved),) = json.loads((tmp_path / "performance.json").read_text(encoding="utf-8")).items()
    assert saved["workloads"]["fedproto-20"]["failed"] == "RuntimeError: out of luck"
    assert "contenders" in saved["workloads"]["mp-fedcl"]
    assert "out of luck" in (tmp_path / "performance.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [None, 1])
def test_the_comparison_of_engines_runs_on_a_cpu_too(width: int | None) -> None:
    found = parity_gpu.compare("fedavg", "Norm", width, "cpu")
    assert found["same"]
    assert found["captured"]
    assert cast(float, found["difference"]) < 1e-9
