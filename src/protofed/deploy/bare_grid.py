"""Flower's grid as far as a run uses it: who is there, messages to them, and their answers."""

from __future__ import annotations

from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid


class BareGrid(Grid):
    """One without what a run has no use for."""

    def set_run(self, run: Any) -> None:
        """Not used."""

    @property
    def run(self) -> Any:
        """Not used."""
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Not used."""
        raise NotImplementedError

    def get_nodes(self) -> Any:
        """Not used."""
        raise NotImplementedError

    def send_and_receive(self, *_: Any, **__: Any) -> Any:
        """Not used."""
        raise NotImplementedError
