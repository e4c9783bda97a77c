"""--model cnn-pooled is listed and trains, alike in both engines."""

from pathlib import Path

from tests.support.changed_source import played
from tests.support.command_line import rounds_of, succeed

assert "cnn-pooled" in succeed(Path(), "models").out
model = ("--model", "cnn-pooled", "--precision", "float64")
loop, stacked = (rounds_of(played(*model, "--engine", name, out=name))[0] for name in ("sequential", "stacked"))
assert loop["accuracy"] == stacked["accuracy"]
assert abs(loop["loss"] - stacked["loss"]) < 1e-9
