"""Few-shot episodes against a loop over them, and where they are in a run."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from protofed.data import Samples, load
from protofed.data.build import federation_of
from protofed.errors import UserError
from protofed.evaluation.few_shot import QUERIES, Episodes, draw, interval
from protofed.experiment import Experiment
from protofed.runs.progress import Progress
from protofed.runs.run import new_run
from tests.support.command_line import result_of, succeed
from tests.support.nets import assert_same_run

SIZES = (18, 40, 20, 23)


def novel(size: int = 6) -> tuple[Samples, Tensor]:
    """Images of four classes of unequal size, shuffled, and overlapping features of them."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat_interleave(torch.tensor(SIZES))[torch.randperm(sum(SIZES), generator=rng)] + 7
    features = torch.randn(len(labels), size, generator=rng, dtype=torch.float64)
    features[:, 0] += labels
    return Samples.of(torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), labels), features


def test_accuracies_are_those_of_a_loop_over_episodes_and_queries() -> None:
    samples, features = novel()
    episodes = Episodes(samples, ways=3, shots=2, number=120, seed=5)
    slow = []
    for episode in episodes.rows.tolist():
        means = [[statistics.fmean(features[row, d].item() for row in rows[:2]) for d in range(6)] for rows in episode]
        right = 0
        for place, rows in enumerate(episode):
            for row in rows[2:]:
                distances = [math.dist(features[row].tolist(), mean) for mean in means]
                right += distances.index(min(distances)) == place
        slow.append(100 * right / (3 * QUERIES))
    found = episodes.play(features)
    assert found.tolist() == pytest.approx(slow)
    assert len(set(slow)) > 5
    assert interval(found.unsqueeze(0)) == pytest.approx(1.96 * statistics.stdev(slow) / math.sqrt(120))


def test_an_episode_is_of_different_classes_and_images() -> None:
    samples, _ = novel()
    rows = draw(samples.labels, 3, 3, 130, torch.Generator().manual_seed(1))
    assert rows.shape == (130, 3, 3 + QUERIES)
    seen = set()
    for episode in rows.tolist():
        classes = [{int(samples.labels[row]) for row in images} for images in episode]
        assert all(len(found) == 1 for found in classes)
        assert len(set.union(*classes)) == 3
        assert len({row for images in episode for row in images}) == 3 * (3 + QUERIES)
        seen |= {row for images in episode for row in images}
    assert seen == set(range(sum(SIZES)))  # every image comes up some time
    assert len({tuple(episode) for episode in rows[..., 0].tolist()}) > 100


def test_classes_and_images_are_drawn_evenly() -> None:
    samples, _ = novel()
    rows = draw(samples.labels, 2, 1, 4000, torch.Generator().manual_seed(2))
    classes = torch.bincount(samples.labels[rows[..., 0]].flatten(), minlength=11)[7:] / 8000
    assert (classes - 0.25).abs().max() < 0.02
    support = torch.bincount(rows[..., 0].flatten(), minlength=sum(SIZES))
    expected = 2000 / torch.tensor(SIZES)[samples.labels - 7]
    assert ((support - expected).abs() < 6 * expected.sqrt()).all()


