"""A line of rounds.jsonl says how large the largest upload was, and is read back."""

from protofed.runs.folder import RunFolder
from tests.support.changed_source import played
from tests.support.command_line import rounds_of

folder = played()
(line,) = rounds_of(folder)
assert line["bytes_up"] / 2 <= line["largest_upload"] <= line["bytes_up"]
(read,) = RunFolder.open(folder).played()
assert read.to_json() == line
