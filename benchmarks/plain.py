"""What a careful user would write without ProtoFed: a loop over clients and batches, with torch alone.

Data and models stay on the device, pixels are normalised beforehand, nothing is printed and the loss is read once a
round. Each class below is one method's whole round; tests compare its losses with ProtoFed's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, normalize, relu6

from protofed.data import Federation
from protofed.experiment import Experiment

CHUNK = 1000  # images in one forward pass without gradients
Sent = dict[str, Any]


class Mlp(nn.Module):
    """MP-FedCL's MLP."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(math.prod(shape), 512), nn.Linear(512, 512)
        self.hidden, self.head = nn.Linear(512, 256), nn.Linear(256, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.hidden(self.second(self.first(x.flatten(1)).relu()).relu()).relu()
        return features, self.head(features)


class Cnn(nn.Module):
    """FedProto's CNN."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(shape[0], 10, 5), nn.Conv2d(10, 20, 5)
        self.dropout2d, self.dropout = nn.Dropout2d(0.5), nn.Dropout(0.5)
        self.hidden, self.head = nn.Linear(20 * (shape[1] // 4 - 3) * (shape[2] // 4 - 3), 50), nn.Linear(50, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = max_pool2d(self.conv1(x), 2).relu()
        x = max_pool2d(self.dropout2d(self.conv2(x)), 2).relu()
        features = self.hidden(x.flatten(1)).relu()
        return features, self.head(self.dropout(features))


class TwoLayerCnn(nn.Module):
    """The CNN of pfl-research's CIFAR-10 benchmark: two 3x3 convolutions and a dense layer."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(shape[0], 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.hidden = nn.Linear(64 * (shape[1] // 2 - 2) * (shape[2] // 2 - 2), 128)
        self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.dropout1(max_pool2d(self.conv2(self.conv1(x).relu()).relu(), 2))
        features = self.hidden(x.flatten(1)).relu()
        return features, self.head(self.dropout2(features))


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution and its BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv_norm(inputs, outputs, 3, stride), conv_norm(outputs, outputs, 3)
        self.shortcut = nn.Identity() if inputs == outputs else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x).relu()) + self.shortcut(x)
        return out.relu()


class ResNet10(nn.Module):
    """ResNet-10 with a 3x3 stem."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(shape[0], 64, 3), nn.ReLU())
        self.stages = nn.Sequential(
            BasicBlock(64, 64, 1), BasicBlock(64, 128, 2), BasicBlock(128, 256, 2), BasicBlock(256, 512, 2)
        )
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.stages(self.stem(x)).mean((-2, -1))
        return features, self.head(features)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = [conv_norm(inputs, wide, 1), nn.ReLU6()] if expansion > 1 else []
        filters = [conv_norm(wide, wide, 3, stride, groups=wide), nn.ReLU6()]
        self.layers = nn.Sequential(*widen, *filters, conv_norm(wide, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.residual else out


class MobileNetV2(nn.Module):
    """MobileNetV2 with the strides for small images."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        table = (
            (1, 16, 1, 1),
            (6, 24, 2, 1),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        )
        layers: list[nn.Module] = [conv_norm(shape[0], 32, 3), nn.ReLU6()]
        inputs = 32
        for expansion, outputs, repeats, stride in table:
            for number in range(repeats):
                layers.append(InvertedResidual(inputs, outputs, 1 if number else stride, expansion))
                inputs = outputs
        self.layers = nn.Sequential(*layers, conv_norm(inputs, 1280, 1))
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = relu6(self.layers(x)).mean((-2, -1))
        return features, self.head(self.dropout(features))


MODELS: dict[str, Callable[[tuple[int, int, int], int], nn.Module]] = {
    "mlp": Mlp,
    "cnn": Cnn,
    "two-layer-cnn": TwoLayerCnn,
    "resnet10": ResNet10,
    "mobilenet-v2": MobileNetV2,
}


