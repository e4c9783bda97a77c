"""Client-level privacy in whole numbers, for runs over a network: what clients add is clipped and rounded to integers,
and the noise on their sum is integers too, from the operating system's generator and not from a seed.

A server that is trusted with each upload adds the noise itself. Under the masks of secure aggregation each client adds
a share of it (Kairouz, Liu and Steinke, The distributed discrete Gaussian mechanism for federated learning with secure
aggregation, ICML 2021), large enough that the shares of the fewest clients that a sum may have are the noise that is
accounted for; who stays beyond them adds more. A discrete Gaussian costs what the continuous one costs (Canonne, Kamath
and Steinke, NeurIPS 2020). A sum of n of them is no discrete Gaussian, but at σ of LEAST steps or more the difference,
τ = 10 Σ_k exp(−2π²σ²k/(k + 1)) ≤ 10 n exp(−π²σ²), is below 10⁻¹⁰⁰. Integers tell nothing by how they were rounded, as
noise in floating point does (Mironov, CCS 2012).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofed.errors import UserError, misused
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.prototypes import Prototypes
from protofed.trust.dp_mechanisms import SURE, factors, flag, lengths
from protofed.trust.secagg import FRACTION, Words, integers, layout_of, numbers, threshold

Source = Callable[[int], Words]
"""So many uniform words of 64 bits."""

LEAST = 16.0
"""Steps of the integers that a share's deviation must have."""
FINE = 2.0**40
"""Steps of the noise's deviation, where what is noised is no integer."""
TAIL = 12.0
"""Deviations beyond which no share of noise is: one in 10³² is."""


def from_system(size: int) -> Words:
    """Words of the operating system's generator."""
    return np.frombuffer(os.urandom(8 * size), np.uint64)


def share_deviation(experiment: Experiment, clients: int) -> float:
    """The deviation of the noise of each of some clients: that of threshold(clients) together is noise · clip."""
    return experiment.noise * _clip(experiment) / math.sqrt(threshold(clients))


def check_noise(experiment: Experiment, deviation: float) -> None:
    """Refuse what has no place among the integers: sums that might wrap, or noise that is too fine for their steps.

    Args:
        experiment: with `clip`, `noise` and the number of clients.
        deviation: of the noise that one of them adds at most.

    Raises:
        UserError: the clip is too large or too small, or there is no noise.
    """
    if experiment.noise == 0:
        raise misused("--privacy client", "over a network it needs noise", hint="give --clip and --noise")
    most = 2.0 ** (63 - FRACTION)
    if experiment.number_of_clients * (_clip(experiment) + TAIL * deviation) >= most:
        raise UserError(
            "--clip", experiment.clip, f"with this noise a sum may be beyond ±{most:.3g}, where it would wrap"
        )
    if deviation * 2.0**FRACTION < LEAST:
        raise UserError("--clip", experiment.clip, f"noise of {deviation:.3g} is too fine for steps of 2^-{FRACTION}")


def contributions(uploads: Upload, sent: Broadcast, clip: float) -> dict[str, Tensor]:
    """What clients add, [N, ...] by name: the change of their weights, their prototypes with a flag each, their sums.

    Each is scaled as a whole, so that its length is `clip` at most after it is rounded to integers too. Whole numbers,
    and how many samples there are, are not released.
    """
    parts = {
        f"weights/{name}": (tensor - sent.weights[name]).double()
        for name, tensor in uploads.weights.items()
        if tensor.is_floating_point()
    }
    for name, (vectors, counts) in uploads.prototypes.items():
        held = (counts > 0).double()
        parts[f"prototypes/{name}/vectors"] = vectors.double() * held.unsqueeze(-1)
        parts[f"prototypes/{name}/holders"] = flag(uploads, clip) * held
    parts |= {f"sums/{name}": tensor.double() for name, tensor in uploads.sums.items()}
    size = sum(math.prod(part.shape[1:]) for part in parts.values())
    most = clip - math.sqrt(size) * 2.0 ** -(FRACTION + 1)  # rounding moves each number by half a step at most
    if most <= 0:
        raise UserError("--clip", clip, f"it is too small for the rounding of {size} numbers")
    scale = factors(lengths(uploads, sent, clip), most)
    return {name: scale.view(-1, *(1,) * (part.dim() - 1)) * part for name, part in parts.items()}


def noised(row: Words, deviation: float, words: Source = from_system) -> Words:
    """A row of integers with noise on each."""
    return row + discrete_gaussian(len(row), deviation * 2.0**FRACTION, words).view(np.uint64)


def noised_row(
    upload: Upload, sent: Broadcast, experiment: Experiment, clients: int, words: Source = from_system
) -> Words:
    """What one of some clients adds to a sum, with its share of the noise.

    Args:
        upload: its own.
        sent: what it was sent.
        experiment: with `clip` and `noise`.
        clients: how many were to take part.
        words: where randomness comes from.

    Returns:
        Integers, for `Member.mask`.
    """
    deviation = share_deviation(experiment, clients)
    check_noise(experiment, deviation)
    parts = contributions(upload, sent, _clip(experiment))
    return noised(integers({name: part[0] for name, part in parts.items()}, clients), deviation, words)


