"""The viewer: every run and study below a folder on a page for this machine, which asks for news while runs go on.

What the page asks for names runs by ids of the list, never by a path; and all of it lies below a word that only whoever
started the viewer is told, so that other users of the machine do not read it.
"""

from __future__ import annotations

import json
import secrets
import threading
from pathlib import Path
from typing import Any

from protofed.errors import UserError
from protofed.internal.loopback import LoopbackServer, Page, Query, loopback_server
from protofed.report.index import Index, listed, name_below
from protofed.report.page.build import page
from protofed.runs.folder import run_folders

MOST = 100
"""Runs that are compared at a time."""


class Viewer:
    """What the page asks for: the list one question at a time, and beside it what takes long, one at a time too.

    Args:
        folder: with runs in it or below it, or where they will be.
        everything: whether all runs are compared from the beginning, as when a study is watched.

    Raises:
        UserError: there is no such folder.
    """

    def __init__(self, folder: Path, everything: bool = False) -> None:
        self.index, self.everything = Index(folder), everything
        self._listing, self._reading = threading.Lock(), threading.Lock()

    def page(self, query: Query) -> str:  # noqa: ARG002 - it is the same whatever is asked
        """The page, still without runs."""
        title = str(self.index.folder.resolve()).encode(errors="replace").decode()  # names of files may be any bytes
        return page({"live": True, "title": title, "all": self.everything, "most": MOST, "colours": []}, live=True)

    def runs(self, query: Query) -> str:  # noqa: ARG002
        """The list of runs."""
        with self._listing:
            return json.dumps(listed(self.index.rows()), allow_nan=False)

    def studies(self, query: Query) -> str:  # noqa: ARG002
        """What studies have still to do, and what runs them again."""
        with self._listing:
            found = [study for folder in self.index.folders if (study := self._study(folder)) is not None]
            return json.dumps({"studies": found})

    def numbers(self, query: Query) -> str:
        """The numbers of some runs that are compared."""
        from protofed.report.html.content import numbers  # and torch, which the list does without

        with self._reading:
            return json.dumps(numbers(self._asked(query)), allow_nan=False)

    def details(self, query: Query) -> str:
        """What takes longer to find of them."""
        from protofed.report.html.content import details

        with self._reading:
            return json.dumps(details(self._asked(query)), allow_nan=False)

    def _asked(self, query: Query) -> dict[Path, str]:
        """The names of runs by their folders; whatever is no id of the list is not there."""
        ids = [one for text in query.get("runs", ()) for one in text.split(",")][:MOST]
        paths = [self.index.paths[one] for one in ids if one in self.index.paths]
        return {path: name_below(path, self.index.folder) for path in paths}

    def _study(self, folder: Path) -> dict[str, Any] | None:
        from protofed.studies.kinds import kind_of

        kind = kind_of(folder)
        if kind is None:
            return None
        name = str(folder.relative_to(self.index.folder))
        try:
            study = kind.open(folder)
            waiting = max(0, (study.size() or 0) - len(run_folders(folder, trials=True)))
        except (UserError, OSError, ValueError) as error:
            return {"name": name, "kind": kind.command, "waiting": 0, "again": "", "reason": str(error)}
        return {"name": name, "kind": kind.command, "waiting": waiting, "again": study.again(folder), "reason": ""}


def server(folder: Path, port: int, everything: bool = False) -> LoopbackServer:
    """A server of the viewer, which is about to answer; its `address` holds the word that a reader needs.

    Args:
        folder: what is viewed.
        port: where it listens; 0 is any free one.
        everything: whether all runs are compared from the beginning.

    Raises:
        UserError: there is no such folder, or nothing can listen there.
    """
    viewer, word = Viewer(folder, everything), secrets.token_urlsafe(16)
    answers = {
        name: Page(getattr(viewer, name), "application/json") for name in ("runs", "studies", "numbers", "details")
    }
    found = {f"/{word}/{name}.json": answer for name, answer in answers.items()}
    return loopback_server(port, {f"/{word}/": Page(viewer.page), **found})
