"""python -m benchmarks.large_table: seconds and memory that reading a table of a million rows takes.

The table has 50 columns of numbers and a label. It is read in a process of its own, which holds nothing else, with what
a small table takes taken off its peak; then again, from the cache. The page is docs/tables.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.marked import RESULTS, write_part
from protofed.internal.atomic_files import write_text

ROWS, COLUMNS, DISTINCT = 1_000_000, 50, 10_000
BEGIN, END = "<!-- begin: written by python -m benchmarks.large_table -->", "<!-- end: large_table -->"
READS = """
import json, os, resource, sys, time
from protofed.data import load
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
load("csv:" + sys.argv[1])
before, wall, cpu = peak(), time.monotonic(), time.process_time()
found = load("csv:" + sys.argv[2])
wall, cpu, bytes = time.monotonic() - wall, time.process_time() - cpu, peak() - before
again = time.monotonic()
load("csv:" + sys.argv[2])
again = time.monotonic() - again
samples = sum(part.x.nbytes for part in (found.train, found.test))
print(json.dumps({"wall": wall, "cpu": cpu, "again": again, "bytes": bytes, "samples": samples}))
"""


def write_table(path: Path, rows: int) -> None:
    """A table of so many rows, of which the first 10,000 are drawn and come again."""
    base = [",".join(f"{value:.6f}" for value in row) for row in np.random.default_rng(0).normal(size=(DISTINCT, 50))]
    with path.open("w") as file:
        file.write(",".join(f"c{column}" for column in range(COLUMNS)) + ",label\n")
        for start in range(0, rows, DISTINCT):
            part = base[: min(DISTINCT, rows - start)]
            file.writelines(f"{values},{(start + place) % 4}\n" for place, values in enumerate(part))


def measured(folder: Path, rows: int = ROWS) -> dict[str, Any]:
    """What reading takes: seconds, the CPU's seconds, bytes at the peak, and the sizes of file and samples.

    Args:
        folder: where the tables are written, and cached.
        rows: of the table.
    """
    small, large = folder / "small.csv", folder / "large.csv"
    write_table(small, 100)
    write_table(large, rows)
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    words = [sys.executable, "-c", READS, str(small), str(large)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return {"rows": rows, "file": large.stat().st_size, **json.loads(done.stdout)}


def page(found: Mapping[str, Any]) -> str:
    """What was found, in words."""
    file, samples, peak = (found[name] / 1e6 for name in ("file", "samples", "bytes"))
    return (
        f"{found['rows']:,} rows of {COLUMNS} numbers (a file of {file:,.0f} MB, {samples:,.0f} MB as samples) took\n"
        f"{found['wall']:.0f} s ({found['cpu']:.0f} s of one core) and {peak:,.0f} MB of memory at most, "
        f"{found['bytes'] / found['file']:.1f} times the file;\n"
        f"the second time they come from the cache, in {found['again']:.1f} s. "
        f"The machine had two cores {found['load']}."
    )


def main() -> None:
    """Measure, keep the numbers and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", default="and nothing else to do", help="what else the machine did, for the page")
    parser.add_argument("--page", type=Path, help="Markdown page whose marked part is written anew")
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        found = {**measured(Path(folder)), "load": asked.load}
    write_text(RESULTS / "large-table.json", json.dumps(found, indent=1) + "\n")
    print(page(found))
    if asked.page:
        write_part(asked.page, page(found), BEGIN, END)


if __name__ == "__main__":
    main()