def noisy_sum(
    uploads: Upload, sent: Broadcast, experiment: Experiment, words: Source = from_system
) -> dict[str, Tensor]:
    """The sum of what clients add, with all of the noise: of a server that is trusted with each upload.

    Args:
        uploads: of a round, [N, ...]; one that is not finite adds nothing.
        sent: what clients were sent.
        experiment: with `clip` and `noise`.
        words: where randomness comes from.

    Returns:
        By the names of `contributions`.
    """
    clip, deviation = _clip(experiment), experiment.noise * _clip(experiment)
    check_noise(experiment, deviation)
    finite = lengths(uploads, sent, clip).isfinite().nonzero().squeeze(1)
    parts = contributions(uploads.reorder(finite), sent, clip)
    each = {name: torch.zeros(part.shape[1:], dtype=part.dtype) for name, part in parts.items()}
    total = integers(each, experiment.number_of_clients)
    for row in range(len(finite)):
        total = total + integers({name: part[row] for name, part in parts.items()}, experiment.number_of_clients)
    return numbers(noised(total, deviation, words), layout_of(each))


def released(
    total: Mapping[str, Tensor], like: Upload, sent: Broadcast, clip: float, expected: float, deviation: float
) -> Upload:
    """The upload of one client that stands for all, from the noisy sum of what they add, as `private_sum` makes it.

    Args:
        total: by the names of `contributions`.
        like: uploads of the same form, [N, ...].
        sent: what clients were sent.
        clip: what each contribution was clipped to.
        expected: the number of clients that weights are divided by.
        deviation: of the noise on each number of the sum.

    Returns:
        w + sum / expected, prototypes over the noisy number of their holders, and sums.
    """
    weights = {}
    for name, tensor in like.weights.items():
        old = sent.weights[name]
        if tensor.is_floating_point():
            old = (old.double() + total[f"weights/{name}"] / expected).to(tensor.dtype)
        weights[name] = old.unsqueeze(0)  # what is counted in whole numbers is not released
    sets = {}
    for name, (vectors, _) in like.prototypes.items():
        holders, spread = total[f"prototypes/{name}/holders"] / flag(like, clip), deviation / flag(like, clip)
        present = holders > SURE * spread
        means = total[f"prototypes/{name}/vectors"] / holders.where(present, 1).unsqueeze(-1)
        number = holders.round().clamp(min=1).where(present, 0)
        found = means.where(present.unsqueeze(-1), 0).to(vectors.dtype)
        sets[name] = Prototypes(found.unsqueeze(0), number.to(vectors.dtype).unsqueeze(0))
    sums = {}
    for name, tensor in like.sums.items():
        noisy = total[f"sums/{name}"]
        sums[name] = (noisy if tensor.is_floating_point() else noisy.round()).to(tensor.dtype).unsqueeze(0)
    return Upload(weights, sets, {"samples": torch.ones(1)} if weights else {}, sums)


def discrete_gaussian(size: int, deviation: float, words: Source = from_system) -> NDArray[np.int64]:
    """Draw integers x with P(x) ∝ exp(−x² / 2σ²): algorithm 3 of Canonne, Kamath and Steinke, for many at once.

    Each decision compares a uniform number of 53 bits, so a draw is within 2⁻⁵⁰ of its distribution in total variation.

    Args:
        size: how many.
        deviation: σ, below 2⁵⁷.
        words: where randomness comes from.

    Returns:
        [size].

    Example:
        >>> discrete_gaussian(4, 1000.0).shape
        (4,)
    """
    scale, found = math.floor(deviation) + 1, np.empty(0, np.int64)
    while len(found) < size:
        drawn = _discrete_laplace(2 * (size - len(found)) + 16, scale, words)
        far = (abs(drawn) - deviation * deviation / scale) / deviation
        found = np.concatenate([found, drawn[_happens(np.exp(-far * far / 2), words)]])
    return found[:size]


def system_gaussian(like: Tensor, deviation: float, words: Source = from_system) -> Tensor:
    """Noise in the form of a tensor: whole multiples of deviation · 2⁻⁴⁰, from the operating system's generator.

    Args:
        like: of any shape.
        deviation: σ; 0 is no noise.
        words: where randomness comes from.

    Returns:
        Of the shape and type of `like`.

    Example:
        >>> system_gaussian(torch.zeros(2, 3), 1.0).shape
        torch.Size([2, 3])
    """
    drawn = discrete_gaussian(like.numel(), FINE, words).astype(np.float64) * (deviation / FINE)
    return torch.from_numpy(drawn).view(like.shape).to(like)


def _discrete_laplace(tries: int, scale: int, words: Source) -> NDArray[np.int64]:
    """Integers with P(x) ∝ exp(−|x| / scale): what is left of so many tries (algorithm 2)."""
    drawn = words(tries)
    drawn = drawn[drawn <= np.uint64(2**64 // scale * scale - 1)]  # a multiple of the scale, or some would come oftener
    rest = (drawn % np.uint64(scale)).astype(np.int64)
    rest = rest[_happens(np.exp(-rest / scale), words)]
    times = np.floor(-np.log(1.0 - _uniform(len(rest), words))).astype(np.int64)  # successes of chance 1/e in a row
    found = rest + scale * times
    negative = _uniform(len(found), words) < 0.5
    signed: NDArray[np.int64] = np.where(negative, -found, found)[~(negative & (found == 0))]
    return signed


def _happens(chance: NDArray[np.float64], words: Source) -> NDArray[np.bool_]:
    return _uniform(len(chance), words) < chance


def _uniform(size: int, words: Source) -> NDArray[np.float64]:
    """In [0, 1), of 53 bits."""
    return (words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _clip(experiment: Experiment) -> float:
    if experiment.clip is None:
        raise misused("--privacy client", "over a network it needs noise", hint="give --clip and --noise")
    return experiment.clip
