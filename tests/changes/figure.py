"""--figures draws traffic too."""

from pathlib import Path

from tests.support.changed_source import played
from tests.support.command_line import succeed

succeed(Path(), "report", str(played()), "--figures", "figures")
assert Path("figures/traffic.png").stat().st_size > 1000
assert Path("figures/traffic.svg").is_file()
