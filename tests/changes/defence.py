"""--defence centred-clip is listed and used, and one update of four that is far off hardly moves the result."""

from pathlib import Path

import torch

from protofed.messages import Broadcast, Upload
from protofed.trust.defences import DEFENCES
from tests.support.changed_source import played
from tests.support.command_line import succeed

assert "centred-clip" in succeed(Path(), "defences").out
sent = Broadcast({"w": torch.zeros(2)})
updates = torch.tensor([[1.0, 1.1], [1.1, 1.0], [0.9, 1.0], [1000.0, -1000.0]])
believed = DEFENCES["centred-clip"](Upload({"w": updates}), sent).uploads.weights["w"]
assert bool((believed - 1).abs().lt(0.2).all())
played("--defence", "centred-clip")
