"""Update rules of local optimisers, number by number, as their papers write them.

SGD: Sutskever et al., ICML 2013, in PyTorch's form, whose rate is outside of the momentum. Adam: Kingma and Ba, ICLR
2015, Algorithm 1. AdamW: Loshchilov and Hutter, ICLR 2019, Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


def sgd(start: float, gradients: Sequence[float], lr: float, momentum: float, weight_decay: float) -> float:
    """A weight after a step for each gradient."""
    weight, velocity = start, 0.0
    for gradient in gradients:
        velocity = momentum * velocity + gradient + weight_decay * weight
        weight -= lr * velocity
    return weight


def adam(start: float, gradients: Sequence[float], lr: float, weight_decay: float, decoupled: bool) -> float:
    """A weight after a step for each gradient; the decay is part of the gradient or, `decoupled`, a step by itself."""
    weight, first, second = start, 0.0, 0.0
    for step, found in enumerate(gradients, 1):
        gradient = found if decoupled else found + weight_decay * weight
        weight -= lr * weight_decay * weight if decoupled else 0.0
        first = BETA1 * first + (1 - BETA1) * gradient
        second = BETA2 * second + (1 - BETA2) * gradient * gradient
        mean, square = first / (1 - BETA1**step), second / (1 - BETA2**step)
        weight -= lr * mean / (math.sqrt(square) + EPSILON)
    return weight
