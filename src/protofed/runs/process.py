"""Settings that hold for the whole process: CPU threads, a GPU's arithmetic, and whether it repeats bit by bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from protofed.experiment import Experiment

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def process_settings(experiment: Experiment) -> Iterator[None]:
    """The process as an experiment asks for it; afterwards it is as it was before.

    Args:
        experiment: names threads (left alone if None), precision and whether runs are deterministic.
    """
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    threads, workspace = torch.get_num_threads(), os.environ.get(WORKSPACE)
    flags = cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled()
    _use_threads(experiment.threads or threads)
    cuda.allow_tf32 = cudnn.allow_tf32 = experiment.precision in ("tf32", "bf16")
    cudnn.deterministic = experiment.deterministic
    _use_deterministic(experiment.deterministic)
    if experiment.deterministic:
        cudnn.benchmark = False
        os.environ[WORKSPACE] = ":4096:8"  # read when CUDA starts
    try:
        yield
    finally:
        _use_threads(threads)
        cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = flags
        _use_deterministic(deterministic)
        if workspace is None:
            os.environ.pop(WORKSPACE, None)
        else:
            os.environ[WORKSPACE] = workspace


def _use_threads(number: int) -> None:
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


def _use_deterministic(wanted: bool) -> None:
    if torch.are_deterministic_algorithms_enabled() != wanted:  # saying it imports a compiler
        torch.use_deterministic_algorithms(wanted)
