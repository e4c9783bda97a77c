"""What holds for all tests."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from protofed.evaluation.snapshot import Snapshot

# A shell that starts the tests in the background has them ignore Ctrl-C, and nohup a closed terminal; what they start
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest.register_assert_rewrite("tests.support")

THREADS = torch.get_num_threads()

LONG = (
    "test_deployment.py",
    "test_workers.py",
    "test_parity.py",
    "test_resume.py",
    "test_rounds.py",
    "test_distributed.py",
)
"""Files that take longest, the first with processes that wait: begun last, they would end alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


def pytest_runtest_setup() -> None:
    """A run sets the threads of its whole process; the tests after it would spin on cores that another worker uses."""
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


def places(seen: Snapshot) -> list[list[float]]:
    """Features and prototypes in the plane by their principal components: t-SNE takes a second."""
    every = torch.cat([seen.features, seen.prototypes]).double().nan_to_num()
    apart = every - every.mean(0)
    _, _, axes = torch.linalg.svd(apart / apart.abs().max().clamp(min=1e-30), full_matrices=False)
    found: list[list[float]] = torch.nn.functional.pad(apart @ axes.T, (0, 2))[:, :2].tolist()
    return found


@pytest.fixture(autouse=True, scope="session")
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What is remembered per machine is not in the home of whoever runs the tests; and nothing is fetched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        for name in ("http_proxy", "https_proxy"):
            patch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
        patch.setenv("no_proxy", "127.0.0.1")
        patch.setattr(os, "fsync", lambda _: None)  # no test loses power but those that record what is synced
        patch.setattr("protofed.report.html.looks.plane", places)
        patch.delenv("COLUMNS", raising=False)  # tables are as wide as in a pipe, also in a worker of xdist
        yield
