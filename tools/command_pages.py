"""python -m tools.command_pages: write the pages in docs/commands from the command line.  make command-pages"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from protofed.cli import app
from tools.markdown import wrapped

FOLDER = Path(__file__).parent.parent / "docs" / "commands"
PAGES = {
    "running": (
        "Commands: runs and studies",
        (
            "run",
            "compare",
            "resume",
            "sweep",
            "choose-k",
            "reproduce",
            "watch",
            "ui",
            "report",
            "animate",
            "theory",
            "flower-app",
            "flower-baseline",
        ),
    ),
    "data": ("Commands: data", ("data", "split", "datasets", "splits", "encoder train", "encoder import")),
    "using": (
        "Commands: what was trained",
        ("export", "predict", "onboard", "add-class", "playground", "calibrate", "forget"),
    ),
    "lists": ("Commands: what there is", ("methods", "models", "attacks", "defences")),
    "deploy": ("Commands: a federation", ("deploy",)),
}
"""The title of each page, and the commands that it describes; the name of a group stands for all of its commands."""

INDEX = """# Commands

Written by `make command-pages` from the command line itself; `protofed COMMAND --help` prints the same.
[By example](examples.md) has the most used ones as they are typed.

- What an experiment is made of has the same options everywhere: [the options of an experiment](options.md).
- `--json` prints JSON on stdout, and nothing else goes there; progress and errors go to stderr.
- Exit codes: 0, it worked; 1, it failed; 2, the input was wrong, in one line that says what and how to put it right;
  3, some runs of a study failed, or `deploy client --explain` found something to refuse; 130, it was interrupted.
- A run that was interrupted goes on with `protofed resume`.

"""
OPTIONS = """# The options of an experiment

Written by `make command-pages`. `protofed run`, `compare`, `sweep` and `choose-k` take all of them; other commands
those that they need. In a YAML file (`--config`) and in Python the same names have underscores: `--train-size 200` is
`train_size: 200` and `train_size=200`. `--no-NAME` turns off what is on.
"""


def main() -> None:
    """Write the pages; examples.md, which is written by hand, stays."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    commands = dict(_commands(typer.main.get_command(app)))
    homes = {name: _home(name) for name in commands}
    said = {name: one.help.partition("\n\n")[0] for name, one in commands.items()}  # a row has one paragraph
    rows = [f"| [`protofed {name}`]({homes[name]}.md#{_anchor(name)}) | {said[name]} |" for name in commands]
    texts = {"README.md": wrapped(INDEX + "\n".join(["| command | what it does |", "|---|---|", *rows]) + "\n")}
    texts["options.md"] = wrapped(OPTIONS + _options(commands["run"]))
    for page, (title, _) in PAGES.items():
        parts = [_section(name, commands[name]) for name in commands if homes[name] == page]
        texts[f"{page}.md"] = wrapped(f"# {title}\n\n" + "\n".join(parts))
    return texts


def _commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, by how it is typed."""
    for name, command in group.commands.items():
        typed = f"{above}{name}"
        if hasattr(command, "commands"):
            yield from _commands(command, f"{typed} ")
        else:
            yield typed, command


def _home(command: str) -> str:
    """The page of a command."""
    for page, (_, commands) in PAGES.items():
        if command in commands or command.split(maxsplit=1)[0] in commands:
            return page
    raise LookupError(f"no page of PAGES in tools/command_pages.py is for `protofed {command}`")


def _anchor(command: str) -> str:
    return f"protofed-{command}".replace(" ", "-")


def _section(name: str, command: Any) -> str:
    """A command: what it does, an example, what it takes."""
    words = [_shown(each) for each in command.params if each.param_type_name == "argument"]
    lines = [f"## protofed {name}", "", command.help, "", "```sh", " ".join(["protofed", name, *words, "[OPTIONS]"])]
    example = (command.epilog or "").removeprefix("Example: ")
    lines += [example] * bool(example) + ["```", ""]
    own = [each for each in command.params if not getattr(each, "rich_help_panel", None) and each.name != "help"]
    if own:
        lines += ["| | |", "|---|---|", *(_row(each) for each in own), ""]
    grouped = list(
        dict.fromkeys(each.rich_help_panel for each in command.params if each not in own and each.name != "help")
    )
    if grouped:
        links = [f"[{title}](options.md#{title.lower()})" for title in grouped]
        lines += [f"Also options of an experiment: {', '.join(links)}.", ""]
    return "\n".join(lines)


def _options(command: Any) -> str:
    """The options of an experiment, a table for each group."""
    groups: dict[str, list[Any]] = {}
    for each in command.params:
        if title := getattr(each, "rich_help_panel", None):
            groups.setdefault(title, []).append(each)
    parts = [f"\n## {title}\n\n| | |\n|---|---|\n" + "\n".join(map(_row, found)) for title, found in groups.items()]
    return "\n".join(parts) + "\n"


def _row(parameter: Any) -> str:
    said = " ".join((parameter.help or "").split()).replace("|", "\\|")
    return f"| `{_shown(parameter)}` | {said} |"


def _shown(parameter: Any) -> str:
    """How a parameter is typed."""
    if parameter.param_type_name == "argument":
        word = (parameter.metavar or parameter.name).upper()
        word = f"{word.rstrip('…')}…" if parameter.nargs != 1 else word
        return word if parameter.required else f"[{word.strip('[]')}]"
    flag = next(each for each in parameter.opts if each.startswith("--"))
    return flag if parameter.is_flag else f"{flag} {(parameter.metavar or parameter.type.name).upper()}"


if __name__ == "__main__":
    main()
