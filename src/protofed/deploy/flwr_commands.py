"""Flower's commands, one after the other in one process: a line in is a number and words, a line out what they said.

Run as a file, so that it imports Flower's commands, which takes a second, and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

from flwr.cli.app import app


def play(words: list[str]) -> dict[str, object]:
    """One command; Flower's write to the process's own output, so that is what is read."""
    code: object = 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            app(words)
        except SystemExit as end:
            code = end.code
        except Exception as error:  # it says so, and the next one is played
            code = 1
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        said = []
        for file, stream in ((out, sys.stdout), (err, sys.stderr)):
            stream.flush()
            file.seek(0)
            said.append(file.read())
    return {"code": code, "out": said[0], "err": said[1]}


def main() -> None:
    """Until there are no more."""
    with os.fdopen(os.dup(1), "w") as answers:
        for line in sys.stdin:
            number, words = json.loads(line)
            print(json.dumps([number, play(words)]), file=answers, flush=True)


if __name__ == "__main__":
    main()
