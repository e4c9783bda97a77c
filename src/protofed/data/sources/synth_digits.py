"""Digits drawn with fonts, in the spirit of Synthetic Digits: colours, turns, blur, and other digits beside them.

For when the published file is not there (Ganin et al. drew theirs with Windows' fonts; these come with matplotlib).
"""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.data.samples import Dataset, Samples
from protofed.data.sources.digit_domains import FONTS, load_font
from protofed.randomness import generator

TRAIN, TEST = 10_000, 2_000
SIDE = 32


def drawn_digits(train: int = TRAIN, test: int = TEST) -> Dataset:
    """The ten digits in turn, 32x32 RGB; nothing is random, and no drawing is in both parts."""
    return Dataset.of("synth-digits", _samples("train", train), _samples("test", test), "0123456789")


def _samples(part: str, number: int) -> Samples:
    labels = torch.arange(number) % 10
    return Samples.of(torch.stack([_drawing(int(digit), part, i) for i, digit in enumerate(labels)]), labels)


def _drawing(digit: int, part: str, index: int) -> Tensor:
    """One image, uint8 [3, 32, 32]."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFilter

    rng = generator("synth-digits", part, index)
    font, size, turn, right, down, blur, left_digit, right_digit, grain = torch.rand(9, generator=rng).tolist()
    paper, slope, ink, edge = torch.rand(4, 3, 1, 1, generator=rng)
    if (ink - paper).abs().amax() < 0.4:  # a digit has to be seen
        ink = (paper + 0.5) % 1

    face = load_font(FONTS[int(font * len(FONTS))], 20 + round(8 * size))
    centre = (SIDE + 5 * (right - 0.5), SIDE + 5 * (down - 0.5))  # on a sheet of twice the size, so that turns fit
    shapes = []
    for stroke in (0, 1):
        sheet = Image.new("L", (2 * SIDE, 2 * SIDE))
        draw = ImageDraw.Draw(sheet)
        half = face.getlength(str(digit)) / 2 + 1
        draw.text(centre, str(digit), fill=255, font=face, anchor="mm", stroke_width=stroke)
        for beside, anchor, way in ((left_digit, "rm", -1), (right_digit, "lm", 1)):  # half of them have a neighbour
            if beside < 0.5:
                place = (centre[0] + way * half, centre[1])
                draw.text(place, str(int(20 * beside)), fill=255, font=face, anchor=anchor, stroke_width=stroke)
        sheet = sheet.rotate(40 * (turn - 0.5), Image.Resampling.BILINEAR, center=centre)
        sheet = sheet.crop((SIDE // 2, SIDE // 2, SIDE // 2 + SIDE, SIDE // 2 + SIDE))
        shapes.append(torch.from_numpy(np.array(sheet.filter(ImageFilter.GaussianBlur(1.2 * blur)))) / 255)
    fill, outline = shapes

    ramp = torch.linspace(-0.3, 0.3, SIDE).view(1, 1, SIDE)  # the paper gets darker or lighter across
    image: Tensor = paper + ramp * (slope - 0.5) * 2
    image = image * (1 - outline) + edge * outline
    image = image * (1 - fill) + ink * fill
    image = image + 0.15 * grain * (torch.rand(3, SIDE, SIDE, generator=rng) - 0.5)
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)
