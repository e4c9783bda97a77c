"""--log csv writes a line for each number of a round, and --help names it."""

from pathlib import Path

from tests.support.changed_source import played
from tests.support.command_line import rounds_of, succeed

folder = played("--rounds", "2", "--log", "csv")
(file,) = folder.glob("csv/*.csv")
logged = [line.split(",") for line in file.read_text().splitlines()]
assert {(number, name) for number, name, _ in logged} >= {("1", "loss"), ("2", "loss"), ("2", "own/own/head")}
told = [float(value) for _, name, value in logged if name == "loss"]
assert told == [line["loss"] for line in rounds_of(folder)]
assert "wandb, csv" in " ".join(succeed(Path(), "run", "--help").out.split())
