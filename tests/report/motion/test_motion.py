"""The motion of runs: one projection in which only what changed in the models moves, and what is drawn of it."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protofed.report.html import looks
from protofed.report.html.content import motion_of
from protofed.report.motion import projection
from protofed.report.motion.animation import moment
from protofed.report.motion.projection import Cloud, project
from tests.support.command_line import TINY, invoke, refused, succeed


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places instead of t-SNE, which takes a second."""
    monkeypatch.setattr(looks, "plane", lambda seen: [[1.0, 2.0]] * (len(seen.features) + len(seen.prototypes)))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, a seed, three rounds."""
    place = tmp_path_factory.mktemp("motion")
    here = ("--jobs", "1", "--threads", "1", "--out", "<b>both", "--quiet")
    succeed(place, "compare", *TINY[2:], "--method", "fedproto,fedavg", "--seeds", "1", *here)
    return place / "<b>both"


def some_clouds(rounds: int = 3, size: int = 6) -> tuple[list[Cloud], Any]:
    """Four classes that move apart."""
    draws = np.random.default_rng(0)
    labels = np.arange(40) % 4
    middles, noise = draws.normal(size=(4, size)), draws.normal(size=(40, size))
    return [Cloud(n * middles[labels] + noise, n * middles) for n in range(1, rounds + 1)], labels


def distances(points: Any) -> Any:
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def test_a_rotation_a_move_and_a_scale_of_a_model_move_nothing() -> None:
    """They change no answer of the nearest prototype; a round of its own each, for every round of the second run."""
    run, labels = some_clouds()
    draws = np.random.default_rng(1)
    other = []
    for features, prototypes in run:
        turn, move, scale = np.linalg.qr(draws.normal(size=(6, 6)))[0], draws.normal(size=6), draws.uniform(0.5, 9)
        other.append(Cloud(scale * features @ turn + move, scale * prototypes @ turn + move))
    first, second = project([run, other], labels, 4)
    for one, same in zip(first, second, strict=True):
        np.testing.assert_allclose(one.features, same.features, atol=1e-9)
        np.testing.assert_allclose(one.prototypes, same.prototypes, atol=1e-9)


def test_rotating_rounds_onto_each_other_changes_no_distance() -> None:
    run, _ = some_clouds()
    scaled = [projection._scaled(cloud, 6) for cloud in run]
    for before, after in zip(scaled, projection._turned(scaled, scaled[0].features), strict=True):
        both = [np.concatenate(cloud) for cloud in (before, after)]
        np.testing.assert_allclose(distances(both[0]), distances(both[1]), atol=1e-9)


def test_classes_of_the_last_round_lie_apart() -> None:
    run, labels = some_clouds(rounds=6)
    ((*_, last),) = project([run], labels, 4)
    nearest = distances(np.concatenate([last.features, last.prototypes]))[:40, 40:].argmin(1)
    assert (nearest == labels).mean() > 0.9


def test_neighbours_on_the_ring_are_alike() -> None:
    """The shortest tour of points on a circle is the circle; against all tours of seven."""
    angles = np.random.default_rng(3).permutation(7) / 7 * 2 * np.pi
    order = projection._ring(np.stack([np.cos(angles), np.sin(angles)], 1))
    steps = np.diff(np.rint(angles[[*order, order[0]]] / (2 * np.pi) * 7)) % 7
    assert {*steps} in ({1}, {6})


@pytest.mark.parametrize("classes", [1, 2])
def test_one_class_or_two_or_nothing_that_differs_is_drawn(classes: int) -> None:
    labels = np.arange(10) % classes
    spread = np.random.default_rng(0).normal(size=(10, 5)) + labels[:, None]
    for features in (spread, np.zeros((10, 5))):
        ((cloud,),) = project([[Cloud(features, features[:2])]], labels, classes)
        assert np.isfinite(np.concatenate(cloud)).all()


def test_features_of_other_lengths_are_placed_together() -> None:
    run, labels = some_clouds()
    longer, _ = some_clouds(size=9)
    assert [[part.shape for part in cloud] for one in project([run, longer], labels, 4) for cloud in one] == [
        [(40, 2), (4, 2)]
    ] * 6


def test_both_methods_show_the_same_samples(comparison: Path) -> None:
    data = motion_of([comparison])["motion"]
    (samples,) = data["samples"]
    assert list(data["runs"]) == ["fedproto", "fedavg"]
    for run in data["runs"].values():
        assert run["rounds"] == [1, 2, 3]
        assert all(len(places) == 2 * len(samples["points"]) for places in run["places"])
        assert all(0 <= value <= 1000 for places in run["places"] for value in places)
        assert run["score"] == "own/own/head"
        assert len(run["curve"]) == 3
    assert data["runs"]["fedproto"]["kinds"] == ["local", "global"]


def test_the_report_holds_it(comparison: Path) -> None:
    text = (comparison / "report.html").read_text()
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert json.loads(found)["motion"] == motion_of([comparison])["motion"]


def test_runs_that_kept_other_samples_have_projections_of_their_own(comparison: Path, tmp_path: Path) -> None:
    succeed(tmp_path, "run", *TINY, "--seed", "5", "--rounds", "1", "--alpha", "9", "--out", "other", "--quiet")
    data = motion_of([comparison, tmp_path / "other"])["motion"]
    assert [run["samples"] for run in data["runs"].values()] == [0, 0, 1]


def test_a_gif_a_page_and_a_video(comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("some.gif", "some.html"):
        assert succeed(tmp_path, "animate", str(comparison), "--out", name).out == f"{name}\n"
    with Image.open(tmp_path / "some.gif") as picture:
        picture.seek(2)  # there are three or more
    text = (tmp_path / "some.html").read_text()
    assert "Content-Security-Policy" in text
    assert '"motion":{' in text
    program = tmp_path / "bin/ffmpeg"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", str(program.parent))
    told = refused(invoke(tmp_path, "animate", str(comparison), "--out", "some.mp4"))
    assert "ffmpeg" in told
    program.write_text('#!/bin/sh\nfor last; do :; done\n/bin/wc -c > "$last"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    succeed(tmp_path, "animate", str(comparison), "--out", "some.mp4")
    frames = int((tmp_path / "some.mp4").read_text())
    assert frames > 0
    program.write_text("#!/bin/sh\n/bin/cat > /dev/null\necho no such codec >&2\nexit 1\n")
    assert "no such codec" in refused(invoke(tmp_path, "animate", str(comparison), "--out", "some.mp4"))


def test_wrong_names_are_refused_before_any_work(comparison: Path, tmp_path: Path) -> None:
    assert ".gif" in refused(invoke(tmp_path, "animate", str(comparison), "--out", "some.avi"))
    assert "no folder" in refused(invoke(tmp_path, "animate", str(comparison), "--out", "none/some.gif"))
    succeed(tmp_path, "run", *TINY, "--no-motion", "--rounds", "1", "--out", "still", "--quiet")
    assert "has kept" in refused(invoke(tmp_path, "animate", "still", "--out", "some.gif"))
    succeed(tmp_path, "report", "still")
    assert '"motion":null' in (tmp_path / "still/report.html").read_text()


def test_a_moment_lies_between_two_rounds() -> None:
    assert [moment([2, 4], now) for now in (1, 2, 3, 4, 9)] == [(0, 0, 0), (0, 1, 0), (0, 1, 0.5), (1, 1, 0), (1, 1, 0)]
