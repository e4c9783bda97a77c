"""--lr-least holds the learning rate up, has bounds, and is among the typed options."""

from pathlib import Path

from protofed import experiment
from tests.support.changed_source import played
from tests.support.command_line import invoke, rounds_of
from tools.typed_options import written

decayed = ("--rounds", "2", "--lr-decay", "1e-9")
plain, held = played(*decayed, out="plain"), played(*decayed, "--lr-least", "0.01", out="held")
first, second = ([line["accuracy"] for line in rounds_of(folder)] for folder in (plain, held))
assert first[0] == second[0], "round 1 has the rate that was asked for"
assert first[1] != second[1], "round 2 has the least rate"
assert "--lr-least" in invoke(Path(), "run", "--lr-least", "-1").err
source = Path(experiment.__file__).read_text(encoding="utf-8")
assert source == written(source), "make typed-options"
