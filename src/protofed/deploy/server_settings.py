"""What a server is told, without torch: the processes that only start Flower's have no use for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protofed.errors import UserError
from protofed.experiment import Experiment, options
from protofed.internal.schema import read_json
from protofed.internal.yaml_files import read_yaml
from protofed.runs.folder import RunFolder
from protofed.runs.network_label import OWN, with_own_data

WHOLE = re.compile("[0-9]{1,20}")
"""Numbers of clients and of nodes, which have 64 bits."""


ELSEWHERE = ("drift", "encoder", "start", "novel", "attack", "delays")
"""Options that runs over a network do not have."""


def elsewhere(experiment: Experiment) -> list[str]:
    """The options of an experiment that are not for runs over a network: no server asks, and clients refuse them.

    The noise of --privacy example is drawn by clients from the seed, which the server knows.
    """
    found = [name for name in ELSEWHERE if getattr(experiment, name) != getattr(Experiment, name)]
    return [*found, "privacy"] if experiment.hides_examples else found


@dataclass(frozen=True)
class Settings:
    """How a server treats its clients; keys of the Flower app's configuration."""

    out: str = "run"  # the run folder; one that is there is continued
    minimum: int = 1  # clients without whose answers a round does not count
    deadline: float = 600.0  # seconds that clients have to answer
    wait: float = 120.0  # seconds to wait for all clients at the beginning, and for the minimum later
    nodes: str = ""  # JSON file with the node of each client, where that is known from their keys
    members: str = ""  # JSON file of who was admitted, by whose certificates clients check each other's signatures

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """From an app's configuration."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})


def read_nodes(path: Path) -> dict[int, int]:
    """The node of each client, as the federation's server has written them."""
    said = read_json(path)
    if not isinstance(said, dict) or not all(WHOLE.fullmatch(str(word)) for pair in said.items() for word in pair):
        raise UserError("FILE", str(path), "it must give the node of each client")
    return {int(client): int(node) for client, node in said.items()}


def toml(value: str | float) -> str:
    """A value as TOML writes it; a text holds no quote, for Flower looks for the next one in a node's configuration."""
    if not isinstance(value, str):
        return str(value)
    plain = (one if one.isprintable() and one not in '"\\' else f"\\U{ord(one):08x}" for one in value)
    return f'"{"".join(plain)}"'


def check_out(path: Path, experiment: Experiment) -> None:
    """Refuse a folder in which this experiment can neither begin nor go on."""
    if path.exists() and not RunFolder(path).over_network:
        raise UserError(
            "--out", str(path), "it exists and is not the folder of a run over a network", hint="name a new one"
        )
    config = path / "config.yaml"
    if not config.is_file():  # new, or killed before its first round
        return
    held = Experiment.from_mapping(read_yaml(config, as_written=True))
    there, here = asdict(held), asdict(with_own_data(experiment) if held.split == OWN else experiment)
    changed = [name for name in here if there[name] != here[name] and name not in options("machine")]
    if changed:
        said = "; ".join(f"{name} {there[name]!r}, not {here[name]!r}" for name in changed)
        raise UserError("--out", str(path), f"it holds another experiment ({said})", hint="name a new folder")
