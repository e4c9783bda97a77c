"""FedProto with centre=median sends medians, alike in both engines."""

import torch

from protofed.methods import build_method
from protofed.methods.base import Trained
from tests.support.changed_source import played
from tests.support.command_line import rounds_of

features = torch.tensor([[[0.0, 1.0], [1.0, 2.0], [100.0, 0.0], [5.0, 5.0], [9.0, 9.0]]])
labels = torch.tensor([[0, 0, 0, 2, -1]])
method = build_method("fedproto", {"centre": "median"})
made = method.prototypes(Trained({}, torch.tensor([4]), features, labels, 3, torch.tensor([0])))["means"]
assert made.vectors[0, :, 0].tolist() == [[1, 1], [0, 0], [5, 5]]
assert made.counts[0, :, 0].tolist() == [3, 0, 1]
flags = ("--method", "fedproto", "--set", "centre=median", "--precision", "float64", "--rounds", "2")
loop, stacked = (rounds_of(played(*flags, "--engine", name, out=name))[1] for name in ("sequential", "stacked"))
assert loop["accuracy"] == stacked["accuracy"]
