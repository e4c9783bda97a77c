"""How often a backdoor opens: test images with the attackers' trigger, and what honest clients take them for."""

from __future__ import annotations

from protofed.engines.base import Engine
from protofed.messages import Broadcast
from protofed.trust.attacker import TO, Attack, triggered

TRIED = 200
"""Test images, at most, that a trigger is tried on."""


def backdoor_rate(engine: Engine, broadcast: Broadcast, attack: Attack) -> float:
    """The part of test images of other classes, in percent, that the trigger makes the honest clients take for TO.

    By the models from which their next turn would start.
    """
    found, seen = 0, 0
    for group in engine.groups:
        rows = [row for row, member in enumerate(group.members) if member not in attack.who]
        others = (group.test.labels != TO).nonzero().squeeze(1)[:TRIED]
        for row in rows:
            x = group.inputs(triggered(group.test.x[others]), [row])
            own = {name: broadcast.weights.get(name, value[0]) for name, value in group.own.take([row]).items()}
            logits = engine.forward(group, {name: value.unsqueeze(0) for name, value in own.items()}, x)[1]
            found, seen = found + int((logits.argmax(-1) == TO).sum()), seen + len(others)
    return 100 * found / max(1, seen)
