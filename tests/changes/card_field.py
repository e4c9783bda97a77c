"""The card of an exported model says how long its training took; cards that do not are still read."""

import json
from pathlib import Path

from protofed.serving.card import ModelCard
from tests.support.changed_source import played
from tests.support.command_line import rounds_of, succeed

folder = played()
succeed(Path(), "export", str(folder), "--out", "model")
card = json.loads(Path("model/card.json").read_text())
assert card["seconds"] == sum(line["seconds"] for line in rounds_of(folder))
del card["seconds"]
Path("card.json").write_text(json.dumps(card))
assert json.loads(ModelCard.read(Path("card.json")).to_json())["seconds"] == 0
