"""csv:PATH is a dataset, of a run and of a client; its path is kept whole, and a damaged file is one line."""

from pathlib import Path

from protofed.data import load
from protofed.deploy.owner import dataset_at
from tests.support.changed_source import SMALL, played
from tests.support.command_line import invoke

digits = load("digits", train_size=120).train
rows = zip(digits.labels.tolist(), digits.x.flatten(1).tolist(), strict=True)
Path("own.csv").write_text("".join(f"{label},{','.join(map(str, pixels))}\n" for label, pixels in rows))
own = load("csv:own.csv")
assert (len(own.train) + len(own.test), len(own.classes), own.train.x.shape[1:]) == (120, 10, (1, 8, 8))
folder = played("--dataset", "csv:own.csv", "--train-size", "80")
assert f"csv:{Path('own.csv').resolve()}" in (folder / "config.yaml").read_text()
assert dataset_at("data", "csv:own.csv") == f"csv:{Path('own.csv').resolve()}"
Path("broken.csv").write_text("1,2\nthree")
assert "error: " in invoke(Path(), "run", *SMALL, "--dataset", "csv:broken.csv", "--out", "broken").err
