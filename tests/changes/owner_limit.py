"""A client whose owner allows a learning rate of 0.1 refuses 0.2."""

from pathlib import Path

import pytest

from protofed.deploy.owner import Owner
from protofed.errors import RefusedError
from protofed.experiment import Experiment

Path("client.yaml").write_text("id: 0\nmax_lr: 0.1\n")
owner = Owner.read(Path("client.yaml"))
owner.check(Experiment(lr=0.1))
with pytest.raises(RefusedError, match=r"lr 0\.2: 0\.1 is allowed"):
    owner.check(Experiment(lr=0.2))
