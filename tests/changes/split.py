"""With --split linear the second client holds twice as much as the first, the third three times."""

import torch

from protofed.data import load
from protofed.data.build import federation_of
from protofed.experiment import Experiment
from tests.support.changed_source import played

federation = federation_of(Experiment(train_size=120, clients=3, split="linear"))
assert federation.counts.sum(1).tolist() == [20, 40, 60]
assert federation.counts.sum(0).tolist() == torch.bincount(load("digits", train_size=120).train.labels).tolist()
played("--split", "linear")
