"""The command line. Flags come from the fields of Experiment; heavy imports happen inside the commands."""

from __future__ import annotations

import os
import sys

from protofed.cli import runs, watch, report, theory, sweep, reproduce, lists, data, encoder, serving, deploy, members  # isort: skip  (the order of the commands in --help)
from protofed.cli import operations  # isort: skip  (after deploy, to which its commands belong)
from protofed.cli.common import app, speaks
from protofed.cli.usage import is_usage_error, usage_error
from protofed.errors import HintedError, LostError, UserError

__all__ = [
    "app",
    "data",
    "deploy",
    "encoder",
    "lists",
    "main",
    "members",
    "operations",
    "report",
    "reproduce",
    "runs",
    "serving",
    "sweep",
    "theory",
    "watch",
]


def main() -> None:
    """Run the command line; wrong input is a line on stderr, maybe with a hint below, and exit code 2."""
    # Before torch is loaded. Threads that spin while they wait for each other take the core that the other one needs,
    # as soon as anything else runs on the machine: rounds of small networks took twenty times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="protofed", standalone_mode=False)
    except HintedError as error:
        if speaks() or isinstance(error, LostError):
            _tell(error)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except BrokenPipeError:  # who reads has seen enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.strerror is None:
            raise
        print(f"error: {error.filename or 'the system'}: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        if not is_usage_error(error):
            raise
        _tell(usage_error(error))
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _tell(error: HintedError) -> None:
    for word, text in (("error", str(error)), ("hint", error.hint)):
        if text:
            print(f"{word}: {' '.join(text.split())}", file=sys.stderr)
