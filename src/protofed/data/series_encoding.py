"""Series as samples: channels over steps, padded to one length, with a mask where lengths differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from protofed.data.encodings import Encoding
from protofed.data.samples import check_shape
from protofed.errors import UserError
from protofed.internal.schema import check_type

LEVELS = "▁▂▃▄▅▆▇█"
SHOWN = 40
"""Steps of a series that are shown."""
VALUES = 8
"""Of an array."""


@dataclass(frozen=True)
class SeriesEncoding(Encoding):
    """Describe series as samples: float32 [channels, length], or [channels + 1, length] with a mask.

    Args:
        channels: of a series.
        length: steps of the longest.
        masked: whether lengths differ: then a last channel is 1 where a step is there and 0 where it only pads.

    Raises:
        UserError: a number is below 1, or such samples would be too large.

    Example:
        >>> from protofed.data import SeriesEncoding
        >>> encoding = SeriesEncoding(channels=1, length=3, masked=True)
        >>> x = encoding.encode([[[0.5, 2.0]], [[1.0, 2.0, 3.0]]])
        >>> x[0].tolist()
        [[0.5, 2.0, 0.0], [1.0, 1.0, 0.0]]
        >>> encoding.show(x[1])
        '▁▅█ (3 steps)'
    """

    kind: ClassVar[str] = "series"
    channels: int
    length: int
    masked: bool

    def __post_init__(self) -> None:
        for name, hint in (("channels", int), ("length", int), ("masked", bool)):
            check_type(name, getattr(self, name), hint)
        for name in ("channels", "length"):
            if getattr(self, name) < 1:
                raise UserError(name, getattr(self, name), "it must be at least 1")
        check_shape(self.channels + 1, self.length)

    @classmethod
    def of(cls, records: Sequence[Any]) -> SeriesEncoding:
        """Return the encoding that fits series [channels, steps], which may differ in their steps."""
        lengths = {record.shape[1] for record in records}
        return cls(records[0].shape[0], max(lengths), len(lengths) > 1)

    def encode(self, records: Sequence[Any]) -> Tensor:
        """Make samples of series.

        Args:
            records: each [channels, steps], numbers; NaN is a missing one (see `filled`). Where lengths may differ,
                what goes beyond `length` is cut off.

        Returns:
            The samples [n, channels, length], or [n, channels + 1, length] with the mask.

        Raises:
            UserError: a series has other channels, another length where all are alike, or a number that is not finite.
        """
        x = torch.zeros(len(records), self.channels + self.masked, self.length)
        for number, record in enumerate(records):
            try:
                series = filled(np.asarray(record, np.float64))
            except ValueError as error:
                raise UserError("series", number, str(error)) from None
            channels, steps = series.shape
            if channels != self.channels or not (self.masked or steps == self.length):
                size = f"[{self.channels}, {'steps' if self.masked else self.length}]"
                raise UserError("series", number, f"it is {list(series.shape)} and must be {size}")
            kept = min(steps, self.length)
            x[number, :channels, :kept] = torch.from_numpy(series[:, :kept])
            if self.masked:
                x[number, -1, :kept] = 1
        return x

    def show(self, x: Tensor) -> str:
        """Return the first channel of a sample as a small picture, and how many steps there are."""
        steps = int(x[-1].sum()) if self.masked else self.length
        values = x[0, : min(steps, SHOWN)].tolist()
        low, high = min(values, default=0.0), max(values, default=0.0)
        places = [(value - low) / ((high - low) or 1) * (len(LEVELS) - 1) for value in values]
        curve = "".join(LEVELS[int(place + 0.5)] for place in places) + ("…" if steps > SHOWN else "")
        more = f", first of {self.channels} channels" if self.channels > 1 else ""
        return f"{curve} ({steps} steps{more})"

    def layout(self) -> Any:
        """Return the channels; the longest series is each file's own."""
        return [self.channels, self.masked]

    def to_json(self) -> dict[str, Any]:
        """Return its fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: Any) -> SeriesEncoding:
        """Read what `to_json` made."""
        if not isinstance(said, dict) or said.keys() != {"channels", "length", "masked"}:
            raise UserError("encoding", said, "one of series has channels, length and masked, and nothing else")
        return cls(**said)


def shown(x: Tensor) -> str | None:
    """One sample [...] of an array as a line: a series is drawn, others have their first values; None for pictures."""
    if x.dtype == torch.uint8 and x.dim() == 3:
        return None
    if x.dim() == 2 and x.is_floating_point():
        return SeriesEncoding(x.shape[0], x.shape[1], masked=False).show(x)
    values = " ".join(f"{value:.4g}" for value in x.flatten()[:VALUES].tolist())
    more = f" … ({x.numel()} in all)" if x.numel() > VALUES else ""
    return f"{values}{more}"


def filled(series: Any) -> Any:
    """A series [channels, steps] whose missing numbers (NaN) lie on the line between their neighbours.

    Before the first and after the last number of a channel the nearest one is taken. Steps at the end that are missing
    in all channels are no steps. A channel without numbers, and what is not finite, is a ValueError.
    """
    if series.ndim != 2 or not series.size:
        raise ValueError(f"it is {list(series.shape)} and must be [channels, steps], with a step or more")
    absent = np.isnan(series)
    if absent.any():
        if absent.all(1).any():
            raise ValueError("a channel has no numbers")
        series = series[:, : int(np.nonzero(~absent.all(0))[0][-1]) + 1].copy()
        steps = np.arange(series.shape[1])
        for channel in series:
            there = ~np.isnan(channel)
            channel[~there] = np.interp(steps[~there], steps[there], channel[there])
    if not (np.abs(series) <= np.finfo(np.float32).max).all():
        raise ValueError("it holds a number that is not finite, or too large")
    return series
