"""Methods as Flower baselines: self-contained, of Flower's form, and with the results of the methods here."""

from __future__ import annotations

import ast
import gzip
import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from protofed.deploy.flower_baseline import baselines, write_baseline
from protofed.deploy.processes import SIMULATION, connect, environment, free_port, running, tool, until_listening
from protofed.methods.base import Clock
from protofed.prototypes import Prototypes, kmeans, nearest_class, pad_with_class_mean, slot_contrast
from tests.support.command_line import invoke, refused, succeed
from tests.support.loopback import Loopback, in_simulation
from tests.support.nets import Part, federation, play

PARTS: tuple[Part, ...] = ({0: 9, 1: 8}, {0: 3, 2: 7, 3: 9}, {1: 2, 4: 10})
ALLOWED = {"flwr", "torch", "numpy", "sklearn"}
every_baseline = pytest.mark.parametrize("method", baselines())


@contextmanager
def imported(place: Path, method: str) -> Iterator[ModuleType]:
    """The package of a baseline that was just written, and no trace of it afterwards."""
    write_baseline(place / method, method)
    package = method.replace("-", "_")
    sys.path.insert(0, str(place / method))
    try:
        for name in ("client_app", "server_app"):
            importlib.import_module(f"{package}.{name}")
        yield sys.modules[package]
    finally:
        sys.path.remove(str(place / method))
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]


def config_of(place: Path) -> dict[str, Any]:
    found = tomllib.loads((place / "pyproject.toml").read_text())
    config: dict[str, Any] = found["tool"]["flwr"]["app"]["config"]
    return config


