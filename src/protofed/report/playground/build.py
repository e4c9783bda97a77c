"""The page of a playground: one file with an exported model, what runs it, and no need of anything else."""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofed.data.samples import Dataset
from protofed.errors import UserError
from protofed.internal.atomic_files import write_folder
from protofed.internal.version import VERSION
from protofed.report.page.build import HERE as SHARED
from protofed.report.page.build import digest
from protofed.report.playground.content import Content, gather_playground
from protofed.report.playground.runtime import NAME, Runtime
from protofed.report.playground.runtime import VERSION as RUNTIME_VERSION
from protofed.serving.onnx import can_write_onnx, write_onnx
from protofed.serving.predictor import Predictor

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("unpacked", "drawing", "knowledge", "network", "board", "strip", "classes", "start")
"""In the order in which they need each other."""
LITTLE = {torch.float32: "<f4", torch.uint8: "u1"}
"""Numbers as browsers read them, on any machine that makes the page."""


def write_playground(
    predictor: Predictor,
    held_out: Mapping[str, Tensor],
    network: bytes,
    runtime: Runtime,
    out: Path,
    data: Dataset | None = None,
) -> Path:
    """Write a new folder with one page.

    Args:
        predictor: an exported model of pictures.
        held_out: features and labels of test pictures, as the export brings them.
        network: the model as ONNX.
        runtime: what runs it.
        out: the folder.
        data: whose test pictures can be picked; those that the model brings along unless given.

    Returns:
        The page, `index.html` in the folder.
    """
    text = playground_page(gather_playground(predictor, held_out, data), network, runtime)
    write_folder(out, lambda draft: (draft / "index.html").write_text(text, encoding="utf-8"))
    return out / "index.html"


def network_of(path: Path, predictor: Predictor) -> bytes:
    """The ONNX file of an exported model: that of its folder or, if it has none, made now."""
    if not predictor.card.is_picture:
        raise UserError("MODEL", str(path), "it is not of pictures, which alone can be drawn")
    if (path / "model.onnx").is_file():
        return (path / "model.onnx").read_bytes()
    if not can_write_onnx():
        hint = "pip install 'protofed[onnx]', or export it with --onnx where that is installed"
        raise UserError("MODEL", str(path), "it has no model.onnx, and what makes one is not installed", hint=hint)
    with tempfile.TemporaryDirectory() as draft:
        write_onnx(predictor, Path(draft) / "model.onnx")
        return (Path(draft) / "model.onnx").read_bytes()


def playground_page(content: Content, network: bytes, runtime: Runtime) -> str:
    """The text of the page; names that users choose are drawn as text by its scripts."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined)
    style = "\n".join(path.read_text(encoding="utf-8") for path in (SHARED / "page.css", PAGE / "playground.css"))
    paths = [SHARED / "core.js", *(PAGE / f"{name}.js" for name in SCRIPTS)]
    script = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    allowed = {
        "default-src": "'none'",
        "script-src": f"{digest(runtime.script)} {digest(script)} 'wasm-unsafe-eval'",
        "style-src": digest(style),
        "img-src": "data:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    files = {"network": network, "wasm": runtime.wasm}
    bytes_of = {name: torch.frombuffer(bytearray(file), dtype=torch.uint8) for name, file in files.items()}
    places, packed = _packed({**content.tensors, **bytes_of})
    return environment.get_template("page.html.j2").render(
        about=content.about,
        policy="; ".join(f"{what} {whence}" for what, whence in allowed.items()),
        version=VERSION,
        runtime=f"{NAME} {RUNTIME_VERSION}",
        json=json.dumps(content.about | {"parts": places}, allow_nan=False).replace("<", "\\u003c"),
        packed=packed,
        style=style,
        runner=runtime.script,
        script=script,
    )


def _packed(parts: Mapping[str, Tensor]) -> tuple[dict[str, list[Any]], str]:
    """Everything in one piece of text, and of each part its kind, where it begins and how many bytes it has."""
    pieces = [part.numpy().astype(LITTLE[part.dtype]).tobytes() for part in parts.values()]
    ends = [*accumulate(map(len, pieces))]
    places = {
        name: [str(part.dtype).removeprefix("torch."), end - len(piece), len(piece)]
        for (name, part), piece, end in zip(parts.items(), pieces, ends, strict=True)
    }
    return places, base64.b64encode(gzip.compress(b"".join(pieces), mtime=0)).decode()
