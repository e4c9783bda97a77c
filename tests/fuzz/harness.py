"""Some readers under atheris, which looks for inputs that reach new code:  python -m fuzz.harness GROUP FOLDER -options

FOLDER holds the corpus; libFuzzer's options follow. Whatever is not a clean error ends the process with a traceback.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["protofed", "yaml", "zipfile", "tarfile", "json"]):
    from tests.fuzz.readers import GROUPS, READERS, Place


def main() -> None:
    """Read what atheris makes of valid files, again and again; the first byte says which of the files it is."""
    group, corpus, *options = sys.argv[1:]
    places = [Place(READERS[name]) for name in GROUPS[group]]
    files = [(place, file) for place in places for file in place.reader.files]
    for number, (place, file) in enumerate(files):
        (Path(corpus) / f"valid-{number}").write_bytes(bytes([number]) + place.content(file))
    warnings.simplefilter("ignore")
    logging.disable()

    def read(data: bytes) -> None:
        place, file = files[data[0] % len(files) if data else 0]
        place.read(file, data[1:])

    atheris.Setup([sys.argv[0], corpus, *options], read)
    atheris.Fuzz()  # ends the process


if __name__ == "__main__":
    main()
