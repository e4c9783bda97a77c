"""Models of several rounds (FedCDA): each client's most recent ones, and the combination that agrees best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.methods.server.model_distances import flat, parameters


class Cache(NamedTuple):
    """The K most recent models of every client, and which of them is selected."""

    models: Mapping[str, Tensor]  # [clients, K, ...]: parameters only; zeros where nothing is held
    losses: Tensor  # [clients, K]: F, as it was when the model was trained
    turns: Tensor  # [clients]: how many models a client has sent; number t is in slot t mod K
    chosen: Tensor  # [clients]: the slot of the selected model

    @classmethod
    def empty(cls, weights: Mapping[str, Tensor], losses: Tensor, clients: int, slots: int) -> Cache:
        """For models such as `weights`, [N, ...]."""
        models = {
            name: tensor.new_zeros(clients, slots, *tensor.shape[1:]) for name, tensor in parameters(weights).items()
        }
        none = torch.zeros(clients, dtype=torch.int64, device=losses.device)
        return cls(models, losses.new_zeros(clients, slots), none, none.clone())

    @classmethod
    def unpack(cls, kept: Mapping[str, Tensor]) -> Cache:
        """What `pack` made."""
        models = {name.removeprefix("models/"): tensor for name, tensor in kept.items() if name.startswith("models/")}
        return cls(models, kept["losses"], kept["turns"], kept["chosen"])

    def pack(self) -> dict[str, Tensor]:
        """As named tensors."""
        models = {f"models/{name}": tensor for name, tensor in self.models.items()}
        return models | {"losses": self.losses, "turns": self.turns, "chosen": self.chosen}

    @property
    def slots(self) -> int:
        """K."""
        return self.losses.shape[1]

    def add(self, who: Tensor, weights: Mapping[str, Tensor], losses: Tensor) -> Cache:
        """With a new model of some clients, which is also their selected one, in place of their oldest."""
        place = who, self.turns[who] % self.slots
        models = {name: tensor.index_put(place, weights[name]) for name, tensor in self.models.items()}
        turns = self.turns.index_add(0, who, torch.ones_like(who))
        return Cache(models, self.losses.index_put(place, losses), turns, self.chosen.index_put((who,), place[1]))

    def selected(self, rows: Tensor) -> dict[str, Tensor]:
        """The selected models of some clients."""
        return {name: tensor[rows, self.chosen[rows]] for name, tensor in self.models.items()}


def select(
    cache: Cache, who: Tensor, groups: Sequence[Tensor], smoothness: float, origin: Mapping[str, Tensor]
) -> Cache:
    """Eqs. 7-8: choose for each client of `who`, group after group, the model that minimises

        1/N' Σ_n F_n(w_n)  +  L/2 ( 1/N' Σ_n |w_n|² − |1/N' Σ_n w_n|² )

    over the N' clients that are not in `who`, in an earlier group, or in this one; all others' models are fixed, and
    later groups do not count yet. `groups` hold positions in `who`. The objective does not change when all models are
    shifted; taken from `origin` it loses no digits.
    """
    slots = cache.slots
    products, resting = _products(cache, who, origin)
    held = cache.turns[who].clamp(max=slots).tolist()
    costs = cache.losses[who].flatten().to(torch.float64) + smoothness / 2 * products.diagonal()[:-1]
    pull = products[-1]  # each candidate's product with the sum of all that is fixed
    slot = cache.chosen[who]
    number = resting
    for group in groups:
        options = torch.cartesian_prod(*(torch.arange(held[member]) for member in group.tolist()))
        options = options.view(-1, len(group)).to(slot.device)  # [combinations, members]
        rows = group.to(slot.device) * slots + options
        number += len(group)
        inner = products[rows.unsqueeze(-1), rows.unsqueeze(-2)].sum((1, 2)) + 2 * pull[rows].sum(1)
        best = (costs[rows].sum(1) / number - smoothness / 2 * inner / number**2).argmin()  # up to a constant
        slot[group] = options[best]
        pull = pull + products[rows[best]].sum(0)
    return cache._replace(chosen=cache.chosen.index_put((who,), slot))


def _products(cache: Cache, who: Tensor, origin: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    """Inner products of all candidates of `who` and, last, the sum of all other clients' models; and their number."""
    other = cache.turns > 0
    other[who] = False
    rest = other.nonzero().squeeze(1)
    size = len(who) * cache.slots + 1
    products = torch.zeros(size, size, dtype=torch.float64, device=who.device)
    fixed = cache.selected(rest)
    for name, tensor in cache.models.items():
        centre = flat(origin[name].unsqueeze(0))
        rows = torch.cat([flat(tensor[who].flatten(0, 1)) - centre, (flat(fixed[name]) - centre).sum(0, keepdim=True)])
        products += rows @ rows.mT
    return products, len(rest)
