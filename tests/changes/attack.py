"""--attack noisy-weights is listed and played, and changes what attackers send and nothing else."""

from pathlib import Path

import torch

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock
from protofed.trust.attacks import find_attack
from tests.support.changed_source import played
from tests.support.command_line import succeed

assert "noisy-weights" in succeed(Path(), "attacks").out
attack = find_attack("noisy-weights", 0.5, 2, seed=0)
assert attack is not None
uploads = Upload({"w": torch.zeros(2, 3)})
sent = attack.send(uploads, Broadcast(), Clock(0, 1, (0, 1), 2), {}).weights["w"]
assert [bool(row.any()) for row in sent] == [member in attack.who for member in (0, 1)]
played("--attack", "noisy-weights", "--attackers", "0.5")