def test_episodes_have_an_address() -> None:
    samples, _ = novel()
    first, again, other = (Episodes(samples, 2, 1, 30, seed).rows for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_interval_is_over_episodes_of_the_mean_over_models() -> None:
    scores = torch.tensor([[50.0, 60.0, 100.0], [70.0, 60.0, 20.0]], dtype=torch.float64)
    assert interval(scores) == 0.0
    assert interval(scores[:1]) == pytest.approx(1.96 * statistics.stdev([50, 60, 100]) / math.sqrt(3))


@pytest.mark.parametrize(
    ("ways", "shots", "says"),
    [(5, 1, "'5' for --episode-ways.*4 novel"), (2, 4, "'4' for --episode-shots.*has 18 test images")],
)
def test_episodes_that_cannot_be_drawn_are_refused(ways: int, shots: int, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Episodes(novel()[0], ways, shots, 10, 0)


def small(**settings: Any) -> Experiment:
    given: dict[str, Any] = {"method": "mp-fedcl", "alpha": 1.0, "train_size": 300, "clients": 3, "rounds": 2}
    given |= {"novel": 4, "episode_ways": 3, "episodes": 20, "device": "cpu", "engine": "sequential"}
    return Experiment(**(given | settings))


def test_novel_classes_are_kept_out_of_training_and_tests() -> None:
    whole = load("digits")
    found = federation_of(small(train_size=None, val_fraction=0.1))
    assert found.classes == whole.classes[:6]
    for client in found.clients:
        assert client.validation is not None
        assert max(int(part.labels.max()) for part in (client.train, client.validation, client.pool)) == 5
    assert len(found.clients[0].pool) == int((whole.test.labels < 6).sum())
    assert found.novel is not None
    assert torch.equal(found.novel.x, whole.test.x[whole.test.labels >= 6])
    assert federation_of(small(novel=0)).novel is None


def test_the_averaged_model_plays_them_after_each_evaluated_round() -> None:
    run = new_run(small(precision="float64"))
    result = run.play(None, Progress())
    name = "global/novel/3-way-5-shot"
    assert run.federation.novel is not None
    group = run.engine.groups[0]
    group.module.load_state_dict(dict(run.broadcast.weights))
    with torch.no_grad():
        features = group.module.eval()(group.inputs(run.federation.novel.x)).features
    scores = Episodes(run.federation.novel, 3, 5, 20, seed=0).play(features)
    found = result.accuracy[name]
    assert found.last == pytest.approx(float(scores.mean()))
    assert found.interval == pytest.approx(1.96 * float(scores.std()) / math.sqrt(20))
    assert found.per_client == pytest.approx([found.last] * 3)
    assert [name in line.accuracy for line in run.history] == [True, True]
    assert "own/novel/3-way-5-shot" not in result.accuracy


def test_without_an_averaged_model_every_client_plays_them() -> None:
    run = new_run(small(method="fedproto", lr=0.2))
    result = run.play(None, Progress())
    found = result.accuracy["own/novel/3-way-5-shot"]
    assert len(set(found.per_client)) > 1
    assert found.last == pytest.approx(statistics.fmean(found.per_client))
    assert found.interval is not None
    assert found.interval > 0
    assert not any(name.startswith("global/") for name in result.accuracy)


@pytest.mark.parametrize("method", ["fedproto", "fedavg"])
def test_engines_agree_on_episodes(method: str) -> None:
    runs = [new_run(small(method=method, engine=engine, precision="float64")) for engine in ("sequential", "stacked")]
    results = [run.play(None, Progress()) for run in runs]
    assert_same_run(runs[0], runs[1])
    assert len({found.interval for result in results for found in result.accuracy.values() if found.interval}) == 1


def test_a_federation_of_ones_own_may_have_novel_classes() -> None:
    data = federation_of(small())
    run = new_run(small(novel=0), federation=data)
    assert "global/novel/3-way-5-shot" in run.play(None, Progress()).accuracy
    assert data.novel is not None
    narrow = replace(data.novel, x=data.novel.x[..., :4])
    with pytest.raises(UserError, match="novel"):
        replace(data, novel=narrow)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"novel": 9}, "'9' for --novel.*two must be left"),
        ({"novel": 2}, "'3' for --episode-ways.*2 novel classes"),
        ({"dataset": "digits+digits"}, "'4' for --novel.*one dataset"),
        ({"episode_shots": 30}, "'30' for --episode-shots"),
    ],
)
def test_wrong_input_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        new_run(small(**settings))


def test_the_run_folder_and_the_tables_have_the_interval(tmp_path: Path) -> None:
    flags = ("--novel", "4", "--episode-ways", "3", "--episode-shots", "1", "--episodes", "10", "--device", "cpu")
    tiny = (
        *("--train-size", "200", "--clients", "2", "--rounds", "2", "--alpha", "1"),
        *("--eval-every", "2", "--threads", "1", "--quiet"),
    )
    said = succeed(tmp_path, "run", "--method", "fedavg", "--model", "cnn", *flags, *tiny, "--out", "one").out
    found = result_of(tmp_path / "one")["accuracy"]
    name = "global/novel/3-way-1-shot"
    assert f"{found[name]['last']:.2f} ± {found[name]['interval']:.2f}" in said
    assert [key for key, entry in found.items() if "interval" in entry] == [name]
    lines = [json.loads(line) for line in (tmp_path / "one" / "rounds.jsonl").read_text().splitlines()]
    assert [line["interval"] for line in lines] == [{}, {name: found[name]["interval"]}]
    said = succeed(tmp_path, "compare", "--method", "fedavg,local", "--seeds", "1", "--model", "cnn", *flags, *tiny).out
    assert name in said
    assert "own/novel/3-way-1-shot" in said
