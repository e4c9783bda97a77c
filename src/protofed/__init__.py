"""ProtoFed: federated prototype learning.

The public interface is what `__all__` lists here and in the modules of docs/api. A public name changes only with a
note in CHANGELOG.md; everything else may change at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protofed.internal.version import VERSION as __version__

if TYPE_CHECKING:
    from protofed.api import compare, resume, run, sweep
    from protofed.data.federation import Client, Federation
    from protofed.data.samples import Samples
    from protofed.experiment import Experiment
    from protofed.server.round import Round
    from protofed.serving.predictor import load

__all__ = [
    "Client",
    "Experiment",
    "Federation",
    "Round",
    "Samples",
    "__version__",
    "compare",
    "load",
    "resume",
    "run",
    "sweep",
]

_WHERE = {
    "compare": "api",
    "resume": "api",
    "run": "api",
    "sweep": "api",
    "Client": "data.federation",
    "Federation": "data.federation",
    "Samples": "data.samples",
    "Experiment": "experiment",
    "Round": "server.round",
    "load": "serving.predictor",
}


def __getattr__(name: str) -> Any:
    """Import torch only when something is used, so that the command line answers at once."""
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(f"protofed.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'protofed' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List what there is, which notebooks complete names from."""
    return list(__all__)
