"""Everything that reads what others may have written: a valid example of its files, and the reading itself."""

from __future__ import annotations

import bz2
import functools
import gzip
import json
import pickle
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from io import BytesIO, StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import yaml
from flwr.serverapp import Grid
from safetensors.torch import save_file
from torch import Tensor

from protofed.data import federation, load
from protofed.data.encodings import decoded
from protofed.data.federation_file import read_federation, write_federation
from protofed.data.samples import Samples
from protofed.data.sources import cache
from protofed.data.sources.idx import mnist
from protofed.data.sources.image_files import folder as pictures
from protofed.data.sources.image_files import mnist_m
from protofed.data.sources.leaf import femnist
from protofed.data.sources.mat import svhn
from protofed.data.sources.npz import npz, npz_samples
from protofed.data.sources.pfllib import partition
from protofed.data.sources.pickles import cifar10, cifar100, fc100, objects_in
from protofed.data.sources.series import arff, ts
from protofed.data.sources.tables import TableOptions
from protofed.data.sources.tables import table as csv_table
from protofed.data.sources.texts import orange, texts
from protofed.data.sources.usps import usps_h5, usps_libsvm
from protofed.data.text_encoding import Tokenising
from protofed.deploy import wire
from protofed.deploy.client import HANDLERS, Asked, Failed, WarmClient
from protofed.deploy.connections import Connections
from protofed.deploy.federation import FederationFolder
from protofed.deploy.flower_client import owner_of
from protofed.deploy.owner import Owner
from protofed.deploy.remote import Remote
from protofed.deploy.server_settings import Settings, read_nodes
from protofed.errors import RefusedError, UserError
from protofed.evaluation.accuracy import Evaluation
from protofed.evaluation.snapshot import Snapshot
from protofed.experiment import Experiment
from protofed.internal.yaml_files import read_yaml
from protofed.messages import Broadcast, Upload
from protofed.models import build
from protofed.models.encoder import Encoder, EncoderCard
from protofed.models.published import imported
from protofed.models.start import start_from
from protofed.prototypes import Prototypes
from protofed.report import terminal as table
from protofed.report import watch
from protofed.report.html import gather, write_report
from protofed.report.index import Index, listed
from protofed.runs.folder import RunFolder
from protofed.runs.network_label import read_network_label
from protofed.runs.progress import Progress
from protofed.runs.result import Result
from protofed.runs.run import Run, new_run
from protofed.serving.add_class import read_held_out
from protofed.serving.export import export
from protofed.serving.inputs import pictures_at
from protofed.serving.predictor import Predictor
from protofed.studies.comparison import ComparisonStudy, rows_of
from protofed.studies.reproduction import ReproductionStudy
from protofed.studies.sweeps import SweepStudy
from protofed.studies.theory import examine
from protofed.trust.screening import Schema, tensors_of

CLEAN = (UserError, RefusedError)
"""What a reader may raise."""


@dataclass(frozen=True)
class Reader:
    """`make` fills a folder with valid files, of which `files` are the ones to damage, and `read` reads it."""

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    files: tuple[str, ...]
    packed: Callable[[bytes], bytes] | None = None  # what is damaged are the bytes before they are compressed
    unpacked: Callable[[bytes], bytes] = bytes
    valid: bool = True  # the files can be read as they are


