"""`protofed cite` names a paper, and a method that does not exist is one line on stderr."""

from pathlib import Path

from tests.support.command_line import invoke, succeed

assert "https://arxiv.org/abs/2105.00243" in succeed(Path(), "cite", "fedproto").out
wrong = invoke(Path(), "cite", "fedprot")
assert wrong.code == 2
assert "fedproto" in wrong.err
