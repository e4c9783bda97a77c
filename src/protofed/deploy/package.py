"""Files with which others keep a server and its clients running: a container, compose files and systemd units.

They name this federation's folders and hold none of its keys: folders are mounted, and no image has them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from protofed.deploy.federation import FederationFolder
from protofed.deploy.owner import Owner
from protofed.errors import UserError
from protofed.experiment import KINDS
from protofed.internal.atomic_files import write_folder
from protofed.internal.version import VERSION

NOBODY = 10001
"""The user of containers where the folder is root's."""
METRICS = 9400
"""Port of the server's metrics; those of client K are K + 1 above it."""
LIMITS = {"server": ("2g", 1.0), "client": ("8g", 4.0)}
"""Memory, and processors, of a service unless somebody changes them."""

WHEEL = f"protofed-{VERSION}-py3-none-any.whl"
"""What `pip wheel` calls this version."""

CONTAINERFILE = f"""\
# podman build -t protofed:{VERSION} .
# A version that no index has comes from its wheel, beside this file (pip wheel --no-deps SOURCES):
# podman build -t protofed:{VERSION} --build-arg PROTOFED='/context/{WHEEL}[flower]' .
# No key, certificate or data is copied: folders are mounted when it runs.
FROM docker.io/library/python:3.11-slim
ARG PROTOFED="protofed[flower]=={VERSION}"
# The version is in the argument, where hadolint does not look.
# hadolint ignore=DL3013
RUN --mount=type=bind,target=/context pip install --no-cache-dir "$PROTOFED" \\
    && useradd --system --uid {NOBODY} --no-create-home protofed
ENV HOME=/tmp PYTHONUNBUFFERED=1
USER {NOBODY}
WORKDIR /tmp
ENTRYPOINT ["protofed", "deploy"]
CMD ["--help"]
"""

UNIT = """\
[Unit]
Description=ProtoFed, {about}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
WorkingDirectory={place}
ExecStart={command}
KillSignal=SIGINT
KillMode=mixed
TimeoutStopSec=60
Restart=on-failure
RestartSec=10
# 2: what is wrong is wrong at the next start too
RestartPreventExitStatus=2
MemoryMax={memory}
CPUQuota={processors:.0%}
TasksMax=512
UMask=0077
ReadWritePaths={writes}
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictSUIDSGID=yes
LockPersonality=yes

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Service:
    """A server, or a client."""

    name: str  # server, client-K
    words: Sequence[str]  # what `protofed deploy` is told, with paths of this machine
    place: Path  # its folder, in which it writes
    port: int  # of its metrics
    user: int
    reads: Sequence[Path] = ()  # beside that
    writes: Sequence[Path] = ()  # beside that
    outside: bool = False  # whether it listens, or calls, on the machine's own addresses

    @property
    def kind(self) -> str:
        """Server or client."""
        return self.name.partition("-")[0]


def write_package(folder: Path, out: Path) -> list[Path]:
    """Write the files of a federation, or of one client, into a new folder.

    Args:
        folder: the federation's, or that of a client.
        out: the new folder.

    Returns:
        The files.

    Raises:
        UserError: it is no such folder, or the new one is there already.
    """
    services = _services(folder)
    files = {"Containerfile": CONTAINERFILE}
    for service in services:
        files[f"compose.{service.name}.yaml"] = compose(service)
        files[f"protofed-{service.name}.service"] = unit(service)

    def fill(draft: Path) -> None:
        for name, text in files.items():
            (draft / name).write_text(text, encoding="utf-8")

    write_folder(out, fill)
    return [out / name for name in files]


def _services(folder: Path) -> list[Service]:
    if (folder / "client.yaml").is_file():
        return [_client(folder.resolve())]
    federation = FederationFolder.open(folder)
    place, user = federation.folder, _user(federation.folder)
    words = ("server", str(place), "--metrics-port", str(METRICS))
    settings = (place / "federation.yaml",)
    server = Service("server", words, federation.server, METRICS, user, settings, outside=True)
    # without its key a client is elsewhere, where its owner calls this
    clients = [path.parent for path in (place / "clients").glob("*/client.yaml") if path.with_name("key").exists()]
    return [server, *sorted(map(_client, clients), key=lambda one: one.port)]


def _client(place: Path) -> Service:
    owner = Owner.read(place / "client.yaml")
    port = METRICS + 1 + owner.id
    words = ("client", str(place), "--id", str(owner.id), "--metrics-port", str(port))
    named = (owner.data, owner.data_dir, owner.public)
    reads = [path for said in named if (path := _path(place, said)) is not None]
    files = [name.rpartition(":")[0] for name in owner.methods or ()]
    reads += [_absolute(place, file) for file in files if file.endswith(".py")]
    near = (owner.server or "").startswith(("127.", "localhost:", "[::1]"))
    return Service(f"client-{owner.id}", words, place, port, _user(place), reads, _memory(place, owner), outside=near)


def _memory(place: Path, owner: Owner) -> list[Path]:
    """The folder of what is kept between rounds, where it is not in the client's own."""
    memory = _absolute(place, owner.memory or "")
    if memory.is_relative_to(place):
        return []
    if not memory.is_dir():
        hint = "make it, and give it to the user of the service"
        raise UserError(f"memory in {place / 'client.yaml'}", str(owner.memory), "there is no such folder", hint=hint)
    return [memory]


