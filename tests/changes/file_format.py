"""pixels:PATH is a dataset, of a run and of a client; its path is kept whole, and a damaged file is one line."""

from pathlib import Path

from protofed.data import load
from protofed.deploy.owner import dataset_at
from tests.support.changed_source import SMALL, played
from tests.support.command_line import invoke

digits = load("digits", train_size=120).train
rows = zip(digits.labels.tolist(), digits.x.flatten(1).tolist(), strict=True)
Path("own.pixels").write_text("".join(f"{label},{','.join(map(str, pixels))}\n" for label, pixels in rows))
own = load("pixels:own.pixels")
assert (len(own.train) + len(own.test), len(own.classes), own.train.x.shape[1:]) == (120, 10, (1, 8, 8))
folder = played("--dataset", "pixels:own.pixels", "--train-size", "80")
assert f"pixels:{Path('own.pixels').resolve()}" in (folder / "config.yaml").read_text()
assert dataset_at("data", "pixels:own.pixels") == f"pixels:{Path('own.pixels').resolve()}"
Path("broken.pixels").write_text("1,2\nthree")
assert "error: " in invoke(Path(), "run", *SMALL, "--dataset", "pixels:broken.pixels", "--out", "broken").err
