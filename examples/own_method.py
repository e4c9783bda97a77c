# %% [markdown]
# # Your own method
# A method says what a client minimises, what it sends, and what the server makes of it. This one is FedAvg whose
# clients also pull features towards the mean prototype of their class.
# %%
from dataclasses import dataclass

import torch

import protofed
from protofed.messages import Broadcast
from protofed.methods.base import cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.prototypes import class_means, mean_over_holders


# %% The method: a frozen dataclass, whose fields are its parameters
@dataclass(frozen=True)
class CosinePull(FedAvg):
    """Pull features to the mean prototype of their class by cosine similarity."""

    name = "cosine-pull"
    score = "global/all/head"
    strength: float = param(0.5, "weight of the pull", at_least=0)
    collect: str = "eval-pass"

    def loss(self, model, batch, turn):
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        prototypes = turn.received.prototypes.get("global")
        if prototypes is None:  # the first round
            return task
        target = prototypes.class_mean()[batch.y]
        return task + self.strength * (1 - torch.cosine_similarity(out.features, target, dim=-1))

    def prototypes(self, trained):
        return {"means": class_means(trained.features, trained.labels, trained.classes)}

    def aggregate(self, uploads, server):
        averaged = super().aggregate(uploads, server)
        return Broadcast(averaged.weights, {"global": mean_over_holders(uploads.prototypes["means"])})

    def references(self, broadcast):
        return broadcast.prototypes.get("global")


# %% A run of it: every accuracy that its prototypes and its head give
setting = {"dataset": "digits", "alpha": 0.1, "clients": 5, "model": "cnn", "lr": 0.05, "rounds": 6}
protofed.run(CosinePull(strength=1.0), **setting)
# %% Beside the method that it extends: two seeds, so that a difference can be told from luck
comparison = protofed.compare(["fedavg", CosinePull(strength=1.0)], seeds=2, jobs=1, **setting)
comparison
# %% Round by round
comparison.plot()
# %% Both engines give the same numbers: the plain loop, and all clients at once
plain, batched = (
    protofed.run(CosinePull(), **{**setting, "rounds": 2}, engine=engine, precision="float64")
    for engine in ("sequential", "stacked")
)
{name: round(abs(plain.accuracy[name].last - batched.accuracy[name].last), 6) for name in plain.accuracy}
