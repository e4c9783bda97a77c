# %% [markdown]
# # A federation of your own clients
# Who holds what is known: each client brings its own tensors. Then the model is used, and asked what it cannot know.
# %%
import torch

import protofed
from protofed.data import Client, Federation, Samples, load

# %% Three shops hold different digits: few of some, none of others
digits = load("digits")


def shop(wanted, at_most, seed):
    draw = torch.Generator().manual_seed(seed)
    rows = torch.cat([torch.nonzero(digits.train.labels == cls).flatten() for cls in wanted])
    rows = rows[torch.randperm(len(rows), generator=draw)][:at_most]
    tested = torch.isin(digits.test.labels, torch.tensor(wanted))
    train = Samples.of(digits.train.x[rows], digits.train.labels[rows])
    return Client.of(train, Samples.of(digits.test.x[tested], digits.test.labels[tested]))


shops = (shop([0, 1, 2, 3], 200, 0), shop([3, 4, 5, 6], 120, 1), shop([6, 7, 8, 9, 0], 60, 2))
federation = Federation(shops, digits.classes)
federation
# %% They train together; nobody's pictures leave them
result = protofed.run("mp-fedcl", federation=federation, model="cnn", lr=0.02, rounds=10)
result.plot()
# %% Each shop by itself, for comparison
alone = protofed.run("local", federation=federation, model="cnn", lr=0.02, rounds=10)
for name in ("own/own/head", "own/own/nearest"):
    print(f"{name:16} together {result.accuracy[name].last:.1f} %, alone {alone.accuracy[name].last:.1f} %")
# %% The first shop's model predicts: class, distance, and whose prototype that was
model = result.predictor()
model.predict(digits.test.x[:8])
# %% How often it is right: of all classes, also those that this shop has never seen
found = model.predict(digits.test.x)
labels = [digits.classes[label] for label in digits.test.labels]
right = sum(name == label for name, label in zip(found.classes, labels, strict=True))
print(f"{100 * right / len(digits.test):.1f} % of {len(digits.test)} test pictures of all classes")
# %% What looks like nothing it knows is refused
noise = digits.test.x[:8].flip(-1).flip(-2) // 2 + 60
model.predict(noise, reject=0.05).plot()
