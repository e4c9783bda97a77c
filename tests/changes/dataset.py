"""--dataset stripes is listed as present, holds what its entry says, and is learned."""

import json
from pathlib import Path

from protofed.data import load
from tests.support.changed_source import played
from tests.support.command_line import succeed

(row,) = (row for row in json.loads(succeed(Path(), "datasets", "--json").out) if row["name"] == "stripes")
stripes = load("stripes")
assert row["present"]
assert (row["train"], row["test"], row["classes"]) == (len(stripes.train), len(stripes.test), len(stripes.classes))
assert row["shape"] == "×".join(map(str, stripes.train.x.shape[1:]))
played("--dataset", "stripes", "--model", "mlp")