class Place:
    """A folder with a reader's files, one of which is damaged at a time."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.folder = reader, Path(tempfile.mkdtemp(prefix="protofed-fuzz-"))
        reader.make(self.folder)
        kept = [path for path in self.folder.rglob("*") if path.is_file()]
        self.whole = {path: path.read_bytes() for path in kept}

    def content(self, file: str) -> bytes:
        """A valid file, as it is before it is compressed."""
        return self.reader.unpacked(self.whole[self.folder / file])

    def read(self, file: str, content: bytes) -> bool:
        """Whether the files can be read when this is in one of them; an unclean error gets out."""
        (self.folder / file).write_bytes(content if self.reader.packed is None else self.reader.packed(content))
        return self.try_reading()

    def try_reading(self) -> bool:
        """The same of the files as they are; then those that a reader may have changed are as before."""
        try:
            self.reader.read(self.folder)
        except CLEAN:
            return False
        finally:
            for kept, data in self.whole.items():
                if kept.is_file():
                    kept.write_bytes(data)
        return True

    def remove(self) -> None:
        """At the end."""
        shutil.rmtree(self.folder)


def _one(name: str, content: Callable[[], bytes]) -> Callable[[Path], object]:
    """A folder of one file."""
    return lambda folder: (folder / name).write_bytes(content())


# What crosses the network


def upload() -> Upload:
    """Two weights, a set of prototypes with an empty class, and a number."""
    counts = torch.tensor([[2.0, 1.0], [0.0, 0.0], [5.0, 0.0]])
    vectors = torch.arange(24.0).view(3, 2, 4) * (counts > 0).unsqueeze(-1)
    weights = {"w": torch.ones(2, 3), "steps": torch.tensor(7)}
    return Upload(weights, {"means": Prototypes(vectors, counts)}, {"samples": torch.tensor(9)})


SCHEMA = Schema.of(upload())


def _read_upload(folder: Path) -> Upload:
    return Upload.from_flat(SCHEMA.check(tensors_of((folder / "upload.safetensors").read_bytes())))


def _read_broadcast(folder: Path) -> Broadcast:
    flat = tensors_of((folder / "broadcast.safetensors").read_bytes())
    schema = Schema.of_broadcast(flat, {"w": torch.ones(2, 3), "steps": torch.tensor(7)}, 3, 4, 10_000)
    return Broadcast.from_flat(schema.check(flat))


def _packet(folder: Path) -> wire.Packet:
    """A message that says what the folder's file says."""
    return wire.seal((folder / "facts.json").read_bytes().decode("utf-8", "replace"), upload().encode())


def _facts(**facts: Any) -> Callable[[Path], object]:
    return _one("facts.json", lambda: json.dumps({"protocol": wire.PROTOCOL, **facts}).encode())


def _read_hello(folder: Path) -> object:
    clients = Connections(cast(Grid, None), Experiment(), Settings(), "run")
    number, known = clients._read_hello(1, _packet(folder))
    clients._bind(1, number, known)
    return clients


def _read_answer(folder: Path) -> object:
    facts, data = wire.unpack(_packet(folder), wire.LARGEST)
    return Remote._read_upload(cast(Remote, SimpleNamespace(schema=SCHEMA)), 3, facts, data)


def _read_scores(folder: Path) -> object:
    clients = Connections(cast(Grid, None), Experiment(), Settings(), "run")
    asked = SimpleNamespace(
        scores=SCORES.per_client.keys(), known=KNOWN, federation=SimpleNamespace(domains=("a", "b")), clients=clients
    )
    facts, _ = wire.unpack(_packet(folder), wire.LARGEST)
    return Remote._read_scores(cast(Remote, asked), facts).means()


SCORES = Evaluation({"own/own/head": [50.0], "own/all/nearest": [25.0]}, {"own/all/head": {"a": 50.0}})
KNOWN = {"own/own/head", "own/all/nearest", "own/all/head", "global/all/head"}


def _read_question(folder: Path) -> wire.Packet | Failed:
    """As a client answers, but for the training."""

    def asked(client: WarmClient, asked: Asked) -> wire.Packet:
        return wire.pack({"id": client.owner.id, "round": asked.clock.round})

    (folder / "memory").mkdir(exist_ok=True)
    client = WarmClient(Owner(3, memory=str(folder / "memory")))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        patch.setitem(HANDLERS, "train", asked)
        return client.answer("train", _packet(folder))


# Configurations


def _read_config(folder: Path) -> Experiment:
    experiment = Experiment.from_mapping(read_yaml(folder / "config.yaml"))
    assert Experiment.from_mapping(yaml.safe_load(experiment.to_yaml())) == experiment
    return experiment


def _make_plans(folder: Path) -> None:
    plain = Experiment(params={"k": 2})
    studies = (
        *(ComparisonStudy(["fedavg", "mp-fedcl"], plain), SweepStudy(["fedavg"], plain, jobs=1, grid={"k": [1, 2]})),
        ReproductionStudy("mp-fedcl/table6"),
    )
    for study in studies:
        study.config(folder).write_text(study.to_yaml())


