"""Training samples that an exported model brings along, where its maker asked for it: whom an answer is like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from protofed.data.encodings import Encoding
from protofed.data.series_encoding import shown
from protofed.errors import UserError


class Examples(NamedTuple):
    """Training samples, and what the model makes of them."""

    x: Tensor  # [n, ...], as they are stored
    labels: Tensor  # [n]
    clients: Tensor  # whose they are [n]
    features: Tensor  # [n, D]

    @classmethod
    def read(cls, tensors: dict[str, Tensor], classes: int, size: int) -> Self:
        """Those of a file."""
        if tensors.keys() != set(cls._fields):
            raise UserError("examples.safetensors", sorted(tensors), f"it must hold {', '.join(cls._fields)}")
        made = cls(**tensors)
        rows = made.labels.shape
        fits = made.labels.dim() == 1 and made.x.shape[:1] == made.clients.shape == rows and len(made.labels) > 0
        whole = made.labels.dtype == made.clients.dtype == torch.int64
        if not (fits and whole and made.features.shape == (*rows, size) and made.features.is_floating_point()):
            raise UserError("examples.safetensors", list(made.x.shape), "its tensors do not fit together")
        if not 0 <= int(made.labels.min()) <= int(made.labels.max()) < classes:
            raise UserError("examples.safetensors", int(made.labels.max()), f"classes are from 0 to {classes - 1}")
        return made

    def nearest(self, features: Tensor) -> Tensor:
        """Which of them is nearest to each of the features [m, D], by distance: [m]."""
        return torch.cdist(features.double(), self.features.double()).argmin(-1)

    def told(self, rows: Tensor, names: Sequence[str], encoding: Encoding | None) -> list[dict[str, Any]]:
        """Some of them in words: class, client, number and, unless they are pictures, the sample."""
        return [
            {
                "class": names[int(self.labels[row])],
                "client": int(self.clients[row]),
                "number": row,
                "sample": shown(self.x[row]) if encoding is None else encoding.show(self.x[row]),
            }
            for row in rows.tolist()
        ]


def chosen(every: Examples, vectors: Tensor, filled: Tensor, number: int) -> Examples:
    """Of every training sample so many as are nearest to each prototype [C, M, D] of their class, each once."""
    kept: set[int] = set()
    for label, slot in filled.nonzero().tolist():
        rows = (every.labels == label).nonzero().flatten()
        far = (every.features[rows] - vectors[label, slot]).norm(dim=-1)
        kept |= set(rows[far.argsort(stable=True)[:number]].tolist())
    order = torch.tensor(sorted(kept), dtype=torch.int64)
    return Examples(*(part[order] for part in every))
