"""Slow, obvious versions of MOON, FedPer, FedRep, FedNTD and FedRCL: plain modules, loops over clients and samples.

Nothing here calls an engine or a method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

State = dict[str, Tensor]
Rows = Sequence[Sequence[int]]  # batches of sample numbers


class Moment(NamedTuple):
    """A client at a training step: its model, the batch, what it received, and its model after its last turn."""

    module: nn.Module
    x: Tensor
    y: Tensor
    received: Mapping[str, Tensor]
    last: State | None


Term = Callable[[Moment], Tensor]  # -> what is added to the mean cross-entropy


class Data(NamedTuple):
    """One client's images and labels."""

    x: Tensor
    y: Tensor


def play(
    module: nn.Module,
    clients: Sequence[Data],
    rounds: Sequence[Mapping[int, Sequence[Rows]]],
    trains: Sequence[Callable[[str], bool]],
    shares: Callable[[str], bool],
    importance: Sequence[float],
    rates: Sequence[float],
    term: Term,
    clip: float | None = None,
) -> list[State]:
    """Every client's model after some rounds.

    A round says, for each of its participants and each phase of its turn, the batches; `trains` says, for each phase,
    which parameters move. What is shared is averaged over participants by importance. SGD with momentum 0.5.
    """
    start = {name: value.clone() for name, value in module.state_dict().items()}
    own: list[State] = [dict(start) for _ in clients]
    had_a_turn = [False] * len(clients)
    server = {name: value for name, value in start.items() if shares(name)}
    for batches, rate in zip(rounds, rates, strict=True):
        for who in batches:
            last = dict(own[who]) if had_a_turn[who] else None
            module.load_state_dict({**own[who], **server})
            for rows, moves in zip(batches[who], trains, strict=True):
                moving = [parameter for name, parameter in module.named_parameters() if moves(name)]
                optimiser = torch.optim.SGD(moving, lr=rate, momentum=0.5)
                for chosen in rows:
                    x, y = clients[who].x[list(chosen)], clients[who].y[list(chosen)]
                    loss = cross_entropy(module(x).logits, y) + term(Moment(module, x, y, server, last))
                    module.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    if clip is not None:
                        nn.utils.clip_grad_norm_(moving, clip)
                    optimiser.step()
            own[who] = {name: value.clone() for name, value in module.state_dict().items()}
            had_a_turn[who] = True
        total = sum(importance[who] for who in batches)
        server = {
            name: torch.stack([importance[who] / total * own[who][name] for who in batches]).sum(0) for name in server
        }
    return own


def nothing(moment: Moment) -> Tensor:
    """Cross-entropy alone."""
    return torch.zeros((), dtype=moment.x.dtype)


def frozen(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """The same network with other weights, which do not move."""
    other = deepcopy(module).eval()
    other.load_state_dict(dict(state))
    return other.requires_grad_(False)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """a·b / (|a| |b|)."""
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def moon(z: Tensor, received: Tensor, last: Tensor, tau: float) -> Tensor:
    """−log of the received model's part, for each sample."""
    values = []
    for mine, theirs, before in zip(z, received, last, strict=True):
        near, far = torch.exp(cosine(mine, theirs) / tau), torch.exp(cosine(mine, before) / tau)
        values.append(-torch.log(near / (near + far)))
    return torch.stack(values)


def moon_term(mu: float, tau: float) -> Term:
    """μ · the mean contrast; nothing in a client's first turn."""

    def term(moment: Moment) -> Tensor:
        if moment.last is None:
            return nothing(moment)
        z = moment.module(moment.x).features
        received = frozen(moment.module, moment.received)(moment.x).features
        last = frozen(moment.module, moment.last)(moment.x).features
        return mu * moon(z, received, last, tau).mean()

    return term


def not_true_distillation(local: Tensor, taught: Tensor, labels: Sequence[int], tau: float) -> Tensor:
    """τ² KL(q_glob || q) over the classes that are not true, for each sample."""
    values = []
    for mine, theirs, label in zip(local, taught, labels, strict=True):
        wrong = [c for c in range(len(mine)) if c != label]
        p_sum = sum(torch.exp(theirs[c] / tau) for c in wrong)
        q_sum = sum(torch.exp(mine[c] / tau) for c in wrong)
        total = torch.zeros((), dtype=local.dtype)
        for c in wrong:
            p, q = torch.exp(theirs[c] / tau) / p_sum, torch.exp(mine[c] / tau) / q_sum
            total = total + p * torch.log(p / q)
        values.append(tau**2 * total)
    return torch.stack(values)


def fedntd_term(beta: float, tau: float) -> Term:
    """β · the mean divergence from the received model."""

    def term(moment: Moment) -> Tensor:
        taught = frozen(moment.module, moment.received)(moment.x).logits
        local = moment.module(moment.x).logits
        return beta * not_true_distillation(local, taught, moment.y.tolist(), tau).mean()

    return term


def number(value: Tensor) -> float:
    """Its value, without its history."""
    return float(value.detach())


def relaxed_contrast(
    maps: Tensor, labels: Sequence[int], tau: float, threshold: float, pairs: str, negatives: int = 2
) -> tuple[Tensor, Tensor]:
    """FedRCL on one level: contrast and penalty of each sample."""
    pooled = [sample.reshape(sample.shape[0], -1).mean(1) for sample in maps]
    contrasts, penalties = [], []
    zero = torch.zeros((), dtype=maps.dtype)
    for i, label in enumerate(labels):
        kin = [cosine(pooled[i], pooled[j]) for j, other in enumerate(labels) if other == label and j != i]
        others = [cosine(pooled[i], pooled[j]) for j, other in enumerate(labels) if other != label]
        too_close = [s for s in kin if number(s) >= threshold]
        if pairs == "hardest":
            least = min(kin, key=number) if kin else zero + 1
            too_close = [least] if kin and number(least) >= threshold else []
            kin = [least]
            others = sorted(others, key=number)[-negatives:]
        against = sum((torch.exp(s / tau) for s in others), zero)
        pulls = [-torch.log(torch.exp(s / tau) / (torch.exp(s / tau) + against)) for s in kin]
        contrasts.append(sum(pulls, zero) / len(pulls) if pulls else zero)
        itself = torch.exp(zero + 1 / tau)
        penalties.append(-torch.log(itself / (itself + sum((torch.exp(s / tau) for s in too_close), zero))))
    return torch.stack(contrasts), torch.stack(penalties)


def fedrcl_term(tau: float, threshold: float, pairs: str) -> Term:
    """The mean over levels and samples of contrast and penalty."""

    def term(moment: Moment) -> Tensor:
        blocks = moment.module(moment.x).blocks
        levels = [relaxed_contrast(block, moment.y.tolist(), tau, threshold, pairs) for block in blocks]
        return torch.stack([(contrast + penalty).mean() for contrast, penalty in levels]).mean()

    return term