def _read_plans(folder: Path) -> None:
    for kind in (ComparisonStudy, SweepStudy, ReproductionStudy):
        study = kind.open(folder)
        study.to_yaml()
        study.size()


def _make_owner(folder: Path) -> None:
    (folder / "federation.yaml").write_text("clients: 3\nhost: 127.0.0.1\nport: 9092\nminimum: 1\ndeadline: 600.0\n")
    text = "id: 3\nserver: 127.0.0.1:9092\ndata: digits\nmethods: [mp-fedcl]\nturns: 200\nmegabytes: 100\n"
    (folder / "client.yaml").write_text(text + "send: [prototypes, numbers]\ndevice: cpu\nthreads: 1\n")
    (folder / "nodes.json").write_text('{"0": 11, "1": 12}\n')
    label = {"run": "abc", "brings": False, "classes": ["a", "b"], "domains": ["c"]}
    (folder / "flower.json").write_text(json.dumps(label | {"shapes": [[1, 8, 8], [3, 16, 16]]}))


def _read_owner(folder: Path) -> None:
    federation = FederationFolder.open(folder)
    assert federation.address
    owner = owner_of({"client": str(folder / "client.yaml")})
    owner.part_objections([])
    owner.objections(Experiment())
    assert read_nodes(folder / "nodes.json") is not None
    assert read_network_label(folder / "flower.json", 2)["classes"]


# Runs


@functools.cache
def _played() -> Path:
    """A run of two rounds, kept for as long as the process lives."""
    place = Path(tempfile.mkdtemp(prefix="protofed-fuzz-run-"))
    given = {"method": "mp-fedcl", "model": "cnn", "train_size": 60, "clients": 2, "rounds": 2, "params": {"k": 2}}
    run = new_run(Experiment.from_mapping({**given, "device": "cpu", "engine": "sequential", "split": "iid"}))
    folder = RunFolder.create(place / "run", run.experiment)
    run.play(folder, Progress())
    small = {"points": torch.tensor([[0, 1, 0, 0], [1, 1, 1, 0]]), "marks": torch.tensor([[0, 1, 0]])}
    look = asdict(Snapshot.read(folder.snapshot))
    Snapshot(**look | small | {"features": look["features"][:2], "prototypes": look["prototypes"][:1]}).write(
        folder.snapshot
    )
    (folder.path / "profile.json").write_text(json.dumps({"sections": {"training": {"seconds": 1.0, "share": 1.0}}}))
    return folder.path


def _make_run(folder: Path) -> None:
    shutil.copytree(_played(), folder, dirs_exist_ok=True)


def _make_comparison(folder: Path) -> None:
    _make_run(folder / "mp-fedcl-seed0")
    (folder / "compare.yaml").write_text(ComparisonStudy(["mp-fedcl"], seeds=2).to_yaml())


def _make_cut_off(folder: Path) -> None:
    _make_run(folder)
    (folder / "result.json").unlink()


def _read_watch(folder: Path) -> None:
    view = watch.look(folder)
    table.console().render_str("")
    list(table.console().render(watch.table(view)))


def _read_list(folder: Path) -> None:
    (row,) = Index(folder).rows()  # whatever is damaged is listed
    json.dumps(listed([row]), allow_nan=False)


def _read_report(folder: Path) -> None:
    write_report(gather([folder]), folder / "report.html")


def _read_result(folder: Path) -> None:
    result = Result.read(folder)
    list(table.console().render(table.result_table(result)))
    rows_of([result])
    result.to_json()


@functools.cache
def _run() -> Run:
    return new_run(RunFolder.open(_played()).experiment())


def _read_resume(folder: Path) -> None:
    """As a run is continued, but for the rounds that would be played."""
    run = _run()
    run.restore(RunFolder.open(folder))
    if run.over():  # else its checkpoint is an earlier one, or gone
        run.evaluated(run.history[-1])
        run.result(None)


def _read_theory(folder: Path) -> None:
    examine(RunFolder.open(folder), 1, Progress()).to_json()


def _read_export(folder: Path) -> None:
    export(RunFolder.open(folder)).predictor.card.to_json()


# Models


