"""Tables of the server with a row for each client."""

from __future__ import annotations

import torch
from torch import Tensor


def with_rows(table: Tensor, clients: int, fill: Tensor | float = 0, dim: int = 0) -> Tensor:
    """A table with a row for each of so many clients.

    Args:
        table: [..., N, ...], with N clients along `dim`.
        clients: how many rows there must be; those that are there stay.
        fill: what new rows hold, of a row's shape or a number.
        dim: where the client axis is.

    Example:
        >>> import torch
        >>> with_rows(torch.tensor([[1, 2]]), 3, fill=torch.tensor([5, 6])).tolist()
        [[1, 2], [5, 6], [5, 6]]
    """
    lacking = clients - table.shape[dim]
    if lacking <= 0:
        return table
    row = torch.as_tensor(fill, dtype=table.dtype, device=table.device)
    shape = list(table.shape)
    shape[dim] = lacking
    return torch.cat([table, row.expand(shape)], dim)
