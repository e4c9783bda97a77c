"""What runs a network in a browser: onnxruntime-web, from its npm package, checked before it is used."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from protofed.data.sources.archives import LARGEST, unpacked
from protofed.data.sources.files import downloads, find, folders
from protofed.errors import UserError, missing_value
from protofed.internal.inflating import read_upto

NAME, VERSION = "onnxruntime-web", "1.30.0"
ARCHIVE = f"{NAME}-{VERSION}.tgz"
SCRIPT, WASM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
INTEGRITY = {
    ARCHIVE: "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
    SCRIPT: "sha512-1KcF8CWAZeqtTcvLgKPtOMXIbkWeh++LDCQpDhQ5ARVxHAL1VNL5rr0OI+MxTbmNIANldE/A/q+O4gSKgSMjWQ==",
    WASM: "sha512-Gt7e1iIDIZ/PXEhM/OVleqWHVom0kEI/hs8cod0crXcV9jDGM39B23HuQnlOOgDOC3x4k5pxIgtdgzaL9up3MA==",
}
"""Of the archive as the registry has it, and of what is used of it."""
BROUGHT = f"`npm pack {NAME}@{VERSION}` brings it"
AT_MOST = 600.0
"""Seconds that npm may take."""
EXPORTS = re.compile(r"export\{([^{}]*)\};?\s*(?://# sourceMappingURL=\S*\s*)?\Z")
"""The end of the module, which names what it gives to others."""
USED = ("InferenceSession", "Tensor", "env")


class Runtime(NamedTuple):
    """What a page needs of the package."""

    script: str  # sets the global `ort`
    wasm: bytes


def read_runtime(path: Path | None = None) -> Runtime:
    """Read the package.

    Args:
        path: its .tgz, its folder, or one where npm has installed it; unless given it is fetched, once.

    Raises:
        UserError: it is not there, cannot be fetched, or is not the one that is expected.
    """
    place = path or _fetched()
    if place.is_dir():
        inside = (".", "dist", "package/dist", f"node_modules/{NAME}/dist")
        paths = find([SCRIPT, WASM], [place / one for one in inside])
        if len(paths) < 2:
            raise UserError("--runtime", str(place), f"it does not hold {SCRIPT} and {WASM}", hint=BROUGHT)
        found = {one.name: _checked(one, one.name) for one in paths}
    elif place.is_file():
        _checked(place, ARCHIVE)
        found = unpacked(place, (SCRIPT, WASM), LARGEST)
    else:
        raise UserError("--runtime", str(place), "there is no such file or folder", hint=BROUGHT)
    return Runtime(as_script(found[SCRIPT].decode("utf-8")), found[WASM])


def as_script(module: str) -> str:
    """A module that sets a global instead of exporting: what stands inside a page is imported by nobody."""
    found = EXPORTS.search(module)
    pairs = [pair.partition(" as ") for pair in found[1].split(",")] if found else []
    names = {shown: name for name, _, shown in pairs}
    if found is None or not {*USED} <= names.keys():
        raise UserError("--runtime", SCRIPT, f"it does not export {', '.join(USED)}", hint=BROUGHT)
    return f"{module[: found.start()]}globalThis.ort={{{','.join(f'{name}:{names[name]}' for name in USED)}}};\n"


def _checked(path: Path, name: str) -> bytes:
    """The content of a file, if it is the one of this name that was published."""
    with path.open("rb") as file:
        content = bytes(read_upto(file, LARGEST))
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if f"sha512-{digest}" != INTEGRITY[name]:
        raise UserError("--runtime", str(path), f"it is not {name} of {NAME} {VERSION}", hint=BROUGHT)
    return content


def _fetched() -> Path:
    """The archive where other downloads are, now if not before."""
    if there := find([ARCHIVE], folders(NAME, None)):
        return there[0]
    hint = f"{BROUGHT} where there is npm; name it with --runtime"
    if (npm := shutil.which("npm")) is None:
        raise missing_value("--runtime", f"npm, which fetches {NAME} {VERSION}, is not installed", hint=hint)
    home = downloads() / NAME
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as draft:
        words = [npm, "pack", f"{NAME}@{VERSION}", "--pack-destination", draft]
        words += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        try:
            done = subprocess.run(words, cwd=draft, capture_output=True, text=True, check=False, timeout=AT_MOST)
        except subprocess.TimeoutExpired:
            raise missing_value("--runtime", f"npm has not fetched {NAME} in {AT_MOST:.0f} s", hint=hint) from None
        if done.returncode or not (Path(draft) / ARCHIVE).is_file():
            said = re.search(r"npm (?:error|ERR!) code (\S+)", done.stderr)
            why = f"npm did not fetch {NAME} {VERSION}: {said[1] if said else f'exit code {done.returncode}'}"
            raise missing_value("--runtime", why, hint=hint)
        return (Path(draft) / ARCHIVE).replace(home / ARCHIVE)
