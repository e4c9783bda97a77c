# %% [markdown]
# # Your own data
# Two hospitals hold pictures that they may not share. Here they are made up; put your own arrays in their place.
# %%
import tempfile
from pathlib import Path

import numpy as np

import protofed
from protofed.data import load

# %% [markdown]
# An array file has samples, their labels and, if there are several, the domain that each is from.
# %% Healthy and ill differ by a bright band, the hospitals by their brightness
draw = np.random.default_rng(0)
labels = draw.integers(0, 2, 400)
hospitals = draw.integers(0, 2, 400)
pictures = draw.integers(0, 80, (400, 16, 16))  # noise
pictures[:, 4:8] += 40 * labels[:, None, None]
pictures += 40 * hospitals[:, None, None]
here = Path(tempfile.mkdtemp())
names, places = np.array(["healthy", "ill"]), np.array(["north", "south"])
np.savez(here / "scans.npz", images=pictures.astype(np.uint8), labels=names[labels], domains=places[hospitals])
# %% What was read
scans = load(f"npz:{here / 'scans.npz'}")
print(len(scans.train), "training samples,", len(scans.test), "for testing;", scans.classes, scans.domains)
# %% What each hospital holds, by class
for number, place in enumerate(scans.domains):
    held = scans.train.labels[scans.train.domains == number]
    print(place, dict(zip(scans.classes, held.bincount(minlength=len(scans.classes)).tolist(), strict=True)))
# %% Methods are compared before anything is believed: three seeds
data = {"dataset": f"npz:{here / 'scans.npz'}", "split": "domains", "clients": 2}
training = {"model": "cnn", "rounds": 5, "lr": 0.02}
comparison = protofed.compare(["local", "fedavg", "fedproto"], seeds=3, jobs=1, **data, **training)
comparison
# %% Round by round
comparison.plot()