@functools.cache
def _exported() -> Path:
    place = Path(tempfile.mkdtemp(prefix="protofed-fuzz-model-")) / "model"
    export(RunFolder.open(_played())).write(place)
    return place


def _make_model(folder: Path) -> None:
    shutil.copytree(_exported(), folder, dirs_exist_ok=True)


def _read_model(folder: Path) -> None:
    model = Predictor.read(folder)
    model.predict(np.zeros((2, 8, 8), np.uint8)).rows()
    if len(model.card.refusal.get("nearest", {})):
        model.predict(np.zeros((1, 8, 8), np.uint8), reject=0.05).rows()
    read_held_out(folder, model.card.feature_size)


def _make_encoder(folder: Path) -> None:
    module = build("cnn", (1, 8, 8), 1, 0)
    state = {name: value for name, value in module.state_dict().items() if not name.startswith("head.")}
    Encoder(EncoderCard("cnn", 1, 8, [0.5], [0.5], 50, "digits"), state, torch.device("cpu")).write(
        folder / "encoder.safetensors"
    )


def _read_encoder(folder: Path) -> Tensor:
    return Encoder.read(folder / "encoder.safetensors", torch.device("cpu")).computed(
        torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    )


def _make_start(folder: Path) -> None:
    save_file(
        {"encoder.0.weight": torch.zeros(3), **build("cnn", (1, 8, 8), 3, 0).state_dict()}, folder / "a.safetensors"
    )
    torch.save({"conv1.weight": torch.zeros(2, 2), "fc.bias": torch.zeros(3)}, folder / "a.pth")


def _read_start(folder: Path) -> None:
    start_from(folder / "a.safetensors", build("cnn", (1, 8, 8), 3, 0))


def _read_imported(folder: Path) -> Encoder:
    return imported(folder / "a.pth", 32)


# Datasets

PIXELS = bytes(range(256)) * 49  # 16 images of 28x28


def _idx(*shape: int, content: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape) + content


MNIST = ("train-images.gz", "train-labels.gz", "test-images.gz", "test-labels.gz")


def _make_mnist(folder: Path) -> None:
    for name in MNIST:
        whole = _idx(16, 28, 28, content=PIXELS) if "images" in name else _idx(16, content=bytes(range(10)) + bytes(6))
        (folder / name).write_bytes(gzip.compress(whole, mtime=0))


def _read_mnist(folder: Path) -> object:
    return mnist([folder / name for name in MNIST], None)


def _make_mat(folder: Path) -> None:
    from scipy.io import savemat

    images, labels = np.zeros((32, 32, 3, 2), np.uint8), np.array([[1], [10]], np.uint8)
    savemat(folder / "plain.mat", {"X": images, "y": labels, "other": np.eye(2)})
    savemat(folder / "packed.mat", {"X": images, "y": labels}, do_compression=True)


def _read_mat(folder: Path) -> object:
    return svhn([folder / "plain.mat", folder / "packed.mat"], None)


LIBSVM = b"3 1:-0.5 2:0.25 256:1\n10 5:0.125\n"


def _make_libsvm(folder: Path) -> None:
    for name in ("usps.bz2", "usps.t.bz2"):
        (folder / name).write_bytes(bz2.compress(LIBSVM))


def _read_libsvm(folder: Path) -> object:
    return usps_libsvm([folder / "usps.bz2", folder / "usps.t.bz2"], None)


def _make_h5(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "usps.h5", "w") as file:
        for part in ("train", "test"):
            file[f"{part}/data"], file[f"{part}/target"] = np.zeros((2, 256), np.float32), np.array([7, 0])


def _read_h5(folder: Path) -> object:
    return usps_h5([folder / "usps.h5"], None)


def _pickled(content: object) -> bytes:
    """As the published files are: protocol 2 and numpy's names of old."""
    import pickle

    return pickle.dumps(content, 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def _make_cifar(folder: Path) -> None:
    batch = {b"data": np.zeros((3, 3072), np.uint8), b"fine_labels": [0, 1, 2], b"labels": [0, 1, 2]}
    for name in ("train", "test"):
        (folder / name).write_bytes(_pickled(batch))
    (folder / "meta").write_bytes(
        _pickled({b"fine_label_names": [b"a", b"b", b"c"], b"label_names": [b"a", b"b", b"c"]})
    )
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]
    with tarfile.open(folder / "cifar-10.tar.gz", "w:gz") as archive:
        for name in names:
            archive.add(folder / ("meta" if "meta" in name else "test"), f"cifar-10-batches-py/{name}")


