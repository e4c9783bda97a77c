"""Initial weights from a file."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from protofed.errors import UserError, listed

ANEW = ("stem.", "head.")
"""Never taken: FedProto draws the first convolution of ImageNet's ResNet-18, its norm and the classifier anew."""


def start_from(path: Path, module: nn.Module) -> list[str]:
    """Give a module the tensors of a file that have its names and shapes; the names of those that stay as drawn."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError("--start", str(path), f"it cannot be read as safetensors: {error}") from None
    own = module.state_dict()
    known = {name for name, tensor in own.items() if not name.startswith(ANEW) and name in tensors}
    taken = {name: tensors[name] for name in known if tensors[name].shape == own[name].shape}
    if not taken:
        raise UserError("--start", str(path), f"no tensor in it has name and shape of the model's: {listed([*own])}")
    module.load_state_dict(own | taken)
    return [name for name in own if name not in taken]
