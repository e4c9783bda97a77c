"""Using what came out: export, predict, onboard, add-class."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from protofed.cli.common import Json, Set, command, parameters_from, refuse_existing
from protofed.errors import misused

if TYPE_CHECKING:
    from protofed.serving.export import Exported
    from protofed.serving.onboard import Onboarding, Start
    from protofed.serving.predictor import Predictions

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="A folder that `protofed export` has made.")]
OwnModel = Annotated[
    str | None,
    typer.Option("--model", metavar="FILE:NAME", help="Your own model, if it is one: its code is not exported."),
]
OwnMethod = Annotated[
    str | None,
    typer.Option(
        "--method", metavar="FILE:NAME", help="Your own method, if it extended the model: its code is not exported."
    ),
]
NewModel = Annotated[Path, typer.Option("--out", metavar="MODEL", help="New folder for the model.")]
OfRun = Annotated[
    Path | None,
    typer.Option("--out", metavar="MODEL", help="New folder for the model. [default: a fresh one beside the run's]"),
]
Shown = Annotated[
    int,
    typer.Option(
        "--examples",
        metavar="INT",
        help="Training samples to keep with each prototype, which predict then shows: data leaves its clients.",
    ),
]
Onnx = Annotated[bool, typer.Option("--onnx", help="Also write model.onnx; needs protofed[onnx].")]


OfFederation = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="PATH|NAME",
        help="For a federation's run: samples of its classes to measure the model with; a folder, npz or dataset.",
    ),
]
RunDir = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, complete or not.")]


@command("export", "export runs/fedproto-digits-seed0 --out model")
def export_command(
    folder: RunDir,
    out: OfRun = None,
    client: Annotated[
        int | None,
        typer.Option(
            "--client", help="Whose own model. [default: the averaged one or, if there is none, the largest client's]"
        ),
    ] = None,
    data: OfFederation = None,
    examples: Shown = 0,
    onnx: Onnx = False,
    as_json: Json = False,
) -> None:
    """Export the model of a run; it is usable without the run."""
    from protofed.deploy.owner import dataset_at
    from protofed.runs.folder import RunFolder
    from protofed.serving.export import export

    refuse_existing(out)
    made = export(RunFolder.open(folder), client, data and dataset_at("--data", data), examples)
    write_export(made, out or _beside(folder, "model"), onnx, as_json)


def _beside(folder: Path, what: str) -> Path:
    """A new folder for a model of a run."""
    from protofed.runs.folder import fresh_path

    run = folder.resolve()
    return fresh_path(f"{run.name}-{what}", Path(os.path.relpath(run.parent)))


def write_export(made: Exported, out: Path, onnx: bool, as_json: bool) -> None:
    """Write a model, and say what it is."""
    made.write(out, onnx)
    card = made.predictor.card
    if as_json:
        print(card.to_json(), end="")
        return
    rounds = card.rounds
    print(f"model: {card.model}, {card.whose}")
    print(f"prototypes: {card.prototypes['number']}, {card.prototypes['source']}")
    print(
        f"rounds: {rounds['played']} of {rounds['planned']}" + ("" if rounds["complete"] else ", the run was cut off")
    )
    if card.rule is not None:
        print(f"answers by: {card.rule}, the rule of {card.method['name']}")
    for rule in card.rules:
        if rule in card.held_out:
            print(f"{rule}: {card.held_out[rule]:.2f} % of {card.held_out['images']} test samples")
    print(f"exported: {out}")


@command("predict", "predict model picture.png --reject 0.05")
def predict_command(
    model: ModelFolder,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH…", help="Pictures or folders of them, tables, series, text, or .npz files with the key x."
        ),
    ],
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            help="nearest (prototype), head (classifier), or the method's own, if the card names one. "
            "[default: the method's own or, without one, nearest]",
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", help="How many classes to name. [default: 3]", show_default=False)] = 3,
    reject: Annotated[
        float | None,
        typer.Option(
            "--reject",
            metavar="PART",
            help="Refuse a sample that is farther from its prototype than all but this part of the known samples.",
        ),
    ] = None,
    own_model: OwnModel = None,
    own_method: OwnMethod = None,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
) -> None:
    """Predict the classes of samples, and say why."""
    from protofed.serving.inputs import read
    from protofed.serving.predictor import load

    if as_json and as_csv:
        raise misused("--csv", "it does not go with --json")
    predictor = load(model, own_model, own_method)
    names, seen = read(paths, predictor.card)
    rule = rule or predictor.card.rules[0]
    found = predictor.predict(seen, rule, top, reject)
    rows = [{"image": name, **row} for name, row in zip(names, found.rows(), strict=True)]
    if as_json:
        rates = {} if found.rates is None else {"reject": found.rates}
        print(json.dumps({"predictions": rows, **rates}))
    elif as_csv:
        _csv(rows)
    else:
        _table(rows, rule)
    if found.rates is not None and not as_json:
        print(_rates(found), file=sys.stderr if as_csv else sys.stdout)


@command("onboard", "onboard model --data mine.npz --shots 5")
def onboard_command(
    model: ModelFolder,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="PATH",
            help="The client's data: a folder of class/picture, an .npz, a table, series or text.",
        ),
    ],
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="Column of the classes, if it is a table.")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Epochs of its training. [default: 2]")] = None,
    shots: Annotated[
        int | None, typer.Option("--shots", help="Training samples of each class. [default: all that there are]")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="pretrained (the model's weights), own (as many epochs alone before) or random. "
            "[default: pretrained or, with another --model, random]",
        ),
    ] = None,
    architecture: Annotated[
        str | None,
        typer.Option("--model", metavar="STR", help="Its architecture, as in `protofed run`. [default: the model's]"),
    ] = None,
    own_method: OwnMethod = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of shots, weights and batches. [default: 0]")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="MODEL", help="New folder for the client's model.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a new client join an exported model.

    Only that client trains.
    """
    from protofed.serving.onboard import EPOCHS, onboard
    from protofed.serving.predictor import load

    refuse_existing(out)
    length = EPOCHS if epochs is None else epochs
    joined = load(model, architecture, own_method)
    made, found = onboard(joined, data, length, shots, cast("Start | None", start), architecture, seed or 0, label)
    if out is not None:
        made.write(out)
    if as_json:
        print(found.to_json(), end="")
        return
    _tell_onboarded(found)