def _read_cifar(folder: Path) -> object:
    return cifar100([folder / name for name in ("train", "test", "meta")], None)


def _read_archive(folder: Path) -> object:
    return cifar10([folder / "cifar-10.tar.gz"], None)


FC100 = ("FC100_train.pickle", "FC100_val.pickle", "FC100_test.pickle")


def _make_fc100(folder: Path) -> None:
    for number, name in enumerate(FC100):
        batch = {"data": np.zeros((5, 32, 32, 3), np.uint8), "labels": [number] * 5}
        (folder / name).write_bytes(_pickled(batch))


def _read_fc100(folder: Path) -> object:
    return fc100([folder / name for name in FC100], None)


def _leaf() -> bytes:
    data = {name: {"x": [[0.5] * 784] * 5, "y": [3] * 5} for name in ("a", "b")}
    return json.dumps({"users": ["a", "b"], "num_samples": [5, 5], "user_data": data}).encode()


def _make_npz(folder: Path) -> None:
    images, labels = np.zeros((10, 4, 4), np.uint8), np.array([0, 1] * 5)
    np.savez(folder / "plain.npz", images=images, labels=labels, domains=np.array(["a", "b"] * 5))
    np.savez_compressed(folder / "packed.npz", images=images, labels=labels, test_images=images, test_labels=labels)


def _read_npz(folder: Path) -> object:
    npz_samples(folder / "packed.npz")
    return npz([folder / "plain.npz"], None), npz([folder / "packed.npz"], None)


def _make_pfllib(folder: Path) -> None:
    for part in ("train", "test"):
        (folder / part).mkdir()
        held = {"x": np.ones((4, 1, 3, 3), np.float32), "y": np.array([0, 1] * 2)}
        np.savez_compressed(folder / part / "0.npz", data=held)  # type: ignore[arg-type]  # numpy makes it an array
        pairs = {"x": np.array([([1, 2], 2)] * 4, dtype=object), "y": np.array([0, 1] * 2)}
        (folder / f"{part}.pickle").write_bytes(pickle.dumps(np.array(pairs), protocol=4))


def _read_pfllib(folder: Path) -> object:
    try:
        objects_in((folder / "train.pickle").read_bytes())
    except Exception as error:  # which the reader of the file turns into one of ours
        raise UserError("PATH", "train.pickle", str(error)) from None
    return partition(folder)


TS = b"# x\n@univariate false\n@dimensions 2\n@classLabel true a b\n@data\n" + b"1,2,?:3,4,5:a\n1,2:3,4e1:b\n" * 5
ARFF = b"@relation x\n@attribute all relational\n@attribute c numeric\n@attribute d numeric\n@end all\n"
ARFF += b"@attribute t {a,b}\n@data\n" + b"'1,2\\n3,?',a\n'1,2\\n3,4',b\n" * 5
ENCODINGS = [{"kind": "series", "channels": 2, "length": 3, "masked": True}]
ENCODINGS += [{"kind": "text", "words": ["the", "cat"], "length": 4, "tokenizer": ""}]


def _make_text(folder: Path) -> None:
    (folder / "lines.tsv").write_bytes(b"ham\tsee you\nspam\tbuy now\n" * 5)
    (folder / "table.tab").write_bytes(b"c\tt\nd\tstring\nclass\t\n\nham\tsee you\nspam\tbuy now\n")


def _read_text(folder: Path) -> object:
    corpora = texts([folder / "lines.tsv"], None), orange([folder / "table.tab"] * 2, None)
    return [corpus.encoded(Tokenising(), "text") for corpus in corpora]


def _json_list(path: Path) -> list[Any]:
    """What JSON says, in a list; what is no JSON is refused before an encoding is looked at."""
    try:
        said = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise UserError("FILE", str(path), "no JSON") from None
    return said if isinstance(said, list) else [said]


