"""A client whose owner allows two local epochs refuses three."""

from pathlib import Path

import pytest

from protofed.deploy.client import Owner
from protofed.experiment import Experiment
from protofed.errors import RefusedError

Path("client.yaml").write_text("id: 0\nepochs: 2\n")
owner = Owner.of({"client": "client.yaml"})
owner.check(Experiment(epochs=2), incoming=0)
with pytest.raises(RefusedError, match="3 epochs"):
    owner.check(Experiment(epochs=3), incoming=0)
