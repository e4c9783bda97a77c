"""Typer's own errors, in the words of ours; they are told by their names, for their classes depend on its version."""

from __future__ import annotations

import re
from typing import Any

from protofed.errors import UserError, missing_value, misused, suggestion


def is_usage_error(error: Exception) -> bool:
    """Whether Typer complains about the command line."""
    return hasattr(error, "format_message")


def usage_error(error: Any) -> UserError:
    """What Typer complains about, as an error of ours."""
    command = error.ctx.command_path if getattr(error, "ctx", None) else "protofed"
    found = _of_option(error, command) or _of_word(error, command)
    message = str(error.format_message()).rstrip(".")
    return found or misused(
        command, f"{message[:1].lower()}{message[1:]}", hint=f"`{command} --help` shows what it takes"
    )


def _of_option(error: Any, command: str) -> UserError | None:
    """An option that is not there, or a value that is not."""
    kind, see = type(error).__name__, f"{command} --help"
    if kind == "NoSuchOption":
        hint = suggestion(error.option_name, _flags(error), see)
        return UserError("OPTION", error.option_name, f"`{command}` has no such option", hint=hint)
    if kind == "MissingParameter":
        return missing_value(_name(error.param), f"`{command}` needs one", hint=f"`{see}` shows what it takes")
    if kind == "BadOptionUsage" and "requires" in error.message:
        return missing_value(error.option_name, "it needs one")
    if kind == "BadOptionUsage":
        return misused(error.option_name, "it takes no value")
    return None


def _of_word(error: Any, command: str) -> UserError | None:
    """A command, an argument or a number that does not do; Typer tells them in words alone."""
    message, see = str(error.message), f"{command} --help"
    if message.startswith("Missing command"):
        return missing_value("COMMAND", f"`{command}` needs one", hint=f"`{see}` lists them all")
    if found := re.match(r"No such command '(.*?)'", message):
        hint = suggestion(found[1], list(error.ctx.command.commands), see)
        return UserError("COMMAND", found[1], f"`{command}` has no such command", hint=hint)
    if found := re.match(r"'(.*)' is not (a valid \w+)", message):
        return UserError(_name(error.param), found[1], f"it is not {found[2]}")
    if found := re.match(r"Got unexpected extra arguments? \((.*)\)", message):
        return UserError("ARGUMENT", found[1], f"`{command}` takes no more", hint=f"`{see}` shows what it takes")
    return None


def _flags(error: Any) -> list[str]:
    """Every option of the command that was called."""
    return [flag for one in error.ctx.command.params for flag in (*one.opts, *one.secondary_opts) if flag[0] == "-"]


def _name(parameter: Any) -> str:
    """An option as it is written, or an argument as help shows it."""
    flags: list[str] = [flag for flag in parameter.opts if flag.startswith("--")]
    return flags[0] if flags else str(parameter.human_readable_name).strip("[]")
