"""result.json says which version wrote it; one that does not is still read."""

import json
from pathlib import Path

from protofed.internal.digests import parse_json
from protofed.internal.version import VERSION
from protofed.runs.result import Result
from tests.support.changed_source import played
from tests.support.command_line import result_of

folder = played()
assert result_of(folder)["version"] == VERSION
assert json.loads(Result.read(folder).to_json())["version"] == VERSION
values = parse_json((folder / "result.json").read_text())
del values["version"]
Path("result.json").write_text(json.dumps(values))
assert json.loads(Result.read(Path()).to_json()) == values
