"""What is only summed: a round's uploads as the sum of what each client adds, and the one upload that sum stands for.

Secure aggregation reveals this sum and nothing else; client-level privacy clips what is added and noises the sum.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.messages import Upload
from protofed.methods.base import Method, Summed
from protofed.prototypes import Prototypes

IMPORTANCE = "importance"


def summed(method: Method, what: str) -> Summed:
    """How the method's uploads are added up; an error that names `what` where it needs each client's own."""
    found = how_summed(method)
    if found is None:
        raise UserError(
            f"--method with {what}", method.name, "its server needs each client's own upload, not only their sum"
        )
    return found


def how_summed(method: Method) -> Summed | None:
    """How the method's uploads are added up; None where it needs each client's own."""
    said = of_its_aggregation(type(method), "summed") and not (method.needs_each() or method.exchanges_public)
    return method.summed() if said else None


def of_its_aggregation(kind: type[Method], statement: str) -> bool:
    """Whether what a method states is no older than its `aggregate`, which a subclass may have replaced."""
    where = {
        name: next(n for n, one in enumerate(kind.__mro__) if name in vars(one)) for name in (statement, "aggregate")
    }
    return where[statement] <= where["aggregate"]


def terms(uploads: Upload, how: Summed) -> dict[str, Tensor]:
    """What each client adds, with a leading client axis: its weights and prototypes times their importance, and that.

    Of a set of prototypes, at most one a class, also how many samples it stands for.
    """
    found: dict[str, Tensor] = {}
    if uploads.weights:
        samples = uploads.numbers["samples"]
        importance = samples if how.weights == "samples" else torch.ones_like(samples)
        found[IMPORTANCE] = importance.to(torch.float64)
        for name, tensor in uploads.weights.items():
            found[f"weights/{name}"] = tensor * _fit(importance, tensor) if tensor.is_floating_point() else tensor
        found["numbers/samples"] = samples
    for name, (vectors, counts) in uploads.prototypes.items():
        importance = counts if how.prototypes == "samples" else (counts > 0).to(counts.dtype)
        found[f"prototypes/{name}/vectors"] = vectors * importance.unsqueeze(-1)
        found[f"prototypes/{name}/{IMPORTANCE}"] = importance
        found[f"prototypes/{name}/counts"] = counts
    return found | {f"sums/{name}": tensor for name, tensor in uploads.sums.items()}


def upload_of(total: Mapping[str, Tensor], clients: int) -> Upload:
    """The upload, of one client, of which the method makes the same as of all those that were added up."""
    weights, prototypes, numbers, sums = {}, {}, {}, {}
    for path, tensor in total.items():
        part, _, name = path.partition("/")
        if part == "weights":
            if tensor.is_floating_point():
                weights[name] = (tensor / total[IMPORTANCE].to(tensor.dtype)).unsqueeze(0)
            else:  # how many batches a BatchNorm has seen
                weights[name] = (tensor // clients).unsqueeze(0)
        elif part == "numbers":
            numbers[name] = tensor.unsqueeze(0)
        elif part == "sums":
            sums[name] = tensor.unsqueeze(0)
        elif part == "prototypes" and name.endswith("/vectors"):
            which = name.removesuffix("/vectors")
            importance = total[f"prototypes/{which}/{IMPORTANCE}"]
            counts = total[f"prototypes/{which}/counts"]
            vectors = tensor / torch.where(importance > 0, importance, 1).unsqueeze(-1)
            prototypes[which] = Prototypes(vectors.unsqueeze(0), counts.unsqueeze(0))
    return Upload(weights, prototypes, numbers, sums)


def _fit(importance: Tensor, tensor: Tensor) -> Tensor:
    return importance.to(tensor.dtype).view(-1, *(1,) * (tensor.dim() - 1))
