"""The process of a client that trains: it keeps data, models and torch from one message to the next.

Run by node.py, which sends messages to its input and reads answers from its output. What is installed here answers
them; an app that a server may have sent along is not looked at.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any

from protofed.data.sources import cache
from protofed.deploy.client import LOG, Failed, WarmClient, check_data
from protofed.deploy.events import EVENTS, Events
from protofed.deploy.log_lines import Stamped, formatter
from protofed.deploy.owner import PLACES, Owner, keys
from protofed.deploy.signatories import signatory_of
from protofed.deploy.wire import FAILED, Packet, read_frame, write_frame
from protofed.errors import UserError


class OwnersWord:
    """client.yaml, read again when its owner has changed it: what it says holds from the next message on."""

    def __init__(self, path: Path, data: str | None) -> None:
        self.path, self.data = path, data
        self.changed = 0

    def read(self) -> Owner | None:
        """What it says, if that is new."""
        changed = self.path.stat().st_mtime_ns
        if changed == self.changed:
            return None
        owner = Owner.read(self.path).with_data(self.data)
        self.changed = changed
        return owner

    def limits(self) -> dict[str, Any]:
        """A digest of the file, and what its owner allows; not where the data is."""
        owner = Owner.read(self.path)
        names = [item.name for item in keys() if item.name not in PLACES]
        says = {name: value for name in names if (value := getattr(owner, name)) is not None}
        return {"digest": hashlib.sha256(self.path.read_bytes()).hexdigest(), "limits": says}


def serve(word: OwnersWord, questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer messages until there are no more."""
    try:
        owner = word.read()
        assert owner is not None  # it was not read before
        signatory_of(owner)
        check_data(owner)  # or this client would be online, and fail in every run
    except UserError as error:
        write_frame(answers, {"error": str(error), "hint": error.hint})
        return
    events = Events(word.path.parent / EVENTS)
    events.write(kind="limits", client=owner.id, **word.limits())
    client = WarmClient(owner, events)
    client.forget()
    write_frame(answers, {"ready": True})
    while True:
        try:
            head, data = read_frame(questions)
        except EOFError:
            events.close()
            return
        found: Packet | Failed
        try:
            if (owner := word.read()) is not None:  # what was loaded by the old one's word is let go
                events.write(kind="limits", client=owner.id, **word.limits())
                client = WarmClient(owner, events)
        except (UserError, OSError) as error:
            LOG.error("client.yaml: %s", error)
            found = Failed(FAILED, type(error).__name__)
        else:
            found = client.answer(head["kind"], Packet(head["text"], data, bytes.fromhex(head["digest"])))
        if isinstance(found, Failed):
            write_frame(answers, {"code": found.code, "reason": found.reason})
        else:
            write_frame(answers, {"text": found.text, "digest": found.digest.hex()}, found.data)


def main() -> None:
    """Be the worker of the client whose client.yaml is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", type=Path)
    parser.add_argument("--data")
    parser.add_argument("--name", default="client", help="what this client is called in its logs")
    told = parser.parse_args()
    answers = os.fdopen(os.dup(1), "wb")  # what anything prints goes to the log
    os.dup2(2, 1)
    cache.keep = False
    errors = RotatingFileHandler(told.client.parent / "errors.log", maxBytes=1_000_000, backupCount=1)
    errors.setFormatter(formatter(told.name))
    sys.stdout = sys.stderr = Stamped(sys.stderr, told.name)
    LOG.addHandler(errors)  # a server can have a client fail as often as it likes
    with answers:
        serve(OwnersWord(told.client, told.data), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
