"""Every round's numbers in TensorBoard or Weights & Biases, which are imported only when asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from protofed.errors import UserError, unknown
from protofed.experiment import Experiment
from protofed.runs.progress import Progress, Standing
from protofed.runs.result import Result


class Log(Protocol):
    """Where the numbers of one run go."""

    def write(self, numbers: Mapping[str, float], round: int) -> None:
        """Those of a round, counted from 1."""

    def close(self) -> None:
        """The run is over."""


class TensorBoard:
    """Event files in <folder>/tensorboard/<run>."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:  # noqa: ARG002 - config.yaml has it
        tensorboard: Any = importlib.import_module("torch.utils.tensorboard")
        self.writer = tensorboard.SummaryWriter(str(folder / "tensorboard" / name))

    def write(self, numbers: Mapping[str, float], round: int) -> None:
        """To be seen at once."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def close(self) -> None:
        """No more events."""
        self.writer.close()


class WandB:
    """A run of the project protofed; those of a comparison form a group."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        wandb: Any = importlib.import_module("wandb")
        self.run = wandb.init(
            **{"project": "protofed", "group": folder.name, "name": name, "dir": str(folder), "config": dict(config)},
            reinit="create_new",  # runs of a comparison go on side by side
        )

    def write(self, numbers: Mapping[str, float], round: int) -> None:
        """The round is the step."""
        self.run.log(dict(numbers), step=round)

    def close(self) -> None:
        """Upload the rest."""
        self.run.finish()


LOGS: dict[str, Callable[[Path, str, Mapping[str, Any]], Log]] = {"tensorboard": TensorBoard, "wandb": WandB}
"""What --log may say; the names are also those of the packages and extras."""


class Logged(Progress):
    """Passes on how far runs are, and logs every round."""

    def __init__(self, shown: Progress, open_log: Callable[[Standing], Log]) -> None:
        self.shown, self.open = shown, open_log
        self.logs: dict[tuple[str, int], Log] = {}

    def tell(self, standing: Standing) -> None:
        """A run has a log from its first round on."""
        self.shown.tell(standing)
        if standing.loss is not None:
            run = standing.method, standing.seed
            if run not in self.logs:
                self.logs[run] = self.open(standing)
            self.logs[run].write(standing.numbers, standing.done)

    def finish(self, result: Result, setting: str = "") -> None:
        """One log less."""
        self.shown.finish(result, setting)
        if log := self.logs.pop((result.method, result.seed), None):
            log.close()

    def end(self) -> None:
        """No log stays open."""
        self.shown.end()
        while self.logs:
            self.logs.popitem()[1].close()


def need(name: str | None) -> None:
    """Refuse a log that is unknown or whose package is missing."""
    if name is None:
        return
    if name not in LOGS:
        raise unknown("--log", name, LOGS)
    try:
        importlib.import_module(name)
    except ImportError:
        raise UserError("--log", name, "it is not installed", hint=f"pip install 'protofed[{name}]'") from None


def logged(shown: Progress, name: str | None, folder: Path, experiment: Experiment) -> Progress:
    """The same progress, with a log if one was asked for."""
    if name is None:
        return shown

    def open_log(standing: Standing) -> Log:
        config = dataclasses.asdict(experiment) | {"method": standing.method, "seed": standing.seed}
        return LOGS[name](folder, f"{standing.method}-seed{standing.seed}", config)

    return Logged(shown, open_log)
