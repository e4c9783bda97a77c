"""Nothing gets past the door that has not the expected form, and nothing but a refusal comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from protofed.deploy import wire
from protofed.deploy.records import as_record, from_records, to_records
from protofed.errors import RefusedError
from protofed.messages import Upload
from protofed.prototypes import Prototypes
from protofed.trust.screening import SLOTS, Schema, tensors_of

CLASSES, SLOT, SIZE = 3, 2, 4


def upload() -> Upload:
    vectors = torch.arange(24.0).view(CLASSES, SLOT, SIZE)
    counts = torch.tensor([[2.0, 1.0], [0.0, 0.0], [5.0, 0.0]])
    prototypes = {"means": Prototypes(vectors * (counts > 0).unsqueeze(-1), counts)}
    return Upload({"w": torch.ones(2, 3), "steps": torch.tensor(7)}, prototypes, {"samples": torch.tensor(9)})


SCHEMA = Schema.of(upload())


def test_a_message_gets_through_as_it_is() -> None:
    made = Upload.from_flat(SCHEMA.check(tensors_of(upload().encode())))
    assert made.encode() == upload().encode()
    assert len(upload().encode()) == upload().size()
    assert Upload().encode() == b""
    assert Upload.decode(b"").flat() == {}


def changed(name: str, tensor: Tensor | None) -> bytes:
    flat = upload().flat() | ({} if tensor is None else {name: tensor})
    if tensor is None:
        del flat[name]
    return save({key: value.contiguous() for key, value in flat.items()})


SET = "prototypes/means"
BAD: dict[str, Callable[[], bytes]] = {
    "missing": lambda: changed("weights/w", None),
    "more": lambda: changed("weights/v", torch.ones(1)),
    "another part": lambda: changed("secrets/v", torch.ones(1)),
    "shape": lambda: changed("weights/w", torch.ones(3, 2)),
    "type": lambda: changed("weights/w", torch.ones(2, 3, dtype=torch.float64)),
    "nan": lambda: changed("weights/w", torch.full((2, 3), torch.nan)),
    "infinite": lambda: changed(f"{SET}/vectors", torch.full((3, SIZE), torch.inf)),
    "vectors shape": lambda: changed(f"{SET}/vectors", torch.ones(3, SIZE + 1)),
    "vectors rank": lambda: changed(f"{SET}/vectors", torch.ones(3)),
    "vectors of no rank": lambda: changed(f"{SET}/vectors", torch.tensor(1.0)),
    "index of no rank": lambda: changed(f"{SET}/index", torch.tensor(1, dtype=torch.int32)),
    "vectors type": lambda: changed(f"{SET}/vectors", torch.ones(3, SIZE, dtype=torch.float16)),
    "index shape": lambda: changed(f"{SET}/index", torch.ones(3, 3, dtype=torch.int32)),
    "index type": lambda: changed(f"{SET}/index", torch.ones(3, 2, dtype=torch.int64)),
    "class too high": lambda: changed(f"{SET}/index", torch.tensor([[0, 1], [1, 1], [6, 1]], dtype=torch.int32)),
    "class below 0": lambda: changed(f"{SET}/index", torch.tensor([[0, 1], [1, 1], [-1, 1]], dtype=torch.int32)),
    "place twice": lambda: changed(f"{SET}/index", torch.tensor([[0, 1], [1, 1], [1, 1]], dtype=torch.int32)),
    "count of 0": lambda: changed(f"{SET}/index", torch.tensor([[0, 1], [1, 1], [4, 0]], dtype=torch.int32)),
    "huge": lambda: changed(f"{SET}/shape", torch.tensor([CLASSES, 2**30, SIZE], dtype=torch.int32)),
    "too many": lambda: changed(f"{SET}/shape", torch.tensor([CLASSES, SLOTS + 1, SIZE], dtype=torch.int32)),
    "negative": lambda: changed(f"{SET}/shape", torch.tensor([CLASSES, -1, SIZE], dtype=torch.int32)),
    "leading axis": lambda: changed(f"{SET}/shape", torch.tensor([1, CLASSES, SLOT, SIZE], dtype=torch.int32)),
    "empty": lambda: b"",
    "text": lambda: b"hello",
}


def test_more_prototypes_of_a_class_than_the_method_has_are_refused() -> None:
    assert Schema.of(upload(), slots=SLOT).check(tensors_of(upload().encode()))
    with pytest.raises(RefusedError, match="too many"):
        Schema.of(upload(), slots=SLOT - 1).check(tensors_of(upload().encode()))


def test_what_would_be_large_when_unpacked_is_refused_before_it_is() -> None:
    classes, size = 200, 512
    flat = {
        f"{SET}/vectors": torch.ones(1, size),
        f"{SET}/index": torch.tensor([[0, 1]], dtype=torch.int32),
        f"{SET}/shape": torch.tensor([classes, SLOTS, size], dtype=torch.int32),  # 1.7 GB
    }
    with pytest.raises(RefusedError, match="too many"):
        Schema({}, {"means": (torch.float32, classes, size)}).check(flat)
    model = {"w": torch.ones(1)}
    needed = 4 * classes * SLOTS * size
    assert Schema.of_broadcast(flat, model, classes, size, needed).check(flat)
    with pytest.raises(RefusedError, match="too many"):
        Schema.of_broadcast(flat, model, classes, size, needed - 1).check(flat)


@pytest.mark.parametrize("what", BAD)
def test_anything_else_is_refused(what: str) -> None:
    with pytest.raises(RefusedError):
        SCHEMA.check(tensors_of(BAD[what]()))


@settings(max_examples=300, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8),
    cut=st.integers(0, 900),
)
def test_damaged_bytes_are_refused_or_of_the_right_form(places: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(upload().encode())
    for place, value in places:
        data[place % len(data)] = value
    try:
        flat = SCHEMA.check(tensors_of(bytes(data[: len(data) - cut])))
    except RefusedError:
        return
    assert Schema.of(Upload.from_flat(flat)) == SCHEMA


def model() -> dict[str, Tensor]:
    return {"w": torch.ones(2, 3), "steps": torch.tensor(7)}


def test_a_broadcast_must_fit_the_model() -> None:
    pool = Prototypes(torch.ones(5, CLASSES, SLOT, SIZE), torch.ones(5, CLASSES, SLOT))
    flat = Upload({"w": torch.zeros(2, 3)}, {"pool": pool}).flat()
    assert Schema.of_broadcast(flat, model(), CLASSES, SIZE, 10_000).check(flat).keys() == flat.keys()
    for wrong in (
        {"weights/v": torch.ones(1)},
        {"weights/w": torch.ones(3, 2)},
        {"kept/w": torch.ones(2, 3)},
        {"prototypes/pool/shape": torch.tensor([2**20, CLASSES, SLOT, SIZE], dtype=torch.int32)},
        {"prototypes/more/vectors": torch.ones(1, SIZE)},
        {"numbers/x": torch.tensor(torch.nan)},
        {"numbers/x": torch.tensor(1.0).to(torch.float8_e4m3fn)},
        {"numbers/x": torch.tensor(torch.nan, dtype=torch.complex64)},
    ):
        with pytest.raises(RefusedError):
            Schema.of_broadcast(flat | wrong, model(), CLASSES, SIZE, 10_000).check(flat | wrong)


def test_facts_and_message_survive_the_way_and_others_do_not() -> None:
    content = wire.pack({"id": 3, "word": "é"}, upload())
    facts, data = wire.unpack(content, 10_000)
    assert (facts["id"], facts["word"], data) == (3, "é", upload().encode())
    assert content.size() == len(data) + len(content.text.encode()) + wire.DIGEST
    assert from_records(to_records(content)) == content
    with pytest.raises(RefusedError, match="larger"):
        wire.unpack(content, len(data) - 1)
    right = json.dumps({"protocol": wire.PROTOCOL})
    for text in ("no json", "[]", "{}", '{"protocol": 1}', right + " " * wire.LARGEST_FACTS, "[" * 100_000):
        with pytest.raises(RefusedError):
            wire.unpack(wire.seal(text, b""), 100)
    assert wire.unpack(wire.seal(right, b""), 100) == ({"protocol": wire.PROTOCOL}, b"")
    with pytest.raises(RefusedError, match="damaged"):
        wire.unpack(wire.seal(right, b"")._replace(digest=bytes(32)), 100)


def test_records_that_are_no_packet_are_refused() -> None:
    part, facts = as_record(b"x"), ConfigRecord({"json": "{}", "digest": bytes(32)})
    assert from_records(RecordDict({"facts": facts})).data == b""
    assert from_records(RecordDict({"facts": facts, "0": part, "1": part})).data == b"xx"
    for wrong in (
        RecordDict(),
        RecordDict({"0": part}),
        RecordDict({"facts": ConfigRecord({"json": 5, "digest": bytes(32)}), "0": part}),
        RecordDict({"facts": ConfigRecord({"json": "{}"}), "0": part}),
        RecordDict({"facts": ConfigRecord({"json": "{}", "digest": "0"}), "0": part}),
        RecordDict({"facts": facts, "0": ConfigRecord()}),
        RecordDict({"facts": facts, "0": ConfigRecord({"bytes": "text"})}),
        RecordDict({"facts": facts, "0": ArrayRecord()}),
        RecordDict({"facts": facts, "1": part}),
        RecordDict({"facts": ArrayRecord(), "0": part}),
    ):
        with pytest.raises(RefusedError, match="it is not a message"):
            from_records(wrong)


def test_a_part_that_is_there_many_times_is_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records may share a part: a megabyte that is sent can stand for any number of them."""
    monkeypatch.setattr("protofed.deploy.records.LARGEST", 10)
    part, facts = as_record(b"1234"), ConfigRecord({"json": "{}", "digest": bytes(32)})
    assert len(from_records(RecordDict({"facts": facts, "0": part, "1": part})).data) == 8
    with pytest.raises(RefusedError, match="larger than allowed"):
        from_records(RecordDict({"facts": facts, **{str(number): part for number in range(3)}}))


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 999])
def test_frames_between_processes_survive_the_way(data: bytes) -> None:
    line = BytesIO()
    wire.write_frame(line, {"kind": "é"}, data)
    wire.write_frame(line, {})
    line.seek(0)
    assert wire.read_frame(line) == ({"kind": "é"}, data)
    assert wire.read_frame(line) == ({}, b"")
    with pytest.raises(EOFError):
        wire.read_frame(line)
    with pytest.raises(EOFError):
        wire.read_frame(BytesIO(line.getvalue()[:20]))
