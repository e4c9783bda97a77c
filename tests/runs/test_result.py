"""What is made of a run's rounds."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from protofed.errors import UserError
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.report.terminal import size
from protofed.runs.result import Accuracy, Result, common_score, summarise
from protofed.server.round import Round
from protofed.studies.comparison import Comparison
from tests.support.made_rounds import a_round
from tests.support.nets import Noisy, Norm, play
from tests.support.whole_runs import run_of

RESULT = Result(
    *("fedavg", "digits", "iid", 2, 3, 0, "sequential", "cpu", "mlp", {"k": 1}, [10], 40, "own/own/head"),
    *(1, 2, 1.5, "rounds", {"own/own/head": Accuracy(1.0, 2.0, 3.0, 1, [1.0])}),
)


def played(*rounds: tuple[float, ...]) -> list[Round]:
    """Rounds with these accuracies of clients; () is a round without evaluation."""
    return [evaluated(number, *per_client) for number, per_client in enumerate(rounds, 1)]


def evaluated(number: int, *per_client: float) -> Round:
    if not per_client:
        return a_round(number)
    name = "own/all/head"
    mean = sum(per_client) / len(per_client)
    return a_round(
        number,
        accuracy={name: mean},
        per_client={name: list(per_client)},
        per_domain={name: {"x": mean}},
        diagnostic=[name],
    )


def test_last_last5_and_best_are_those_of_the_rounds() -> None:
    rounds = [(100.0, 90.0), *((v, v + 2) for v in (1.0, 2.0, 3.0, 4.0)), (4.0, 8.0)]
    assert summarise(played(*rounds)) == {
        "own/all/head": Accuracy(
            last=6.0,
            last5=4.0,
            best=95.0,
            best_round=1,
            per_client=[4.0, 8.0],
            per_domain={"x": 6.0},
            diagnostic=True,
        )
    }


def test_fewer_than_five_rounds_are_averaged_over_those_there_are() -> None:
    assert summarise(played((1.0,), (2.0,)))["own/all/head"].last5 == 1.5


def test_of_equally_good_rounds_the_first_is_the_best() -> None:
    assert summarise(played((1.0,), (5.0,), (5.0,)))["own/all/head"].best_round == 2


def test_only_rounds_that_were_evaluated_count() -> None:
    result = summarise(played((), (1.0,), (), (3.0,), (), (2.0,)))["own/all/head"]
    assert (result.last, result.last5, result.best, result.best_round) == (2.0, 2.0, 3.0, 4)


def test_bytes_are_shown_in_decimal_units() -> None:
    sizes = (0, 999, 1000, 1_234_567, 5e9, 5e12)
    assert [size(number) for number in sizes] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 GB", "5000.0 GB"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": None}, "missing value for method in "),
        ({"accuracy": []}, "name its accuracies"),
        ({"accuracy": {"a": {"last": "high"}}}, r" in a in .*result\.json"),
        ({"seconds": float("inf")}, "'inf' for seconds in "),
        ({"more": 1}, "'more'"),
        ({"rounds": 0}, "must have rounds"),
        ({"accuracy": {"a": {"last": 1, "last5": 1, "best": 1, "best_round": 1, "per_client": []}}}, "and clients"),
    ],
)
def test_a_result_that_is_none_is_one_error(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "result.json").write_text(RESULT.to_json())
    assert Result.read(tmp_path) == replace(RESULT, folder=str(tmp_path))
    (tmp_path / "result.json").write_text(json.dumps(json.loads(RESULT.to_json()) | changes))
    with pytest.raises(UserError, match=message):
        Result.read(tmp_path)


def test_an_accuracy_that_some_rounds_lack_is_of_those_that_have_it() -> None:
    first, *rest = played((1.0,), (2.0,), (3.0,))
    first = replace(first, accuracy={"own/own/head": 9.0})
    assert summarise([first, *rest])["own/all/head"].last5 == 2.5


HEAD, NEAREST, GLOBAL = "own/own/head", "own/all/nearest", "global/all/head"


@pytest.mark.parametrize(
    ("methods", "score"),
    [
        ([(NEAREST, [HEAD, NEAREST])], NEAREST),  # alone: its paper's
        ([(GLOBAL, [HEAD, GLOBAL]), (NEAREST, [HEAD, NEAREST, GLOBAL])], GLOBAL),  # the first paper's that all have
        ([(NEAREST, [HEAD, NEAREST, GLOBAL]), (GLOBAL, [HEAD, GLOBAL])], GLOBAL),
        ([(NEAREST, [HEAD, NEAREST]), (GLOBAL, [HEAD, GLOBAL])], HEAD),  # no paper's
        ([(NEAREST, [GLOBAL, NEAREST]), (HEAD, [HEAD, GLOBAL])], GLOBAL),
        ([(HEAD, [HEAD, "x"]), (GLOBAL, [GLOBAL, "x"])], "x"),
        ([(HEAD, [HEAD]), (GLOBAL, [GLOBAL])], HEAD),  # nothing in common: not a mixture
        ([(NEAREST, []), (GLOBAL, [HEAD, GLOBAL])], GLOBAL),  # the first failed
        ([], HEAD),
    ],
)
def test_methods_are_compared_by_an_accuracy_that_all_have(methods: list[tuple[str, list[str]]], score: str) -> None:
    assert common_score(methods) == score


@pytest.mark.parametrize(
    ("method", "params", "most"),
    [
        ("dp-fedcl", {"eps": 2.0}, 1),  # no two unit vectors are further apart
        ("dp-fedcl", {"eps": 0.05, "min_samples": 2}, None),
        ("mp-fedcl", {}, 2),
        ("mp-fedcl", {"k": 1}, 0),
        ("fedplvm", {}, None),
        ("fedproto", {}, 0),
    ],
)
def test_a_clustering_that_finds_one_prototype_everywhere_is_noted(
    method: str, params: dict[str, Any], most: int | None
) -> None:
    """0 stands for a method whose clients look for one only, None for any number above 1."""
    run = play(method, params, rounds=2, model=Noisy)
    result = run.result(None)
    told = [played.most_clusters for played in run.history]
    if most == 0:
        assert result.most_clusters is None
        assert told == [None, None]
    else:
        assert result.most_clusters == max(told)  # type: ignore[type-var]
        assert result.most_clusters == most if most else result.most_clusters > 1  # type: ignore[operator]
    noted = [f"the clustering of {method} found one prototype per class at every client in every round"]
    assert result.notes() == (noted if most == 1 else [])
    assert ('"most_clusters"' in result.to_json()) == (most != 0)


@pytest.mark.parametrize(
    ("most", "each", "notes"),
    [(3, 1.0, ["server"]), (3, 1.1, []), (1, 1.0, ["clustering", "server"]), (1, 2.0, ["clustering"]), (None, 1.0, [])],
)
def test_a_server_that_ends_with_one_prototype_per_class_is_noted(
    most: int | None, each: float, notes: list[str]
) -> None:
    """Where clients look for several; None stands for methods that are of class means."""
    found = replace(RESULT, method="fedplvm", most_clusters=most, prototypes_per_class=each).notes()
    assert [note.split()[1] for note in found] == notes
    if "server" in notes:
        assert found[-1] == "the server of fedplvm ended with one prototype per class"


def test_one_round_with_more_is_enough_not_to_be_noted() -> None:
    run = play("dp-fedcl", {"eps": 2.0}, rounds=2, model=Norm)
    run.history[0] = replace(run.history[0], most_clusters=3)
    assert run.result(None).most_clusters == 3
    assert not run.result(None).notes()


@dataclass(frozen=True)
class OwnScale(FedAvg):
    """A parameter stays, and nothing says that the average answers without it."""

    name: ClassVar[str] = "own-scale"
    without: bool = False

    def shares(self, name: str) -> bool:
        return name != "head.bias"

    def does_without(self, name: str) -> bool:
        return self.without and name == "head.bias"


def test_a_model_that_is_not_whole_for_want_of_a_word_is_noted() -> None:
    found = run_of(OwnScale(), "sequential", 1).result(None)
    assert not any(name.startswith("global/") for name in found.accuracy)
    assert found.notes() == ["own-scale has no global/… accuracies: head.bias stays at the clients (does_without)"]
    assert '"stays"' in found.to_json()
    whole = run_of(OwnScale(without=True), "sequential", 1).result(None)
    assert "global/all/head" in whole.accuracy
    assert whole.notes() == []
    assert '"stays"' not in whole.to_json()


@pytest.mark.parametrize("method", METHODS)
def test_no_method_of_ours_lacks_what_its_score_is_of(method: str) -> None:
    assert play(method, rounds=1, model=Noisy, epochs=1).result(None).stays is None


def test_a_comparison_passes_notes_on_once() -> None:
    run = play("dp-fedcl", {"eps": 2.0}, rounds=1, model=Norm).result(None)
    found = Comparison([run, replace(run, seed=1)], []).notes()
    assert found == run.notes()