def _path(place: Path, said: str | None) -> Path | None:
    """The path in the name of a dataset, with or without its kind; none in that of the catalogue."""
    kind = re.fullmatch(f"({'|'.join(KINDS)}):(.*)", said or "")
    if kind is None and (said is None or ("/" not in said and "." not in said and not (place / said).exists())):
        return None
    return _absolute(place, kind[2] if kind else said or "")


def _absolute(place: Path, said: str) -> Path:
    """A path of client.yaml, which a service reads in the client's folder; links in it are named as they are."""
    return Path(os.path.normpath(place / said))


def _user(folder: Path) -> int:
    """Whose the folder is; root's services are another user's, to whom it must be given."""
    return folder.stat().st_uid or NOBODY


def compose(service: Service) -> str:
    """A compose file of one service; its folders are where they are outside, so that client.yaml holds in there."""
    memory, processors = LIMITS[service.kind]
    health = f"urllib.request.urlopen('http://127.0.0.1:{service.port}/metrics').read()"
    test = f"import urllib.request; assert b'protofed_' in {health}"
    if service.kind == "client":
        test = f"import urllib.request; assert b'protofed_connected 1' in {health}"
    mounts = [_mount(path, False) for path in dict.fromkeys([service.place, *service.writes])]
    mounts += [_mount(path, True) for path in dict.fromkeys(service.reads)]
    told: dict[str, Any] = {
        "image": f"protofed:{VERSION}",
        "build": {"context": ".", "dockerfile": "Containerfile"},
        "command": [word.replace("$", "$$") for word in service.words],
        "working_dir": str(service.place).replace("$", "$$"),
        "user": f"{service.user}:{service.user}",
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": memory,
        "cpus": processors,
        "pids_limit": 512,
        "restart": "unless-stopped",
        "stop_signal": "SIGINT",
        "stop_grace_period": "60s",
        "healthcheck": {"test": ["CMD", "python", "-c", test], "interval": "30s", "timeout": "10s", "retries": 3}
        | {"start_period": "120s"},
        "volumes": mounts,
    }
    if service.outside:
        told["network_mode"] = "host"
    text = yaml.safe_dump({"services": {service.name: told}}, sort_keys=False, width=120)
    return (
        f"# podman compose -f compose.{service.name}.yaml up -d; what it writes must be user {service.user}'s\n{text}"
    )


def _mount(path: Path, read_only: bool) -> dict[str, Any]:
    there = str(path).replace("$", "$$")
    return {"type": "bind", "source": there, "target": there, "read_only": read_only}


def unit(service: Service) -> str:
    """A systemd unit of one service."""
    memory, processors = LIMITS[service.kind]
    program = Path(sys.executable).parent / "protofed"
    words = [str(program), "deploy", *service.words]
    return UNIT.format(
        about=service.name.replace("-", " "),
        user=service.user,
        place=str(service.place).replace("%", "%%"),
        command=" ".join(_quoted(word).replace("$", "$$") for word in words),
        memory=memory.upper(),
        processors=processors,
        writes=" ".join(_quoted(str(path)) for path in (service.place, *service.writes)),
    )


def _quoted(word: str) -> str:
    """A word as systemd reads it."""
    if any(not one.isprintable() for one in word):
        raise UserError("DIR", word, "a unit cannot name such a folder")
    plain = word.replace("%", "%%")
    if re.fullmatch(r"[A-Za-z0-9_./:=@%+-]+", plain):
        return plain
    inner = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inner}"'
