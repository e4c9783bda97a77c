"""Ten digits in four domains, 32x32 RGB, made from scikit-learn's digits and the fonts that matplotlib ships.

The domains differ in how they look, not in which digits they hold, so the dataset shows feature shift
without any download. Nothing is random: the same package versions give the same bytes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from protofed.data.samples import Dataset, Samples
from protofed.data.sources.digits import digits
from protofed.randomness import generator

if TYPE_CHECKING:
    from PIL import ImageFont

DOMAINS = ("scanned", "inverted", "texture", "printed")
TRAIN, TEST = 40, 11  # images per class and domain
SIDE = 32
FONTS = (  # those with ten digits that look like digits; the others hold symbols or repeat a face
    "DejaVuSans.ttf",
    "DejaVuSans-BoldOblique.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-BoldItalic.ttf",
    "STIXGeneral.ttf",
    "STIXGeneralBolIta.ttf",
    "cmr10.ttf",
    "cmss10.ttf",
    "cmti10.ttf",
    "cmtt10.ttf",
)


def digit_domains() -> Dataset:
    """400 training and 110 test images per domain; the two sets, and the domains, share no source digit."""
    source = digits()
    return Dataset.of(
        "digit-domains",
        _samples(source.train, "train", TRAIN),
        _samples(source.test, "test", TEST),
        source.classes,
        DOMAINS,
    )


def _samples(source: Samples, part: str, per_class: int) -> Samples:
    """All domains, interleaved: classes change fastest but for domains, so any first n images are balanced."""
    rows = torch.stack([(source.labels == c).nonzero().flatten()[: 3 * per_class] for c in range(10)], dim=1)
    grey = source.x[rows.flatten()].double() / 255
    ink = interpolate(grey, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)  # [3 per_class 10, 1, 32, 32]
    first, second, third = ink.chunk(3)
    domains = (
        _scanned(first),
        _inverted(second, part),
        _texture(third, part),
        _printed(part, per_class),
    )
    images = torch.stack(domains, dim=1).flatten(0, 1)
    index = torch.arange(len(images))
    return Samples((images * 255).round().to(torch.uint8), index // 4 % 10, index % 4)


def _scanned(ink: Tensor) -> Tensor:
    """Light ink on black, as in the source."""
    return ink.expand(-1, 3, -1, -1)


def _inverted(ink: Tensor, part: str) -> Tensor:
    """Dark ink on white, with noise."""
    noise = _random((len(ink), 1, SIDE, SIDE), part, "inverted")
    return (1 - ink + 0.5 * (noise - 0.5)).clamp(0, 1).expand(-1, 3, -1, -1)


def _texture(ink: Tensor, part: str) -> Tensor:
    """Bright coloured ink over dark coloured patches."""
    patches = interpolate(_random((len(ink), 3, 6, 6), part, "patches"), size=(SIDE, SIDE), mode="bilinear")
    colour = 0.6 + 0.4 * _random((len(ink), 3, 1, 1), part, "colour")
    return 0.7 * patches * (1 - ink) + colour * ink


def _printed(part: str, per_class: int) -> Tensor:
    """Digits of printed fonts in dark coloured ink on pastel paper, turned, scaled, moved and blurred."""
    ink = torch.stack([_glyph(i % 10, i, part) for i in range(10 * per_class)]).unsqueeze(1)
    colour = 0.4 * _random((len(ink), 3, 1, 1), part, "ink")
    paper = 0.7 + 0.3 * _random((len(ink), 3, 1, 1), part, "paper")
    return paper * (1 - ink) + colour * ink


def _glyph(digit: int, index: int, part: str) -> Tensor:
    """How much ink is on each pixel of one printed digit, 0..1."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFilter

    font, turn, scale, right, down, blur = _random((6,), part, "glyph", index).tolist()
    image = Image.new("L", (SIDE, SIDE))
    centre = (SIDE / 2 + 6 * (right - 0.5), SIDE / 2 + 6 * (down - 0.5))
    face = load_font(FONTS[int(font * len(FONTS))], 20 + round(10 * scale))
    ImageDraw.Draw(image).text(centre, str(digit), fill=255, font=face, anchor="mm")
    image = image.rotate(40 * (turn - 0.5), Image.Resampling.BILINEAR)
    image = image.filter(ImageFilter.GaussianBlur(1.2 * blur))
    return torch.from_numpy(np.array(image)).double() / 255


@cache
def load_font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """A font that matplotlib ships."""
    import matplotlib
    from PIL import ImageFont

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def _random(shape: tuple[int, ...], *address: int | str) -> Tensor:
    """Numbers in 0..1 that are always the same."""
    return torch.rand(shape, generator=generator("digit-domains", *address), dtype=torch.float64)