class Local:
    """Every client trains alone; the loop that all methods share."""

    passes = 0  # forward passes over a client's data besides training

    def __init__(self, experiment: Experiment, federation: Federation, device: torch.device) -> None:
        self.settings, self.federation, self.device = experiment, federation, device
        self.classes = len(federation.classes)
        client = federation.clients[0]
        mean, std = (
            torch.tensor(values).view(-1, 1, 1) for values in (client.preparation.mean, client.preparation.std)
        )
        self.data = [
            (((client.train.x / 255 - mean) / std).to(device), client.train.labels.to(device))
            for client in federation.clients
        ]
        self.test = ((client.pool.x / 255 - mean) / std).to(device), client.pool.labels.to(device)
        torch.manual_seed(experiment.seed)
        shape = client.train.x.shape
        model = MODELS[experiment.model]((shape[1], shape[2], shape[3]), self.classes).to(device)
        self.models = self.copies(model)
        self.rounds = 0

    def copies(self, model: nn.Module) -> list[nn.Module]:
        """A model for each client to keep."""
        return [deepcopy(model) for _ in self.data]

    def round(self, who: Sequence[int]) -> float:
        """Everyone's turn and the server's; the mean training loss."""
        self.losses: list[Tensor] = []
        self.aggregate([self.turn(k) for k in who])
        self.rounds += 1
        return float(torch.stack(self.losses).mean())

    def turn(self, k: int) -> Sent:
        """One client trains; what it sends."""
        self.train(self.models[k], *self.data[k])
        return {}

    def aggregate(self, sent: Sequence[Sent]) -> None:
        """What the server makes of it."""

    def train(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        """Local epochs of SGD."""
        s = self.settings
        lr = s.lr * s.lr_decay**self.rounds
        optimiser = torch.optim.SGD(model.parameters(), lr, momentum=s.momentum, weight_decay=s.weight_decay)
        model.train()
        for epoch in range(s.epochs):
            for rows in torch.split(torch.randperm(len(y), device=self.device), s.batch_size):
                features = self.step(model, optimiser, x[rows], y[rows])
                if epoch == s.epochs - 1:
                    self.see(features, y[rows])

    def step(self, model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        """One batch; its features."""
        features, logits = self.forward(model, x)
        loss = self.loss(model, features, logits, y)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        self.losses.append(loss.detach())
        return features.detach()

    def forward(self, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits, in the precision asked for."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            features, logits = model(x)
        return features.float(), logits.float()

    def loss(self, model: nn.Module, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002
        """The local objective."""
        return cross_entropy(logits, y)

    def see(self, features: Tensor, y: Tensor) -> None:
        """Look at a training batch of the last epoch."""

    @torch.no_grad()
    def embed(self, model: nn.Module, x: Tensor) -> Tensor:
        """Features in eval mode."""
        model.eval()
        return torch.cat([self.forward(model, part)[0] for part in torch.split(x, CHUNK)])

    @torch.no_grad()
    def evaluate(self) -> list[float]:
        """Accuracies of every client's model by its head and by the nearest prototype, on all and on its classes."""
        found = []
        for k, client in enumerate(self.federation.clients):
            model, own = self.own_model(k).eval(), client.own.to(self.device)
            vectors, labels = self.references(k, model)
            hits = self.hits(model, vectors, labels)
            found += [hit.float().mean() for hit in hits] + [hit[own].float().mean() for hit in hits]
        return torch.stack(found).tolist()

    def hits(self, model: nn.Module, vectors: Tensor, labels: Tensor) -> list[Tensor]:
        """Which test images are right by the head, and by the nearest of these prototypes."""
        head, nearest = [], []
        for x, y in zip(*(torch.split(part, CHUNK) for part in self.test), strict=True):
            features, logits = self.forward(model, x)
            head.append(logits.argmax(1) == y)
            nearest.append(labels[torch.cdist(features, vectors).argmin(1)] == y)
        return [torch.cat(head), torch.cat(nearest)]

    def own_model(self, k: int) -> nn.Module:
        """The client's model as it was last trained."""
        return self.models[k]

    def references(self, k: int, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Prototypes to classify by, and their classes: the means of the client's own data."""
        x, y = self.data[k]
        means, held = class_means(self.embed(model, x), y, self.classes)
        return means[held], held.nonzero().flatten()


class FedAvg(Local):
    """The server averages the weights; one model serves all clients in turn."""

    def copies(self, model: nn.Module) -> list[nn.Module]:
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.trained: dict[int, dict[str, Tensor]] = {}
        return [model] * len(self.data)

    def turn(self, k: int) -> Sent:
        model, (x, y) = self.models[k], self.data[k]
        model.load_state_dict(self.weights)
        self.prepare(model, x)
        self.train(model, x, y)
        self.trained[k] = {name: value.clone() for name, value in model.state_dict().items()}
        return {"weights": self.trained[k], "samples": len(y), **self.describe(model, x, y)}

    def prepare(self, model: nn.Module, x: Tensor) -> None:
        """Look at the data before training."""

    def describe(self, model: nn.Module, x: Tensor, y: Tensor) -> Sent:  # noqa: ARG002
        """The prototypes that a client sends."""
        return {}

    def aggregate(self, sent: Sequence[Sent]) -> None:
        total = sum(one["samples"] for one in sent)
        average = {}
        for name, value in self.weights.items():
            if value.is_floating_point():
                average[name] = torch.zeros_like(value)
                for one in sent:
                    average[name].add_(one["weights"][name], alpha=one["samples"] / total)
            else:
                average[name] = sent[0]["weights"][name]
        self.weights = average

    def own_model(self, k: int) -> nn.Module:
        self.models[k].load_state_dict(self.trained[k])
        return self.models[k]

    @torch.no_grad()
    def evaluate(self) -> list[float]:
        """The averaged model's accuracy too."""
        found = super().evaluate()
        model = self.models[0]
        model.load_state_dict(self.weights)
        hits = self.hits(model.eval(), *self.references(0, model))
        return found + torch.stack([hit.float().mean() for hit in hits]).tolist()


class FedProx(FedAvg):
    """FedAvg whose clients stay near the received weights."""

    mu = 0.01

    def loss(self, model: nn.Module, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        drift = [(value - self.weights[name]).square().sum() for name, value in model.named_parameters()]
        return super().loss(model, features, logits, y) + self.mu / 2 * torch.stack(drift).sum()


class FedProto(Local):
    """Features are pulled to the mean prototype of their class; class means are taken while training."""

    prototypes: Tensor | None = None
    known: Tensor

    def turn(self, k: int) -> Sent:
        self.sums: Tensor | None = None
        self.counts = torch.zeros(self.classes, device=self.device)
        super().turn(k)
        assert self.sums is not None
        return {"means": self.sums / self.counts.clamp(min=1).unsqueeze(1), "held": self.counts > 0}

    def see(self, features: Tensor, y: Tensor) -> None:
        if self.sums is None:
            self.sums = features.new_zeros(self.classes, features.shape[1])
        self.sums.index_add_(0, y, features)
        self.counts.index_add_(0, y, torch.ones_like(y, dtype=self.counts.dtype))

    def loss(self, model: nn.Module, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        task = super().loss(model, features, logits, y)
        if self.prototypes is None:
            return task
        return task + ((features - self.prototypes[y]).square().mean(1) * self.known[y]).mean()

    def aggregate(self, sent: Sequence[Sent]) -> None:
        held = torch.stack([one["held"] for one in sent]).float().unsqueeze(-1)
        total = held.sum(0)
        self.prototypes = (torch.stack([one["means"] for one in sent]) * held).sum(0) / total.clamp(min=1)
        self.known = total.squeeze(1) > 0

    def references(self, k: int, model: nn.Module) -> tuple[Tensor, Tensor]:
        if self.prototypes is None:
            return super().references(k, model)
        return self.prototypes[self.known], self.known.nonzero().flatten()


class MPFedCL(FedAvg):
    """K k-means prototypes a class and client, pooled, and a contrast with the pool."""

    k, temperature = 2, 0.07
    passes = 1
    pool: Tensor | None = None

    def cluster(self, rows: Tensor) -> Tensor:
        """The prototypes of one class."""
        return kmeans(rows, self.k)

    def describe(self, model: nn.Module, x: Tensor, y: Tensor) -> Sent:
        features = self.embed(model, x)
        return {"prototypes": [self.cluster(features[y == c]) for c in range(self.classes)]}

    def aggregate(self, sent: Sequence[Sent]) -> None:
        super().aggregate(sent)
        sets = [one["prototypes"] for one in sent]
        self.sent = [torch.cat([one[c] for one in sets]) for c in range(self.classes)]
        means = [found.mean(0) if len(found) else found.new_zeros(found.shape[1]) for found in self.sent]
        grid = [
            [one[c] if len(one[c]) == self.k else means[c].expand(self.k, -1) for c in range(self.classes)]
            for one in sets
        ]
        self.pool = normalize(torch.stack([torch.stack(row) for row in grid]), dim=-1)  # [N, C, K, D]
        self.absent = torch.tensor([not len(found) for found in self.sent], device=self.device)

    def loss(self, model: nn.Module, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        task = super().loss(model, features, logits, y)
        if self.pool is None:
            return task
        clients, classes, slots, _ = self.pool.shape
        cosines = normalize(features, dim=-1) @ self.pool.flatten(0, 2).T / self.temperature
        by_class = cosines.view(-1, clients, classes, slots).movedim(2, 1)
        by_class = by_class.masked_fill(self.absent.view(1, -1, 1, 1), -torch.inf)
        return task + cross_entropy(by_class, y.view(-1, 1, 1).expand(-1, clients, slots))

    def references(self, k: int, model: nn.Module) -> tuple[Tensor, Tensor]:
        if self.pool is None:
            return super().references(k, model)
        labels = torch.arange(self.classes, device=self.device)
        return torch.cat(self.sent), labels.repeat_interleave(
            torch.tensor([len(found) for found in self.sent]).to(labels)
        )


class SPFedCL(MPFedCL):
    """MP-FedCL with the class mean."""

    k = 1

    def cluster(self, rows: Tensor) -> Tensor:
        return rows.mean(0, keepdim=True) if len(rows) else rows


class FedPLCC(FedAvg):
    """FINCH on both sides; clusters count by their samples, and the nearer half of a class's clusters pulls."""

    lambda1, lambda2, temperature, alpha, phi = 100.0, 1000.0, 0.07, 0.5, 0.5
    passes = 1
    clusters: Tensor | None = None

    def describe(self, model: nn.Module, x: Tensor, y: Tensor) -> Sent:
        features = self.embed(model, x)
        rows = [features[y == c] for c in range(self.classes)]
        return {"clusters": [finch(part, part.new_ones(len(part))) for part in rows]}

    def aggregate(self, sent: Sequence[Sent]) -> None:
        super().aggregate(sent)
        vectors, shares, sizes = [], [], []
        for c in range(self.classes):
            received = [one["clusters"][c] for one in sent]
            found, counts = finch(torch.cat([pair[0] for pair in received]), torch.cat([pair[1] for pair in received]))
            vectors.append(found)
            shares.append(counts / counts.sum())
            sizes.append(len(found))
        self.clusters = normalize(torch.cat(vectors), dim=-1)
        self.share = torch.cat(shares)
        number = torch.tensor(sizes, device=self.device)
        self.label = torch.arange(self.classes, device=self.device).repeat_interleave(number)
        self.pulls = (self.phi * number).ceil()
        self.known = number > 0

    def loss(self, model: nn.Module, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        task = super().loss(model, features, logits, y)
        if self.clusters is None:
            return task
        likeness = (normalize(features, dim=-1) @ self.clusters.T).clamp(1e-4, 1) ** self.alpha
        own = self.label == y.unsqueeze(1)
        weighed = likeness / self.temperature + self.share.log()
        contrast = weighed.logsumexp(1) - weighed.masked_fill(~own, -1e30).logsumexp(1)
        pull = (likeness * self.share).masked_fill(~own, -1).sort(1, descending=True).values
        rank = torch.arange(pull.shape[1], device=self.device)
        attraction = -pull.where(rank < self.pulls[y].unsqueeze(1), 0).sum(1)
        return task + ((self.lambda1 * contrast + self.lambda2 * attraction) * self.known[y]).mean()


FEDSC = {"collect": "eval-pass", "rpcl_weight": 1.0, "cpdr_weight": 1.0}
"""The loop looks at all data after training, as Algorithm 1 says, and its loss is the paper's."""


class FedSC(FedAvg):
    """Contrast with prototypes merged among like-minded clients, and a pull to their weighted mean."""

    neighbours, temperature = 2, 0.05
    passes = 2
    related: Tensor | None = None

    @torch.no_grad()
    def prepare(self, model: nn.Module, x: Tensor) -> None:
        if self.related is not None:
            self.scale = torch.cdist(self.embed(model, x), self.related).mean(0).clamp(min=1e-3)  # U, Eq. 13

    def describe(self, model: nn.Module, x: Tensor, y: Tensor) -> Sent:
        features = self.embed(model, x)
        means, _ = class_means(features, y, self.classes)
        return {"means": means, "counts": torch.stack([(y == c).sum() for c in range(self.classes)]).double()}

    def loss(self, model: nn.Module, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        task = super().loss(model, features, logits, y)
        if self.related is None:
            return task
        cosines = normalize(features, dim=-1) @ normalize(self.related, dim=-1).T
        scaled = cosines / (self.temperature * self.scale)
        own = scaled.masked_fill(self.label != y.unsqueeze(1), -1e30)
        contrast = (scaled.logsumexp(1) - own.logsumexp(1)) * self.known[y]
        pull = (features - self.consistent[y]).square().mean(1) * self.known[y]
        return task + (contrast + pull).mean()

    def aggregate(self, sent: Sequence[Sent]) -> None:
        super().aggregate(sent)
        means = torch.stack([one["means"] for one in sent])  # [N, C, D]
        counts = torch.stack([one["counts"] for one in sent])  # [N, C]
        samples = counts.sum(1)
        d = (0.5 * (counts / samples.unsqueeze(1) - 1 / self.classes).square().sum(1)).sqrt()
        e = torch.sigmoid(samples / samples.sum() - d / d.sum().clamp(min=1e-30)).float()  # Eqs. 10-11
        held = (counts > 0).tolist()
        vectors, labels, consistent = [], [], []
        for c in range(self.classes):
            holders = [k for k in range(len(sent)) if held[k][c]]
            if not holders:
                consistent.append(means.new_zeros(means.shape[2]))
                continue
            found = means[holders, c]
            phi = nn.functional.cosine_similarity(found, found.mean(0, keepdim=True), dim=1)
            gaps = (phi.unsqueeze(0) - phi.unsqueeze(1)).abs().fill_diagonal_(-1)  # itself first
            nearest = gaps.argsort(dim=1, stable=True)[:, : self.neighbours + 1]
            merged = found[nearest].mean(1)
            weight = e[holders] / e[holders].sum()
            consistent.append((weight.unsqueeze(1) * merged).sum(0))
            vectors.append(merged)
            labels += [c] * len(holders)
        self.related, self.label = torch.cat(vectors), torch.tensor(labels, device=self.device)
        self.consistent = torch.stack(consistent)
        self.known = (counts > 0).any(0)


METHODS: dict[str, type[Local]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedproto": FedProto,
    "sp-fedcl": SPFedCL,
    "mp-fedcl": MPFedCL,
    "fedplcc": FedPLCC,
    "fedsc": FedSC,
}


def class_means(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean of each class's rows, and which classes there are."""
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, y, features)
    counts = features.new_zeros(classes).index_add_(0, y, torch.ones_like(y, dtype=features.dtype))
    return sums / counts.clamp(min=1).unsqueeze(1), counts > 0


def kmeans(rows: Tensor, k: int, restarts: int = 5, iterations: int = 100, tolerance: float = 1e-4) -> Tensor:
    """The best of some runs of Lloyd's algorithm; all restarts at once."""
    if len(rows) <= k:
        return rows
    centres = rows[torch.rand(restarts, len(rows), device=rows.device).argsort(1)[:, :k]]  # [R, K, D]
    for _ in range(iterations):
        nearest = torch.cdist(rows, centres).argmin(2)  # [R, n]
        member = nn.functional.one_hot(nearest, k).to(rows.dtype).mT  # [R, K, n]
        counts = member.sum(2, keepdim=True)
        means = (member @ rows / counts.clamp(min=1)).where(counts > 0, centres)
        moved = torch.linalg.vector_norm(means - centres, dim=-1).amax()
        centres = means
        if moved <= tolerance:
            break
    best = centres[torch.cdist(rows, centres).amin(2).square().sum(1).argmin()]
    return best[torch.unique(torch.cdist(rows, best).argmin(1))]


def finch(rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The means and total weights of the clusters of FINCH's coarsest partition that has more than one."""
    if not len(rows):
        return rows, weights
    label = components(rows)
    while True:
        number = int(label.max()) + 1
        counts = rows.new_zeros(number).index_add_(0, label, torch.ones_like(weights))
        means = rows.new_zeros(number, rows.shape[1]).index_add_(0, label, rows) / counts.unsqueeze(1)
        joined = components(means)
        if not int(joined.max()):
            return means, weights.new_zeros(number).index_add_(0, label, weights)
        label = joined[label]


def components(rows: Tensor) -> Tensor:
    """The connected components of the edges from each row to the one most like it."""
    unit = normalize(rows.double(), dim=-1)
    nearest = (unit @ unit.T).fill_diagonal_(-torch.inf).argmax(1).tolist()
    parent = list(range(len(nearest)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j in enumerate(nearest):
        low, high = sorted((root(i), root(j)))
        parent[high] = low
    roots = [root(i) for i in range(len(nearest))]
    number = {found: index for index, found in enumerate(sorted(set(roots)))}
    return torch.tensor([number[found] for found in roots], device=rows.device)
