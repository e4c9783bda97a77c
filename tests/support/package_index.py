"""A package index of a folder, and small packages for it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path


class PackageIndex:
    """Files of packages, listed with their hashes as package indexes do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"file://{folder}/simple"

    def add(self, name: str, version: str, needs: tuple[str, ...] = (), *, tag: str = "py3-none-any") -> str:
        """Add a wheel whose module says its version, and say the wheel's hash."""
        path = self.folder / f"{name}-{version}-{tag}.whl"
        about = f"{name}-{version}.dist-info"
        needed = "".join(f"Requires-Dist: {need}\n" for need in needs)
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{name}.py", f"version = {version!r}\n")
            archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}")
            archive.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{about}/RECORD", "")
        self._list(name)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def _list(self, name: str) -> None:
        page = self.folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.folder.glob(f"{name}-*.whl")}
        links = [f'<a href="../../{file}#sha256={digest}">{file}</a>' for file, digest in sorted(files.items())]
        page.write_text("<!doctype html>" + "<br>".join(links))
