"""The default defence: how far each client is believed, layer by layer and prototype by prototype.

It compares clients by the angles between their updates, which the products of all pairs say: nothing as long as an
update is sorted. What honest clients differ by is bounded by constants, not by how much the round's clients differ, so
that opponents cannot widen it. Within that, an update is judged a round later, by what the others make of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from protofed.messages import Broadcast, Upload
from protofed.prototypes import Prototypes
from protofed.trust.defended import NOTHING, STATISTICS, Context, Defended, coordinate_median
from protofed.trust.screening import capped

TURNED = 0.35
"""How far below the median of the round a client's cosine with the others may be; then it counts for nothing."""

FULL = 0.15
"""How far below it a client still counts fully."""

COPIES = 0.2
"""Clients nearer to each other than this part of the usual distance (1 less the cosine) share their votes."""

LONG = 3.0
"""An update so many times as long as the median in any layer is not believed at all."""

LENGTH = 1.2
"""In medians: no layer's update counts as longer than this, and no prototype as further from its class."""

GROWTH = 2.0
"""How much longer than the class's prototype that was broadcast last the middle of a class may be."""

SHARE = 1.5
"""The most samples that a client, and each set of its prototypes, counts for, in medians of the round."""

FORGOTTEN = 0.7
"""How much of what is remembered of a client stays from round to round."""

RIGHT, WRONG = 0.005, 0.02
"""How much more agreement than others' a client's updates may lose within a round, in the mean of rounds: until then
it counts fully, and from then on not at all."""

LEARNT = 0.15
"""How much of what is remembered of a client is of the last round."""

FEARED = 0.25
"""The part of the clients that may be hostile: no more are blamed for the agreement that their updates lose."""

SKETCH = 2**15
"""Numbers that are remembered of a client's update."""

DOUBTED = 0.05
"""A client that counts for less than this is suspected."""


class Pairs(NamedTuple):
    """What all pairs of clients say about one layer."""

    cosines: Tensor  # [N, N]
    lengths: Tensor  # [N]


def default(uploads: Upload, sent: Broadcast, known: Context = NOTHING) -> Defended:
    """Bound how far each client is believed, by the angles and lengths of its updates and prototypes, over rounds."""
    uploads = capped(uploads, SHARE)
    found, trust, memory = uploads, None, dict[str, Tensor]()
    layers = _layers(uploads, sent)
    if layers:
        rows = [torch.cat(some, 1) for some in layers.values()]
        pairs = [_pairs(one) for one in rows]
        trusted = known.trusted_rows(len(rows[0]), rows[0].device)
        margins, memory = _remembered(torch.stack([margin(one, trusted) for one in pairs]).amin(0), known)
        far = torch.stack([one.lengths > LONG * _usual(one.lengths, trusted) for one in pairs]).any(0)
        trust = ((margins + TURNED) / (TURNED - FULL)).clamp(0, 1).masked_fill(far, 0.0)
        if known.who is not None:
            held, scores = hindsight(rows, trust, trusted, known)
            trust, memory = trust * held, memory | scores
        if not bool(trust.any()):  # nobody stands out: then there is no telling
            trust = torch.ones_like(trust)
        bounds = [LENGTH * _usual(one.lengths, trusted) / one.lengths.clamp(min=1e-30) for one in pairs]
        found = _weighed(uploads, sent, trust, dict(zip(layers, bounds, strict=True)))
    sets = {name: believed(one, _broadcast(sent, one), known, trust) for name, one in uploads.prototypes.items()}
    sums = {name: _believed_sums(one, trust) for name, one in uploads.sums.items()}
    suspected = [] if trust is None else (trust < DOUBTED).nonzero().squeeze(1).tolist()
    return Defended(replace(found, prototypes=sets, sums=sums), suspected, memory)


# Weights.


def _layers(uploads: Upload, sent: Broadcast) -> dict[tuple[str, ...], list[Tensor]]:
    """What clients have changed, [N, n] for each tensor of a layer, by their names; not BatchNorm's statistics."""
    grouped: dict[str, dict[str, Tensor]] = {}
    for name, rows in uploads.changes(sent).items():
        if not name.endswith(STATISTICS) and rows.shape[1]:
            grouped.setdefault(name.rpartition(".")[0], {})[name] = rows
    return {tuple(layer): list(layer.values()) for layer in grouped.values()}


def _pairs(rows: Tensor) -> Pairs:
    products = (rows @ rows.T).double()
    lengths = products.diagonal().clamp(min=0).sqrt()
    outer = torch.outer(lengths, lengths).clamp(min=torch.finfo(torch.float64).tiny)
    return Pairs((products / outer).clamp(-1, 1), lengths)


def votes(cosines: Tensor) -> Tensor:
    """[N]: how much each client counts in the direction of all."""
    others = cosines[~torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)]
    near = COPIES * (1 - others.median()) if len(others) else cosines.new_tensor(1.0)
    alike = (1 - (1 - cosines) / near.clamp(min=1e-9)).clamp(min=0).fill_diagonal_(0)
    return 1 / (1 + alike.sum(1))


