"""Accuracies by the prototype at the least angle are in rounds.jsonl, and may be a sweep's score."""

from protofed.evaluation.accuracy import NAME
from tests.support.changed_source import played
from tests.support.command_line import rounds_of

(line,) = rounds_of(played("--method", "fedproto"))
assert {"own/own/nearest-cosine", "own/all/nearest-cosine"} <= line["accuracy"].keys()
assert len(line["per_client"]["own/all/nearest-cosine"]) == 2
assert NAME.fullmatch("own/all/nearest-cosine")
(line,) = rounds_of(played("--method", "local", out="local"))
assert "own/all/nearest-cosine" in line["diagnostic"]
