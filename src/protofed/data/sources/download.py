"""Fetching the published files of a dataset: checked, resumed where a transfer broke off, and never a hang."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from protofed.data.sources.files import File, Form, Source, downloads, find, folders, missing

TIMEOUT = (10.0, 30.0)  # seconds to connect, and between two pieces
PIECE = 2**16


def fetch(dataset: str, source: Source, data_dir: Path | None) -> tuple[Form, list[Path]]:
    """The first form that has links, its missing files fetched into the dataset's folder."""
    forms = [form for form in source.forms if form.files and all(file.url for file in form.files)]
    if not forms:
        raise missing(dataset, source, data_dir)
    if data_dir is not None and not data_dir.is_dir():
        raise missing(dataset, source, data_dir, "there is no such folder")
    places = folders(dataset, data_dir, source.folder)
    home = (data_dir or downloads()) / dataset
    try:
        return forms[0], [*(_one(file, places, home) for file in forms[0].files)]
    except _FailedError as error:
        with contextlib.suppress(OSError):
            home.rmdir()  # if it is empty
        raise missing(dataset, source, data_dir, str(error)) from None


class _FailedError(Exception):
    """Why a file was not fetched."""


def _one(file: File, places: Sequence[Path], home: Path) -> Path:
    """Where a file is, now if not before."""
    found = find([file.name], places)
    if found:
        return found[0]
    try:
        import pooch
        import requests
    except ImportError:
        raise _FailedError("fetching it needs `pip install 'protofed[download]'`") from None
    name = Path(file.name).name
    pooch.get_logger().setLevel("WARNING")
    try:
        return Path(pooch.retrieve(file.url, file.checksum, name, home, downloader=_Resuming(home / f"{name}.part")))
    except (requests.RequestException, OSError, ValueError) as error:  # pooch raises ValueError on a wrong checksum
        raise _FailedError(_why(error, file.url)) from None


def _why(error: Exception, url: str) -> str:
    """Why a file could not be fetched, in a few words; what requests says of it fills a page."""
    import requests

    host = urlsplit(url).hostname
    if "timed out" in str(error).lower():  # also where requests calls it a connection error
        return f"{host} timed out"
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{host} answers {error.response.status_code}"
    if isinstance(error, requests.ConnectionError):
        return f"there is no connection to {host}"
    if isinstance(error, requests.RequestException):
        return f"the transfer from {host} broke off"
    if isinstance(error, ValueError):
        return "the hash of what came is not the published one"
    return (isinstance(error, OSError) and error.strerror) or str(error)


class _Resuming:
    """Downloads for pooch, into a .part file that a later call goes on with."""

    def __init__(self, part: Path) -> None:
        self.part = part

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        import requests

        begun = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begun}-"} if begun else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                pass  # it was whole already: the checksum will tell
            else:
                answer.raise_for_status()
                resumed = answer.status_code == requests.codes.partial_content
                self._write(answer, begun if resumed else 0)
        self.part.replace(output_file)

    def _write(self, answer: Any, begun: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        length = int(answer.headers.get("Content-Length") or 0)
        total = begun + length if length else None
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with self.part.open("ab" if begun else "wb") as file, Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(self.part.name.removesuffix(".part"), total=total, completed=begun)
            for piece in answer.iter_content(PIECE):
                file.write(piece)
                bar.advance(task, len(piece))
        if total is not None and self.part.stat().st_size != total:
            raise OSError(f"the transfer broke off after {self.part.stat().st_size} of {total} bytes")