def margin(pairs: Pairs, trusted: Tensor) -> Tensor:
    """[N]: by how much each client's cosine with the others' direction is above the median of the round.

    Where some clients are trusted, the direction is theirs, and a cosine of TURNED is as good as the median.
    """
    sure = bool(trusted.any())
    counted = trusted.to(pairs.cosines) if sure else votes(pairs.cosines)
    own = counted * pairs.cosines.diagonal()
    along = pairs.cosines @ counted - own  # with the sum of the others' unit updates
    squared = counted @ pairs.cosines @ counted - 2 * counted * (pairs.cosines @ counted) + counted * own
    cosine = torch.where(squared > 1e-12, along / squared.clamp(min=1e-12).sqrt(), 0.0)
    return (cosine - TURNED).masked_fill(trusted, 1.0) if sure else cosine - cosine.median()


def _usual(lengths: Tensor, trusted: Tensor) -> Tensor:
    """The median length; of the trusted clients, where there are some."""
    return lengths[trusted].median() if bool(trusted.any()) else lengths.median()


def _remembered(margins: Tensor, known: Context) -> tuple[Tensor, dict[str, Tensor]]:
    """The worse of this round's margin and of the mean over rounds, and what to remember."""
    if known.who is None:
        return margins, {}
    before = known.memory.get("margins")
    kept = torch.full((max(known.who) + 1,), torch.nan, dtype=torch.float64)
    if before is not None:
        kept = torch.cat([before, kept[len(before) :]])
    rows = torch.tensor(known.who)
    now = margins.cpu()
    mean = torch.where(kept[rows].isnan(), now, FORGOTTEN * kept[rows] + (1 - FORGOTTEN) * now)
    return torch.minimum(margins, mean.to(margins)), {"margins": kept.index_copy(0, rows, mean)}


def hindsight(
    rows: Sequence[Tensor], trust: Tensor, trusted: Tensor, known: Context
) -> tuple[Tensor, dict[str, Tensor]]:
    """[N]: how far clients are believed by what became of their updates, and what to remember.

    An update agrees with the others', as far as they are believed; a round later, after it was applied, theirs say
    whether it was right. What was turned against the others within what they differ by agrees with them when it is
    sent, and no longer when they answer. `rows` are updates, layer by layer.
    """
    assert known.who is not None  # without it nothing is remembered
    sketch, who = _sketch(rows), torch.tensor(known.who)
    scores = _grown(known.memory.get("scores"), max(known.who) + 1)
    voices = trusted.to(sketch) if bool(trusted.any()) else trust.to(sketch) * _by_score(scores[who]).to(sketch)
    voices = voices if bool(voices.any()) else torch.ones_like(voices)
    if "sketch" in known.memory:
        before = known.memory["members"]
        other = (before.view(-1, 1) != who).to(sketch)
        later = _agreement(known.memory["sketch"].to(sketch) @ sketch.T, other, voices)
        worse = (known.memory["agreed"] - later.cpu()).double()
        old = scores[before]
        new = worse - worse.median()
        scores = scores.index_copy(0, before, old + LEARNT * (new - old))
    agreed = _agreement(sketch @ sketch.T, 1 - torch.eye(len(who)).to(sketch), voices).cpu()
    memory = {"scores": scores, "sketch": sketch.cpu(), "members": who, "agreed": agreed}
    return _by_score(scores[who]).to(trust), memory


def _by_score(scores: Tensor) -> Tensor:
    """[N]: how far clients are believed; below the FEARED part with the highest scores, fully."""
    usual = scores.sort().values[len(scores) - 1 - int(FEARED * len(scores))]
    return ((WRONG - (scores - usual)) / (WRONG - RIGHT)).clamp(0, 1)


def _agreement(cosines: Tensor, other: Tensor, voices: Tensor) -> Tensor:
    """The mean of cosines [M, N] over those of the N that are others and have a voice."""
    share = other * voices
    return (cosines * share).sum(1) / share.sum(1).clamp(min=1e-9)


def _grown(before: Tensor | None, size: int) -> Tensor:
    """Numbers of clients, 0 for those that are new."""
    kept = torch.zeros(size, dtype=torch.float64) if before is None else before
    return torch.cat([kept, kept.new_zeros(max(0, size - len(kept)))])


def _sketch(rows: Sequence[Tensor]) -> Tensor:
    """[N, at most SKETCH]: updates with layers of one length, folded by random signs: products stay about equal."""
    whole = torch.cat([normalize(layer, dim=1, eps=torch.finfo(layer.dtype).tiny) for layer in rows], 1)
    whole = whole / math.sqrt(len(rows))
    if whole.shape[1] <= SKETCH:
        return whole
    signs = torch.randint(0, 2, (whole.shape[1],), generator=torch.Generator().manual_seed(0)).to(whole) * 2 - 1
    return pad(whole * signs, (0, -whole.shape[1] % SKETCH)).view(len(whole), -1, SKETCH).sum(1)


