"""With --split shards a client has two parts of the rows sorted by class, so few of the classes."""

import torch

from protofed.data import load
from protofed.data.build import federation_of
from protofed.experiment import Experiment
from tests.support.changed_source import played

federation = federation_of(Experiment(train_size=120, clients=10, split="shards"))
assert federation.counts.sum() == 120
assert federation.counts.sum(0).tolist() == torch.bincount(load("digits", train_size=120).train.labels).tolist()
assert int((federation.counts > 0).sum(1).max()) <= 6
played("--split", "shards")
