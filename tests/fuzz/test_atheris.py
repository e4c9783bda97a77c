"""The quick readers under atheris, each group in a process of its own that may not grow, hang or fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.limits import LONGEST
from tests.fuzz.readers import GROUPS

pytestmark = pytest.mark.fuzz

SECONDS = max(1, round(float(os.environ.get("FUZZ_SECONDS", "120")) / 2 / len(GROUPS)))
"""For each."""
MEGABYTES = 2048
"""Of memory, torch's share included."""


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_that_atheris_finds_is_more_than_refused(group: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    limits = [f"-max_total_time={SECONDS}", f"-timeout={LONGEST}", f"-rss_limit_mb={MEGABYTES}", "-max_len=65536"]
    command = [sys.executable, "-m", "fuzz.harness", group, str(corpus), *limits, f"-artifact_prefix={tmp_path}/"]
    here = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, env=os.environ | here, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]  # the traceback, and where the input is
    assert "Done " in done.stderr  # libFuzzer's last line, with the number of inputs
    print(done.stderr.splitlines()[-1])
