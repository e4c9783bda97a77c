"""Files that were damaged on their way, or made by somebody who means harm: a clean error, or they can be read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.limits import limited
from tests.fuzz.mutations import damaged
from tests.fuzz.readers import READERS, Place

pytestmark = pytest.mark.fuzz

SECONDS = float(os.environ.get("FUZZ_SECONDS", "120")) / 2 / len(READERS)
"""For each reader; the other half is atheris's."""


@pytest.fixture(params=READERS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Valid files."""
    made = Place(READERS[request.param])
    yield made
    made.remove()


def test_damaged_files_are_read_or_refused(place: Place) -> None:
    began = time.perf_counter()
    for file in place.reader.files:
        assert place.read(file, place.content(file)) == place.reader.valid
    each = (time.perf_counter() - began) / len(place.reader.files)
    files = st.sampled_from(place.reader.files)

    @settings(
        max_examples=max(20, min(5000, int(SECONDS / (each + 0.003)))),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(st.data())
    def damage(data: st.DataObject) -> None:
        file = data.draw(files)
        content = data.draw(damaged(file, place.content(file)))
        with limited():
            place.read(file, content)

    damage()