@every_baseline
def test_it_is_of_flowers_form_and_needs_nothing_of_ours(method: str, tmp_path: Path) -> None:
    write_baseline(tmp_path / "made", method)
    package = tmp_path / "made" / method.replace("-", "_")
    project = tomllib.loads((tmp_path / "made/pyproject.toml").read_text())
    assert project["project"]["name"] == method  # Flower takes no underscore in it
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": f"{package.name}.server_app:app",
        "clientapp": f"{package.name}.client_app:app",
    }
    config = config_of(tmp_path / "made")
    assert set(tomllib.loads((tmp_path / "made/conf/mnist.toml").read_text())) <= set(config)
    readme = (tmp_path / "made/README.md").read_text()
    assert readme.startswith("---\ntitle: ")
    for title in ("About this baseline", "Experimental Setup", "Environment Setup", "Running the", "Expected Results"):
        assert f"## {title}" in readme
    needed = set()
    for path in package.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                needed.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Import):
                needed |= {each.name.partition(".")[0] for each in node.names}
    assert needed - ALLOWED - set(sys.stdlib_module_names) == {package.name}
    done = subprocess.run(
        [tool("ruff"), "check", "--no-cache", "."], cwd=tmp_path / "made", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_command_writes_one_and_refuses_the_rest(tmp_path: Path) -> None:
    assert "README.md" in succeed(tmp_path, "flower-baseline", "made", "--method", "fedproto").out
    assert "exists" in refused(invoke(tmp_path, "flower-baseline", "made", "--method", "fedproto"))
    assert "must be one of fedproto" in refused(invoke(tmp_path, "flower-baseline", "other", "--method", "fedavg"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("method", "own_config", "params", "score"),
    [
        ("fedproto", {}, {}, "own/own/nearest"),
        ("mp-fedcl", {"k": 1, "lr-decay": 0.9, "temperature": 0.5}, {"k": 1, "temperature": 0.5}, "own/all/nearest"),
    ],
)
def test_a_run_is_that_of_the_method(
    method: str, own_config: dict[str, Any], params: dict[str, Any], score: str, tmp_path: Path
) -> None:
    """In float64, with the same batches and first weights; without dropout, whose draws differ."""
    clients = federation(PARTS, test=30, classes=10)
    with imported(tmp_path, method) as package:
        net = package.model.Net

        class Same(net):  # type: ignore[misc,valid-type]
            def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
                assert classes == 10
                super().__init__(shape)
                for part in self.modules():
                    if isinstance(part, torch.nn.Dropout | torch.nn.Dropout2d):
                        part.p = 0.0

        decay = own_config.get("lr-decay", 1.0)
        settings: dict[str, Any] = {"model": Same, "participation": 1.0, "epochs": 1, "lr": 0.05, "momentum": 0.5}
        run = play(method, params, clients=clients, lr_decay=decay, weight_decay=0.0, rounds=3, **settings)
        first = play(method, params, clients=clients, lr_decay=decay, weight_decay=0.0, rounds=0, **settings)
        group = first.engine.groups[0]

        def build(shape: tuple[int, int, int], _: int) -> torch.nn.Module:
            made = Same(shape, 10).double()
            made.load_state_dict(group.own.initial)
            return cast(torch.nn.Module, made)

        def partition(number: int, among: int, _: Any) -> Any:
            assert among == len(PARTS)
            mine = clients.clients[number]
            tests = mine.own if score.startswith("own/own") else torch.arange(len(mine.pool))
            x, y = group.inputs(mine.train.x), mine.train.labels
            return package.dataset.Partition(x, y, group.inputs(mine.pool.x)[tests], mine.pool.labels[tests])

        turns = {who: iter(range(3)) for who in range(len(PARTS))}
        sizes = {len(client.train): who for who, client in enumerate(clients.clients)}

        def batches(samples: int, *_: Any) -> list[Tensor]:
            who = sizes[samples]
            plan = run.engine.schedule(group, [who], Clock(next(turns[who]), 3)).rows[0]
            return [step[step >= 0].cpu() for step in plan]

        package.utils.build = package.server_app.build = build
        package.client_app.load_partition, package.client_app.batches = partition, batches
        config = config_of(tmp_path / method) | own_config | {"learning-rate": 0.05, "num-clients": len(PARTS)}
        results = tmp_path / "results.json"
        config |= {"num-server-rounds": 3, "results": str(results)}
        grid = Loopback(in_simulation(len(PARTS)), app=package.client_app.app, run_config=config)
        context = grid.contexts[100]
        context.run_config = config
        package.server_app.main(grid, context)
        states = [grid.contexts[100 + who].state.array_records["net"] for who in range(len(PARTS))]
        kept = [state.to_torch_state_dict() for state in states]
        told = json.loads(results.read_text())["3"]
    for name, value in run.engine.groups[0].own.take(range(len(PARTS))).items():
        assert_close(value, torch.stack([state[name] for state in kept]), atol=1e-10, rtol=0, msg=name)
    per_client = run.history[-1].per_client[score]
    weights = [len(c.own) if score.startswith("own/own") else len(c.pool) for c in clients.clients]
    assert 100 * told["accuracy-nearest"] == pytest.approx(np.average(np.array(per_client), weights=weights), abs=1e-9)


def test_the_pool_of_many_prototypes_is_used_as_the_method_does(tmp_path: Path) -> None:
    """Slots that are empty, classes that nobody has, and K-means on clusters that nobody can mistake."""
    rng = torch.Generator().manual_seed(3)
    counts = torch.randint(0, 3, (4, 10, 3), generator=rng).double()
    counts[:, 7] = 0
    vectors = torch.randn(4, 10, 3, 6, generator=rng, dtype=torch.float64) * (counts > 0).unsqueeze(-1)
    features = torch.randn(20, 6, generator=rng, dtype=torch.float64)
    labels = torch.arange(20) % 10
    pool = Prototypes(vectors, counts)
    points = torch.cat([torch.randn(9, 6, generator=rng) * 0.01 + 5 * place for place in range(3)]).double()
    with imported(tmp_path, "mp-fedcl") as package:
        theirs = package.prototypes.Prototypes(vectors, counts)
        loss = package.prototypes.loss_of(features, labels, theirs, {"temperature": 0.3})
        chosen = package.prototypes.nearest(features, theirs)
        found, sizes = package.prototypes.clustered(points, 3, torch.Generator())
    assert_close(loss, slot_contrast(features, labels, pad_with_class_mean(pool), 0.3).mean())
    assert_close(chosen, nearest_class(features, pool.pooled()))
    expected = kmeans(points.unsqueeze(0), torch.zeros(1, 27, dtype=torch.long), 1, 3, torch.tensor([1]))
    assert_close(found.sort(0).values, expected.vectors[0, 0].sort(0).values)
    assert sizes.tolist() == [9, 9, 9]


@every_baseline
def test_every_client_has_images_and_the_same_ones_again(method: str, tmp_path: Path) -> None:
    with imported(tmp_path, method) as package:
        config = config_of(tmp_path / method)
        number = config["num-clients"]
        parts = [package.dataset.load_partition(k, number, config) for k in range(number)]
        again = package.dataset.load_partition(1, number, config)
        for part in parts:
            assert len(part.y) == len(part.x) >= 10
            assert len(part.test_y) == len(part.test_x) >= 10
            assert set(part.y.tolist()) <= set(part.test_y.tolist())
        assert torch.equal(parts[1].x, again.x)
        with pytest.raises(ValueError, match="must be one of digits, mnist"):
            package.dataset.load_partition(0, number, config | {"dataset": "minst"})
        with pytest.raises(FileNotFoundError, match="see data-dir"):
            package.dataset.load_partition(0, number, config | {"dataset": "mnist", "data-dir": str(tmp_path)})


@every_baseline
def test_mnist_is_read_from_its_files(method: str, tmp_path: Path) -> None:
    images, labels = np.arange(300 * 28 * 28).reshape(300, 28, 28) % 251, np.arange(300) % 10
    for part, packed in (("train", True), ("t10k", False)):
        for kind, values in (("images.idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
            data = head + values.astype(np.uint8).tobytes()
            path = tmp_path / f"{part}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)
    with imported(tmp_path, method) as package:
        config = config_of(tmp_path / method) | {"dataset": "mnist", "data-dir": str(tmp_path)}
        whole = package.dataset.load("mnist", str(tmp_path))
        part = package.dataset.load_partition(0, 3, config)
    assert (whole.x.shape, whole.test_x.shape) == ((300, 1, 28, 28), (300, 1, 28, 28))
    assert whole.y.tolist() == labels.tolist()
    raw = torch.from_numpy((images / 255 - (images / 255).mean()) / (images / 255).std()).float()
    assert_close(whole.x[:, 0], raw)
    assert len(part.y) >= 10


@pytest.mark.network
@every_baseline
def test_flower_runs_it(method: str, tmp_path: Path) -> None:
    """By Flower's own command, on Ray; the SuperLink that it starts is ours to end."""
    succeed(tmp_path, "flower-baseline", method, "--method", method)
    results = tmp_path / "results.json"
    home, port, log = tmp_path / "home", free_port(), tmp_path / "superlink.log"
    connect(home, f"127.0.0.1:{port}", None)
    link = [tool("flower-superlink"), "--simulation", "--insecure", "--disable-runtime-dependency-installation"]
    flags = ["--federation-config", "num-supernodes=5 client-resources-num-cpus=1"]
    flags += ["--run-config", f"num-clients=5 num-server-rounds=3 results='{results}'"]
    with running([*link, "--host", "127.0.0.1", "--port", str(port)], home, log, {SIMULATION: "1"}) as process:
        until_listening(process, "127.0.0.1", port, log)
        done = subprocess.run(
            [tool("flwr"), "run", method, "--stream", *flags],
            cwd=tmp_path,
            env=environment(home),
            capture_output=True,
            text=True,
            check=False,
        )
    assert results.exists(), done.stdout + done.stderr
    assert "accuracy-nearest" in results.read_text()
