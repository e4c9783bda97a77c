"""The npm package that runs networks in a browser: found, fetched and checked."""

from __future__ import annotations

import base64
import hashlib
import shutil
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from protofed.errors import UserError
from protofed.report.playground import runtime as package
from protofed.report.playground.runtime import ARCHIVE, INTEGRITY, NAME, SCRIPT, VERSION, WASM, as_script, read_runtime

MODULE = (
    "var a=1,b=2,c=3,d=4;export{a as InferenceSession,b as Tensor,c as env,d as default};\n//# sourceMappingURL=x.map\n"
)
FILES = {SCRIPT: MODULE.encode(), WASM: b"\0asm"}
PLAIN = "var a=1,b=2,c=3,d=4;globalThis.ort={InferenceSession:a,Tensor:b,env:c};\n"


@pytest.fixture(autouse=True)
def _none_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PROTOFED_DATA", raising=False)


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package of a few bytes, which is now the expected one."""
    path = tmp_path / "package.tgz"
    with tarfile.open(path, "w:gz") as packed:
        for name, content in reversed(FILES.items()):
            entry = tarfile.TarInfo(f"package/dist/{name}")
            entry.size = len(content)
            packed.addfile(entry, BytesIO(content))
    for name, content in {**FILES, ARCHIVE: path.read_bytes()}.items():
        digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
        monkeypatch.setitem(INTEGRITY, name, f"sha512-{digest}")
    return path


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only npm there is does this."""
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(shutil, "which", lambda name: str(folder / name))


def test_a_module_becomes_a_script_that_sets_a_global() -> None:
    assert as_script(MODULE) == PLAIN
    for text in ("var a=1;", "export{a as Tensor};", "export{a as InferenceSession,b as Tensor};"):
        with pytest.raises(UserError, match="it does not export InferenceSession, Tensor, env"):
            as_script(text)


@pytest.mark.parametrize("inside", [".", "dist", "package/dist", f"node_modules/{NAME}/dist"])
@pytest.mark.usefixtures("archive")
def test_a_folder_is_read_wherever_the_files_are_in_it(inside: str, tmp_path: Path) -> None:
    put(tmp_path / "there" / inside)
    assert read_runtime(tmp_path / "there") == (PLAIN, FILES[WASM])


def test_an_archive_is_read(archive: Path) -> None:
    assert read_runtime(archive) == (PLAIN, FILES[WASM])


@pytest.mark.usefixtures("archive")
def test_what_is_not_the_published_package_is_refused(tmp_path: Path) -> None:
    folder = put(tmp_path / "there")
    (folder / WASM).write_bytes(b"\0asm!")
    with pytest.raises(UserError, match=f"it is not {WASM} of {NAME} {VERSION}"):
        read_runtime(folder)
    (folder / WASM).unlink()
    with pytest.raises(UserError, match=f"it does not hold {SCRIPT} and {WASM}") as caught:
        read_runtime(folder)
    assert caught.value.hint == f"`npm pack {NAME}@{VERSION}` brings it"
    (tmp_path / "other.tgz").write_bytes(b"other")
    with pytest.raises(UserError, match=f"it is not {ARCHIVE}"):
        read_runtime(tmp_path / "other.tgz")
    with pytest.raises(UserError, match="there is no such file or folder"):
        read_runtime(tmp_path / "nowhere")


def test_npm_fetches_it_once(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm(
        tmp_path / "bin",
        f'test "$1 $2 $3" = "pack {NAME}@{VERSION} --pack-destination" && cp {archive} "$4/{ARCHIVE}"',
        monkeypatch,
    )
    assert read_runtime() == (PLAIN, FILES[WASM])
    (tmp_path / "bin" / "npm").write_text("#!/bin/sh\nexit 1\n")
    assert read_runtime() == (PLAIN, FILES[WASM])
    home = tmp_path / "cache" / "protofed" / "downloads" / NAME
    assert [path.name for path in home.iterdir()] == [ARCHIVE]


def test_a_folder_of_downloads_is_looked_at_first(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.rename(tmp_path / ARCHIVE)
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert read_runtime() == (PLAIN, FILES[WASM])


def test_it_says_what_to_do_without_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UserError, match=f"npm, which fetches {NAME} {VERSION}, is not installed") as caught:
        read_runtime()
    assert caught.value.hint == f"`npm pack {NAME}@{VERSION}` brings it where there is npm; name it with --runtime"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'npm error code ECONNREFUSED' >&2; exit 1", "npm did not fetch .*: ECONNREFUSED"),
        ("echo 'npm ERR! code E404' >&2; exit 1", "npm did not fetch .*: E404"),
        ("exit 3", "npm did not fetch .*: exit code 3"),
        ("exit 0", "npm did not fetch .*: exit code 0"),
        ("exec sleep 60", "npm has not fetched .* in 0 s"),
    ],
)
def test_it_says_why_npm_failed(script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm(tmp_path / "bin", script, monkeypatch)
    monkeypatch.setattr(package, "AT_MOST", 0.2 if "sleep" in script else 60.0)
    with pytest.raises(UserError, match=why) as caught:
        read_runtime()
    assert "--runtime" in str(caught.value.hint)
    assert not [*(tmp_path / "cache" / "protofed" / "downloads" / NAME).iterdir()]
