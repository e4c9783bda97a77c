"""FedMAX is listed and trains, alike in both engines; without its weight it is FedAvg."""

from pathlib import Path

from tests.support.changed_source import played
from tests.support.command_line import rounds_of, succeed

assert "fedmax" in succeed(Path(), "methods").out
precise = ("--precision", "float64")
loop, stacked, without, fedavg = (
    rounds_of(played(*precise, *flags, out=str(number)))[0]["loss"]
    for number, flags in enumerate(
        (
            ("--method", "fedmax", "--engine", "sequential"),
            ("--method", "fedmax", "--engine", "stacked"),
            ("--method", "fedmax", "--set", "beta=0"),
            ("--method", "fedavg"),
        )
    )
)
assert abs(loop - stacked) < 1e-9
assert abs(without - fedavg) < 1e-9 < abs(loop - fedavg)