@command("forget", "forget runs/fed3r-digits-seed0 --client 2")
def forget_command(
    folder: RunDir,
    client: Annotated[int, typer.Option("--client", metavar="INT", help="The client to take out of the model.")],
    data: OfFederation = None,
    out: OfRun = None,
    as_json: Json = False,
) -> None:
    """Take a client out of what a run's server holds, and export the model without it."""
    from protofed.deploy.owner import dataset_at
    from protofed.runs.folder import RunFolder
    from protofed.serving.forget import forget

    refuse_existing(out)
    made, found = forget(RunFolder.open(folder), client, data and dataset_at("--data", data))
    out = out or _beside(folder, f"without-{client}")
    made.write(out)
    if as_json:
        print(found.to_json(), end="")
        return
    print(found.words())
    held_out = made.predictor.card.held_out
    for rule in ("nearest", "head"):
        print(f"{rule}: {held_out[rule]:.2f} % of {held_out['images']} test samples")
    print(f"exported: {out}")


@command("calibrate", "calibrate runs/fedavg-digits-seed0")
def calibrate_command(
    folder: RunDir,
    out: OfRun = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Train the head of a run's averaged model anew on Gaussians of the clients' features (CCVR), and export it."""
    from protofed.methods import CALIBRATES, build_method
    from protofed.methods.server.class_gaussians import Calibrating
    from protofed.runs.folder import RunFolder
    from protofed.serving.calibrate import calibrate

    refuse_existing(out)
    how = build_method(CALIBRATES, parameters_from(set_))
    assert isinstance(how, Calibrating)
    made, found = calibrate(RunFolder.open(folder), how)
    out = out or _beside(folder, "calibrated")
    made.write(out)
    if as_json:
        print(found.to_json(), end="")
        return
    print(f"head: {found.before:.2f} % before, {found.after:.2f} % after; a client would send {found.bytes_up:,} bytes")
    print(f"exported: {out}")


@command("add-class", "add-class model eleven --data pictures --out larger")
def add_class_command(
    model: ModelFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the class is called.")],
    data: Annotated[Path, typer.Option("--data", metavar="PATH", help="Examples: as for predict.")],
    out: NewModel,
    own_model: OwnModel = None,
    own_method: OwnMethod = None,
    as_json: Json = False,
) -> None:
    """Add a class from a few examples."""
    from protofed.serving.add_class import add_class, read_held_out
    from protofed.serving.inputs import read
    from protofed.serving.predictor import load

    refuse_existing(out)
    predictor = load(model, own_model, own_method)
    _, samples = read([data], predictor.card)
    held_out = read_held_out(model, predictor.card.feature_size)
    changed, effect = add_class(predictor, name, samples, held_out)
    changed.write(out, held_out)
    if as_json:
        print(json.dumps(changed.card.added[-1]))
        return
    print(f"{name}: {effect.examples} examples" + _also(", {:.1f} % recognised when left out", effect.recognised))
    if effect.before is None:
        print("the effect on the old classes was not measured: there are no held-out samples")
    else:
        print(
            f"old classes, {effect.held_out} held-out samples: {effect.before:.2f} % before, "
            f"{effect.after:.2f} % after; {effect.taken:.2f} % are taken for {name}"
        )
    print(f"model: {out}")


@command("playground", "playground model --data digits --out page")
def playground_command(
    model: ModelFolder,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="New folder for the page, index.html.")],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="PATH|NAME",
            help="Whose test pictures can be picked, and whose pictures drawings are laid like; a folder, npz or "
            "dataset. [default: the training pictures that the model brings, if any]",
        ),
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(
            "--runtime",
            metavar="PATH",
            help="The npm package onnxruntime-web, its .tgz or folder. [default: npm fetches it, once]",
        ),
    ] = None,
    own_model: OwnModel = None,
    own_method: OwnMethod = None,
) -> None:
    """Make a page on which a model answers drawings.

    The model is of pictures; any static host, or none, will do.
    """
    from protofed.data import load as load_data
    from protofed.deploy.owner import dataset_at
    from protofed.report.playground import network_of, read_runtime, write_playground
    from protofed.serving.add_class import read_held_out
    from protofed.serving.predictor import load

    refuse_existing(out)
    predictor = load(model, own_model, own_method)
    network = network_of(model, predictor)
    held_out = read_held_out(model, predictor.card.feature_size)
    samples = None if data is None else load_data(dataset_at("--data", data))
    page = write_playground(predictor, held_out, network, read_runtime(runtime), out, samples)
    print(f"{page}, {page.stat().st_size / 1e6:.1f} MB")


def _tell_onboarded(found: Onboarding) -> None:
    """What joining did for the client."""
    from protofed.report.terminal import TextTable

    print(
        f"{found.model}, start {found.start}: {found.samples} samples of {len(found.classes)} classes, "
        f"{found.epochs} epochs, {found.prototypes} prototypes, {found.bytes_down:,} bytes down"
    )
    parts = (found.before, found.after, found.alone)
    rows = [[rule, *(f"{part[rule]:.2f}" for part in parts)] for rule in found.after]
    TextTable(("rule", "before", "after", "alone"), rows).print()
    print(f"accuracy in % of {found.test_samples} test samples of these classes; alone: from random weights")
    for note in found.notes():
        print(f"note: {note}")


def _also(text: str, value: float | None) -> str:
    return "" if value is None else text.format(value)


def _whose(row: dict[str, Any], rule: str) -> str:
    """Which prototype won; the rule, if none did."""
    if row["cluster"] is None:
        return rule
    cluster = f"cluster {row['cluster']}, {row['count']:.0f} samples"
    return cluster if row["client"] is None else f"client {row['client']}, {cluster}"


def _table(rows: list[dict[str, Any]], rule: str) -> None:
    from protofed.report.terminal import TextTable

    lines = []
    for row in rows:
        others = row["top"] if row["refused"] else row["top"][1:]
        then = ", ".join(f"{one['class']} {one['distance']:.3f}" for one in others)
        margin = _also("{:.3f}", row["margin"])
        answer = "unknown" if row["refused"] else row["class"]
        example = [_like(row["example"])] if "example" in row else []
        lines.append([row["image"], answer, f"{row['distance']:.3f}", margin, _whose(row, rule), then, *example])
    titles = ("sample", "class", "distance", "margin", "won by", "then", "nearest example")
    TextTable(titles[: len(lines[0])], lines, align="llrrl", text="wrapped").print()


def _like(example: dict[str, Any]) -> str:
    """A training sample in words."""
    sample = example["sample"] or f"number {example['number']}"
    return f"{example['class']}, client {example['client']}: {sample}"


def _csv(rows: list[dict[str, Any]]) -> None:
    """A line per image; the further classes are class_2, distance_2 and so on."""
    flat = []
    for row in rows:
        further = enumerate(row.pop("top")[1:], 2)
        if "example" in row:
            row["example"] = _like(row["example"])
        flat.append(row | {f"{name}_{place}": one[name] for place, one in further for name in ("class", "distance")})
    writer = csv.DictWriter(sys.stdout, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)


def _rates(found: Predictions) -> str:
    rates = found.rates or {}
    text = f"refused: {int(found.refused.sum())} of {len(found)}, farther than {rates['threshold']:.4g}"
    text += f"; of held-out samples of known classes {100 * rates['known']:.1f} %"
    return text + _also(", of unknown classes {:.1f} %", 100 * rates["unknown"] if "unknown" in rates else None)