def _make_federation(folder: Path) -> None:
    part = Samples.of(torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 1]))
    given = federation.Client.of(part, part, validation=part)
    write_federation(federation.Federation((given, given), ("a", "b"), novel=part), folder / "federation.safetensors")


def _read_array(folder: Path) -> object:
    """One whose array `images` is the folder's file."""
    with zipfile.ZipFile(folder / "own.npz", "w") as archive:
        archive.write(folder / "images.npy", "images.npy")
    return npz_samples(folder / "own.npz")


def _array() -> bytes:
    made = BytesIO()
    np.save(made, np.zeros((2, 4, 4), np.uint8))
    return made.getvalue()


KINDS = ("png", "jpg", "gif", "bmp", "ppm", "tif", "webp")


def _make_pictures(folder: Path) -> None:
    from PIL import Image

    colours = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    for name in ("a", "b"):
        (folder / "own" / name).mkdir(parents=True)
        for kind in KINDS:
            colours.save(folder / "own" / name / f"one.{kind}")
    for name in ("train.zip", "test.zip"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.write(folder / "own/a/one.png", "part/one.png")
            archive.writestr("part_labels.txt", "one.png 3\n")


def _read_pictures(folder: Path) -> object:
    pictures_at(folder / "own", 8)
    return pictures([folder / "own"], None)


def _read_zips(folder: Path) -> object:
    return mnist_m([folder / "train.zip", folder / "test.zip"], None)


def _make_table(folder: Path) -> None:
    rows = "".join(f"{number},{'ab'[number % 2]},{number % 3}\n" for number in range(40))
    (folder / "table.csv").write_text(f"x,name,label\n{rows}")
    (folder / "table.csv.gz").write_bytes(gzip.compress(b"x,label\n" + b"1,0\n2,1\n" * 10, mtime=0))


def _read_table(folder: Path) -> None:
    for name in ("table.csv", "table.csv.gz"):
        csv_table(folder / name, TableOptions.of(Experiment()))


def _read_cached(folder: Path) -> object:
    """A file that cannot be read is made again, whatever is wrong with it."""
    try:
        return cache._read(folder / "cached.safetensors")
    except Exception as error:
        raise UserError("FILE", "cached.safetensors", str(error)) from None


READERS = {
    "upload": Reader(_one("upload.safetensors", lambda: upload().encode()), _read_upload, ("upload.safetensors",)),
    "broadcast": Reader(
        _one("broadcast.safetensors", lambda: upload().encode()), _read_broadcast, ("broadcast.safetensors",)
    ),
    "hello": Reader(
        _facts(id=3, brings=True, samples=5, shape=[1, 8, 8], classes=["a", "b"], domains=["c"]),
        _read_hello,
        ("facts.json",),
    ),
    "answer": Reader(_facts(id=3, loss=0.5), _read_answer, ("facts.json",)),
    "scores": Reader(_facts(id=3, scores=asdict(SCORES)), _read_scores, ("facts.json",)),
    "question": Reader(
        _facts(run="abc", experiment=asdict(Experiment()), clock=[0, [3]]), _read_question, ("facts.json",)
    ),
    "config": Reader(_one("config.yaml", lambda: Experiment().to_yaml().encode()), _read_config, ("config.yaml",)),
    "plans": Reader(_make_plans, _read_plans, ("compare.yaml", "sweep.yaml", "reproduce.yaml")),
    "deployment": Reader(_make_owner, _read_owner, ("federation.yaml", "client.yaml", "nodes.json", "flower.json")),
    "watch": Reader(
        _make_comparison, _read_watch, ("compare.yaml", "mp-fedcl-seed0/config.yaml", "mp-fedcl-seed0/rounds.jsonl")
    ),
    "list": Reader(_make_run, _read_list, ("config.yaml", "result.json")),
    "list of what is cut off": Reader(_make_cut_off, _read_list, ("config.yaml", "rounds.jsonl")),
    "report": Reader(
        _make_run,
        _read_report,
        ("rounds.jsonl", "result.json", "snapshot.safetensors", "motion.safetensors", "profile.json", "config.yaml"),
    ),
    "result": Reader(_make_run, _read_result, ("result.json",)),
    "resume": Reader(
        _make_cut_off,
        _read_resume,
        ("rounds.jsonl", "checkpoint/state.safetensors", "checkpoint/clients-0.bin"),
    ),
    "theory": Reader(_make_run, _read_theory, ("rounds.jsonl", "checkpoint/state.safetensors")),
    "export": Reader(_make_run, _read_export, ("rounds.jsonl", "checkpoint/state.safetensors")),
    "model": Reader(
        _make_model,
        _read_model,
        ("card.json", "prototypes.safetensors", "model.safetensors", "held-out.safetensors"),
    ),
    "encoder": Reader(_make_encoder, _read_encoder, ("encoder.safetensors",)),
    "start": Reader(_make_start, _read_start, ("a.safetensors",)),
    "imported": Reader(_make_start, _read_imported, ("a.pth",), valid=False),
    "idx": Reader(
        _make_mnist, _read_mnist, MNIST[:2], packed=functools.partial(gzip.compress, mtime=0), unpacked=gzip.decompress
    ),
    "gzip": Reader(_make_mnist, _read_mnist, MNIST[:2]),
    "mat": Reader(_make_mat, _read_mat, ("plain.mat", "packed.mat")),
    "libsvm": Reader(_make_libsvm, _read_libsvm, ("usps.bz2",), packed=bz2.compress, unpacked=bz2.decompress),
    "bzip2": Reader(_make_libsvm, _read_libsvm, ("usps.bz2",)),
    "hdf5": Reader(_make_h5, _read_h5, ("usps.h5",)),
    "cifar": Reader(_make_cifar, _read_cifar, ("train", "meta")),
    "archive": Reader(_make_cifar, _read_archive, ("cifar-10.tar.gz",)),
    "tar": Reader(
        _make_cifar,
        _read_archive,
        ("cifar-10.tar.gz",),
        packed=functools.partial(gzip.compress, mtime=0),
        unpacked=gzip.decompress,
    ),
    "fc100": Reader(_make_fc100, _read_fc100, FC100[:1]),
    "leaf": Reader(_one("all_data_0.json", _leaf), lambda folder: femnist([folder], None), ("all_data_0.json",)),
    "table": Reader(_make_table, _read_table, ("table.csv", "table.csv.gz")),
    "cached": Reader(
        lambda folder: cache._write(folder / "cached.safetensors", load("digits")),
        _read_cached,
        ("cached.safetensors",),
    ),
    "pfllib": Reader(_make_pfllib, _read_pfllib, ("train/0.npz", "train.pickle")),
    "npz": Reader(_make_npz, _read_npz, ("plain.npz", "packed.npz")),
    "ts": Reader(_one("x.ts", lambda: TS), lambda folder: ts([folder / "x.ts"], None), ("x.ts",)),
    "arff": Reader(_one("x.arff", lambda: ARFF), lambda folder: arff([folder / "x.arff"], None), ("x.arff",)),
    "text": Reader(_make_text, _read_text, ("lines.tsv", "table.tab")),
    "encodings": Reader(
        _one("encodings.json", lambda: json.dumps(ENCODINGS).encode()),
        lambda folder: [decoded(said) for said in _json_list(folder / "encodings.json")],
        ("encodings.json",),
    ),
    "federation": Reader(
        _make_federation,
        lambda folder: read_federation(folder / "federation.safetensors"),
        ("federation.safetensors",),
    ),
    "npy": Reader(_one("images.npy", _array), _read_array, ("images.npy",)),
    "pictures": Reader(_make_pictures, _read_pictures, tuple(f"own/a/one.{kind}" for kind in KINDS)),
    "zip": Reader(_make_pictures, _read_zips, ("train.zip",)),
}

GROUPS = {
    "messages": ("upload", "broadcast", "hello", "answer", "scores", "question"),
    "configurations": ("config", "plans", "deployment"),
    "runs": ("watch", "result"),
    "archives": ("gzip", "bzip2", "hdf5", "archive", "tar", "npz", "zip", "table"),
    "datasets": ("idx", "mat", "libsvm", "cifar", "fc100", "leaf", "federation", "npy", "pictures"),
}
"""Quick readers that atheris tries together; the others are too slow for it."""
