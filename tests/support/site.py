"""The site of the documentation, built and served."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.pages import ROOT
from tools.identity import identity

SMALL = '<!doctype html><html lang="en"><title>A page</title><main><h1>A page</h1></main></html>'


def built(folder: Path, report: Path | None = None) -> Path:
    """The site as `make site` builds it, with a small page for the playground and, unless given, for the report."""
    if find_spec("material") is None:
        pytest.skip("needs the extra docs")
    small = folder / "small.html"
    small.write_text(SMALL, encoding="utf-8")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "built")]
    pages = {"LIVE_REPORT": str(report or small), "LIVE_PLAYGROUND": str(small)}
    environment = {**os.environ, **pages, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "built"


class Handler(SimpleHTTPRequestHandler):
    """Files of a folder, below the path that the site has where it is published."""

    prefix = urlsplit(identity()["site"]).path

    def translate_path(self, path: str) -> str:
        """A file, or none where an address is outside of the site."""
        return super().translate_path(path.removeprefix(self.prefix) if path.startswith(self.prefix) else "/none")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a site on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}{Handler.prefix}"
        server.shutdown()
