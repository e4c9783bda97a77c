"""FeSEM: clients in K clusters by their weights, one averaged model a cluster.  Xie et al., arXiv 2005.01026.

The public code clusters every 150 of 60 rounds, on one layer, starting from noise; here it is every round, on all
parameters, starting from the models after the first round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Server, param
from protofed.methods.fedavg import FedAvg
from protofed.methods.server.client_tables import with_rows
from protofed.methods.server.model_clusters import cluster, seeds
from protofed.randomness import key

FIRST_STEPS = 5  # Lloyd iterations of the first clustering, as in the public code; later one a round


@dataclass(frozen=True)
class FeSEM(FedAvg):
    """K averaged models; each client trains and gets the one that is nearest to its weights."""

    name: ClassVar[str] = "fesem"
    paper: ClassVar[str] = "Xie et al., arXiv 2020"
    link: ClassVar[str] = "https://arxiv.org/abs/2005.01026"
    up: ClassVar[str] = "weights"
    down: ClassVar[str] = "weights of the client's cluster"
    score: ClassVar[str] = "global/own/head"

    clusters: int = param(3, "K; 3 in the public code", at_least=1)

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """E-step: r_i = argmin_k |w_i − W_k|².  M-step: W_k = the mean of its members' w_i."""
        previous, clock = server.previous, server.clock
        average = super().aggregate(uploads, server).weights
        importance = self.importance(uploads)
        who = torch.tensor(clock.who, device=importance.device)

        first = not previous.kept
        if first:
            centres = seeds(uploads.weights, self.clusters, key(clock.seed, "fesem", clock.round))
            assignment = torch.full((clock.clients,), -1, device=importance.device)
        else:
            centres = {name: previous.kept[f"centres/{name}"] for name in uploads.weights}
            assignment = previous.kept["assignment"].index_fill(0, who, -1)
        absent = assignment[assignment >= 0].bincount(minlength=self.clusters)
        centres, nearest = cluster(
            uploads.weights, importance, centres, absent, FIRST_STEPS if first else 1, self.averaged
        )
        kept = {f"centres/{name}": tensor for name, tensor in centres.items()}
        return Broadcast(average, kept=kept | {"assignment": assignment.index_put((who,), nearest)})

    def with_room(self, broadcast: Broadcast, clients: int) -> Broadcast:
        """Of a new client it is not known yet which cluster is its own."""
        if not broadcast.kept:
            return broadcast
        assignment = with_rows(broadcast.kept["assignment"], clients, fill=-1)
        return replace(broadcast, kept={**broadcast.kept, "assignment": assignment})

    def forget(self, broadcast: Broadcast, client: int, sent: Upload | None) -> Broadcast:  # noqa: ARG002
        """In which cluster it was; the centre of a cluster that was its alone becomes the average."""
        kept, mine = dict(broadcast.kept), broadcast.kept["assignment"][client]
        if int((kept["assignment"] == mine).sum()) == 1:
            for name, value in broadcast.weights.items():
                kept[f"centres/{name}"] = kept[f"centres/{name}"].index_put((mine,), value)
        kept["assignment"] = kept["assignment"].index_fill(0, torch.tensor(client), -1)
        return replace(broadcast, kept=kept)

    def send(self, broadcast: Broadcast, client: int) -> Broadcast:
        """The centre of its cluster; the mean of all for a client that has not taken part yet."""
        if not broadcast.kept or broadcast.kept["assignment"][client] < 0:
            return broadcast
        mine = int(broadcast.kept["assignment"][client])
        return Broadcast({name: broadcast.kept[f"centres/{name}"][mine] for name in broadcast.weights})
