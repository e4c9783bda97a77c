"""--figures draws what clients send, in numbers, too."""

from pathlib import Path

from tests.support.changed_source import played
from tests.support.command_line import succeed

succeed(Path(), "report", str(played()), "--figures", "figures")
assert Path("figures/scalars.png").stat().st_size > 1000
assert Path("figures/scalars.svg").is_file()
