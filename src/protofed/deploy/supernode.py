"""Flower's SuperNode, which here ends when its connection is given up; Flower's own stays, unconnected.

Run as a file, so that a process which only carries messages does not import torch.
"""

from __future__ import annotations

import os
import sys
import traceback

from flwr.supernode.cli import flower_supernode


def main() -> None:
    """As `flower-supernode`."""
    code: object = 1
    try:
        flower_supernode()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
