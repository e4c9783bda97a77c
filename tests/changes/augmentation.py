"""--augment flip mirrors some images and leaves the others as they are."""

import torch

from protofed.data.augmentation import augmented
from tests.support.changed_source import played

images = torch.rand(1, 50, 1, 8, 8)
found = augmented(images, torch.tensor([7]), "flip")
same, mirrored = ((found == other).flatten(2).all(2) for other in (images, images.flip(-1)))
assert bool((same | mirrored).all())
assert 10 < int(mirrored.sum()) < 40
played("--augment", "flip")