def _weighed(uploads: Upload, sent: Broadcast, trust: Tensor, scales: Mapping[tuple[str, ...], Tensor]) -> Upload:
    """Updates of a bounded length, moved to the mean of all as far as their client is not believed.

    So the method's own average is the one in which each client counts as far as it is believed. `scales` are what each
    client's update may be multiplied by at most, by the names of a layer.
    """
    share = uploads.numbers.get("samples", torch.ones_like(trust)).to(trust)
    weights, counted = dict(uploads.weights), trust * share / (trust * share).sum()
    scale = {name: found.clamp(max=1) for names, found in scales.items() for name in names}
    for name, change in uploads.changes(sent).items():
        rows = change * scale[name].to(change).unsqueeze(1) if name in scale else _within(change)
        weights[name] = _given(rows, trust, counted, uploads.weights[name], sent.weights.get(name))
    for name, tensor in uploads.weights.items():
        if not tensor.is_floating_point():  # what a state counts in whole numbers is the median's
            weights[name] = tensor.sort(0).values[(len(tensor) - 1) // 2].expand_as(tensor).clone()
    return replace(uploads, weights=weights)


def _given(rows: Tensor, trust: Tensor, counted: Tensor, like: Tensor, before: Tensor | None) -> Tensor:
    """The weights of updates, each moved to the mean of all as far as its client is not believed."""
    believed = trust.to(rows).unsqueeze(1)
    mean = counted.to(rows) @ rows
    found = (mean + believed * (rows - mean)).view_as(like)
    return found if before is None else found + before


def _within(rows: Tensor) -> Tensor:
    """Each number within three median deviations of the median of all clients: a statistic has no direction."""
    middle = coordinate_median(rows)
    spread = 3 * coordinate_median((rows - middle).abs())
    return torch.minimum(torch.maximum(rows, middle - spread), middle + spread)


# Prototypes.


def believed(sets: Prototypes, before: Tensor | None, known: Context, trust: Tensor | None) -> Prototypes:
    """Each prototype within LENGTH median distances of the middle of its class; those of doubted clients are not there.

    The middle is the coordinate median of the holders' class means, or the mean of the trusted clients', no longer than
    GROWTH times the class's prototypes that were `before` [C, D]; what is cut from it moves all of the class.
    """
    means, present = sets.class_mean(), sets.present
    if trust is not None:
        present = present & (trust >= DOUBTED).unsqueeze(1)
    trusted = known.trusted_rows(len(means), means.device)
    middles, places, radii = torch.zeros_like(means[0]), torch.zeros_like(means[0]), means.new_zeros(len(means[0]))
    for label in present.any(0).nonzero().squeeze(1).tolist():
        rows = present[:, label].nonzero().squeeze(1)
        sure = (present[:, label] & trusted).nonzero().squeeze(1)
        middles[label] = means[sure, label].mean(0) if len(sure) else coordinate_median(means[rows, label])
        places[label] = middles[label] if before is None else _bounded(middles[label], before[label])
        away = (sets.vectors[rows, label] - middles[label]).norm(dim=-1).masked_fill(~sets.filled[rows, label], 0)
        radii[label] = away.amax(-1).median()
    usual = float(radii[present.any(0)].median()) if bool(present.any()) else 0.0
    apart = sets.vectors - middles.unsqueeze(1)
    far = apart.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(apart.dtype).tiny)
    reach = LENGTH * radii.clamp(max=GROWTH * usual).view(-1, 1, 1) / far
    moved = places.unsqueeze(1) + apart * reach.clamp(max=1)
    keeps = sets.filled & present.unsqueeze(-1)
    return Prototypes(torch.where(keeps.unsqueeze(-1), moved, 0.0), sets.counts * keeps)


def _bounded(middle: Tensor, before: Tensor) -> Tensor:
    if not bool(before.any()):
        return middle
    return middle * min(1.0, GROWTH * float(before.norm()) / max(float(middle.norm()), 1e-30))


def _broadcast(sent: Broadcast, sets: Prototypes) -> Tensor | None:
    """The class means of what was broadcast last, if it is of such prototypes [C, D]."""
    for vectors, counts in sent.prototypes.values():
        if vectors.shape[-1] == sets.vectors.shape[-1] and vectors.shape[-3] == sets.vectors.shape[-3]:
            found = Prototypes(vectors, counts)
            return (found if vectors.dim() == 3 else found.pooled()).class_mean()
    return None


def _believed_sums(tensor: Tensor, trust: Tensor | None) -> Tensor:
    """Sums of clients that are not believed are zero."""
    if trust is None:
        return tensor
    return torch.where((trust >= DOUBTED).view(-1, *(1,) * (tensor.dim() - 1)), tensor, 0)
