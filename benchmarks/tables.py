"""python -m benchmarks.tables: run the papers' tables that docs/results shows, and keep what came out beside it.

Each is a call of `protofed reproduce` into a folder of its own, which goes on where it stopped.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

HEAD = "--variant fedpcl-head --eval-every 10"
REDUCED = "--variant reduced --precision bf16 --eval-every 15"
BF16 = "--precision bf16 --eval-every 10"
FULL = f"--only 'cifar10,NID1 a=0.2' {BF16} --seeds 1"
PRIVATE = "--methods FedAvg,MOON,FedProx,FedProto,FPL,FedPLVM,FedPLCC"
PUBLIC = "--methods FCCL+ --variant public-cifar10"
"""FedPLCC's tables in two parts: CIFAR-100, the public images of FCCL+, was not at hand, and only that part differs."""
TABLES = {
    "mp-fedcl-table2-mnist": "mp-fedcl/table2 --only mnist",
    "mp-fedcl-table2": "mp-fedcl/table2 --only digit-5,office-10",
    "mp-fedcl-table6-mnist": "mp-fedcl/table6 --only mnist --eval-every 10",
    "mp-fedcl-fig5-mnist": "mp-fedcl/fig5 --only mnist --eval-every 10",
    "mp-fedcl-fig9-mnist": "mp-fedcl/fig9 --only mnist --eval-every 10",
    "mp-fedcl-fig5": "mp-fedcl/fig5 --only digit-5,office-10 --eval-every 10",
    "mp-fedcl-fig8": "mp-fedcl/fig8 --eval-every 10",
    "mp-fedcl-fig9": "mp-fedcl/fig9 --only digit-5 --eval-every 10",
    "mp-fedcl-table5": "mp-fedcl/table5 --eval-every 10",
    "mp-fedcl-table5-high-rate": "mp-fedcl/table5 --variant high-rate --eval-every 10",
    "mp-fedcl-table5-fedpcl-head": f"mp-fedcl/table5 {HEAD}",
    "mp-fedcl-table6": "mp-fedcl/table6 --only digit-5,office-10 --eval-every 10",
    "mp-fedcl-table6-high-rate": "mp-fedcl/table6 --only digit-5,office-10 --variant high-rate --eval-every 10",
    "mp-fedcl-table6-fedpcl-head": f"mp-fedcl/table6 --only mnist,digit-5,office-10 {HEAD}",
    "mp-fedcl-table7": "mp-fedcl/table7 --eval-every 10",
    "mp-fedcl-table7-high-rate": "mp-fedcl/table7 --variant high-rate --eval-every 10",
    "mp-fedcl-table7-fedpcl-head": f"mp-fedcl/table7 {HEAD}",
    "mp-fedcl-table8": "mp-fedcl/table8 --variant short-time --eval-every 1000",
    "fedsc-table1": f"fedsc/table1 --only 'cifar10,NID1 a=0.2,NID2' {REDUCED}",
    "fedsc-table2": f"fedsc/table2 --only CIFAR10-LT,rho=50 {REDUCED}",
    "fedsc-table4": f"fedsc/table4 --only 'cifar10,NID1 a=0.2,NID2' --methods 'RPCL only,CPDR only' {REDUCED}",
    "fedsc-table4-lt": f"fedsc/table4 --only CIFAR10-LT,rho=50 --methods 'RPCL only,CPDR only' {REDUCED}",
    "fedsc-full-fedsc": f"fedsc/table1 --methods FedSC {FULL}",
    "fedsc-full-fedavg": f"fedsc/table1 --methods FedAvg {FULL}",
    "fedplcc-table2": f"fedplcc/table2 {PRIVATE} {BF16}",
    "fedplcc-table2-fccl": f"fedplcc/table2 {PUBLIC} {BF16}",
    "fedplcc-table2-no-flip": f"fedplcc/table2 {PRIVATE} --variant no-flip {BF16}",
    "fedplcc-table2-no-flip-fccl": f"fedplcc/table2 --methods FCCL+ --variant no-flip {BF16}",
    "fedplcc-table3": f"fedplcc/table3 {PRIVATE} {BF16}",
    "fedplcc-table3-fccl": f"fedplcc/table3 {PUBLIC} {BF16}",
    "fedplcc-table3-all-images": f"fedplcc/table3 --methods FedAvg,FedPLCC --variant all-images {BF16}",
    "fedplcc-table5": f"fedplcc/table5 {BF16}",
    "fedplcc-table5-equal": f"fedplcc/table5 --only L_contra=w=1 --variant equal-weights {BF16}",
    "fedproto-table1-mnist": "fedproto/table1 --only mnist --eval-every 1000",
    "fedproto-table2": "fedproto/table2 --eval-every 1000",
    "fedproto-table1-femnist-n3": "fedproto/table1 --only femnist,n=3 --eval-every 1000",
    "fedproto-table1-femnist-n4": "fedproto/table1 --only femnist,n=4 --eval-every 1000",
    "fedproto-table1-femnist-n5": "fedproto/table1 --only femnist,n=5 --eval-every 1000",
    "fedproto-table1-femnist-small": "fedproto/table1 --only femnist --variant small-images --eval-every 1000",
    "fedproto-fig3": "fedproto/fig3 --eval-every 1000",
    "fedproto-fig4": "fedproto/fig4 --eval-every 1000",
    "fedproto-fig4-small": "fedproto/fig4 --variant small-images --eval-every 1000",
}
"""What each file in docs/results is made by."""

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the tables and stop")
    parser.add_argument("--only", action="append", metavar="NAME", help="a table, or a pattern such as 'fedsc-*'")
    parser.add_argument("--data-dir", type=Path, required="--list" not in sys.argv, help="folder with the datasets")
    parser.add_argument("--encoder", type=Path, help="frozen encoder for MP-FedCL's tables on photographs and Digit-5")
    parser.add_argument("--out", type=Path, default=Path("runs/tables"), help="folder of the runs; they are continued")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="stop after so many seconds")
    parser.add_argument("more", nargs="*", metavar="-- FLAG", help="flags of protofed reproduce, such as --engine")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for; 1 if something did not end."""
    asked = arguments().parse_args(words)
    names = [name for name in TABLES if any(fnmatch(name, pattern) for pattern in asked.only or ["*"])]
    if asked.list:
        print("\n".join(f"{name}: protofed reproduce {TABLES[name]}" for name in names))
        return 0
    end = time.monotonic() + (asked.budget or float("inf"))
    failed = 0
    for name in names:
        folder = asked.out / name
        command = [sys.executable, "-m", "protofed", "reproduce", *shlex.split(TABLES[name]), "--quiet"]
        command += ["--data-dir", str(asked.data_dir), "--jobs", str(asked.jobs), "--checkpoint-every", "10"]
        command += ["--out", str(folder), *(["--encoder", str(asked.encoder)] if asked.encoder else []), *asked.more]
        began = time.monotonic()
        code = _play(command, end - began)
        print(f"{name}: exit {code} after {time.monotonic() - began:.0f} s", flush=True)
        if code == 0:
            shutil.copyfile(folder / "table.json", RESULTS / f"{name}.json")
        else:
            failed = 1
    return failed


def _play(command: Sequence[str], seconds: float) -> int:
    """Until it ends, or, asked to stop in time, has written where it stopped."""
    if seconds <= 0:
        return -signal.SIGINT
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            return process.wait(None if seconds == float("inf") else seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            return process.wait()


if __name__ == "__main__":
    sys.exit(main())
