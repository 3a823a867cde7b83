"""The ``turns`` command. Subcommands are imported when they run, so that ``turns --help`` is fast."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from api_client.contract.errors import (
    HelixError,
    IdempotencyConflict,
    KeyNotFound,
    SessionBusy,
    SettingsError,
    StoreUnavailable,
    TurnNotFinished,
    TurnNotFound,
    TurnNotSuspended,
)
from api_client.contract.plugins import COMMAND, UnusablePlugin, find_plugins, is_known
from worker.cli.commands import COMMANDS, SECTIONS, TOP, import_plugin_command, is_ours, list_children
from worker.processes import process_tuning

#: Exit codes: success; negative result (not found, not passed, busy); usage or set-up error.
FINE, NO, USAGE = 0, 1, 2
INTERRUPTED = 130


class CommandGroup(click.Group):
    """A group of commands, or the root command. Imports a command only when the command runs."""

    def __init__(self, name: str | None = None, **more: Any) -> None:
        super().__init__(name, **more)
        self.path = "" if self.callback else name or ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*list_children(self.path)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command with this name. Raises ``UsageError`` with a suggestion for an unknown name."""
        path = f"{self.path} {cmd_name}".lstrip()
        if path in COMMANDS:
            module, _, attribute = f"worker.cli.{COMMANDS[path][0]}".partition(":")
            with process_tuning.import_without_unused():
                command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        if is_known(COMMAND, plugin := path.replace(" ", ".")) and not is_ours(path):
            try:
                with process_tuning.import_without_unused():
                    return import_plugin_command(plugin)
            except UnusablePlugin as error:
                raise click.UsageError(str(error)) from None
        if line := None if self.path else list_children("").get(cmd_name):
            return CommandGroup(cmd_name, help=line, epilog=f"`turns {cmd_name} COMMAND --help` explains a command.")
        raise click.UsageError(f"no command {path!r}; {_suggest_command(self.path, cmd_name)}")

    def invoke(self, ctx: click.Context) -> int:
        """Run the command. Succeed even if the reader of the output, such as ``head``, ends first."""
        try:
            super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help text by section, without importing them."""
        sections = dict[str, list[tuple[str, str]]]() if self.path else {name: [] for name in SECTIONS}
        for name, line in list_children(self.path).items():
            section = "Commands" if self.path else TOP[name][0] if name in TOP else "Plug-ins"
            sections.setdefault(section, []).append((name, line))
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in rows])


def _suggest_command(group: str, name: str) -> str:
    import difflib

    paths = [*COMMANDS, *TOP, *(plugin.replace(".", " ") for plugin in find_plugins(COMMAND))]
    moved = [path for path in paths if path.rpartition(" ")[2] == name]
    near = {path.removeprefix(f"{group} ") if group else path: path for path in paths}
    close = moved[:1] or [near[each] for each in difflib.get_close_matches(name, near, n=1)]
    return f"did you mean {close[0]!r}?" if close else f"see `turns {group + ' ' if group else ''}--help`"


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "--version", "-V", package_name="helix-turns", prog_name="turns")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run LLM agents behind a chat interface; an answer is accepted only if it passes every rule.

    A turn is one message and its one answer. `turns COMMAND --help` explains a command and gives an example.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit the process. Print expected errors on stderr, one line per problem."""
    for stream in (sys.stdout, sys.stderr):  # replace characters that the terminal cannot show
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["help"]:  # `turns help submit` means `turns submit --help`
        arguments = [*arguments[1:], "--help"]
    try:
        _reject_non_text(arguments)
        code = cli.main(args=arguments, prog_name="turns", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt) as error:
        click.echo(err=True, nl=error.__cause__ is None)  # at a question, click ends no line behind a terminal's ^C
        code = INTERRUPTED
    except click.UsageError as error:
        code = _print_usage_error(error)
    except click.ClickException as error:
        code = _print_problems([error.format_message()], USAGE)
    except SettingsError as error:
        code = _print_problems(error.problems, USAGE, error.code)
    except (TurnNotFound, KeyNotFound, SessionBusy, IdempotencyConflict, TurnNotFinished, TurnNotSuspended) as error:
        code = _print_problems([str(error)], NO, error.code)
    except StoreUnavailable as error:
        code = _print_problems([_describe_unavailable_store(error)], USAGE, error.code)
    except HelixError as error:
        code = _print_problems([str(error)], USAGE, error.code)
    except OSError as error:
        said = (
            f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error.strerror or str(error)
        )
        code = _print_problems([said], USAGE)
    sys.exit(code)


def _describe_unavailable_store(error: StoreUnavailable) -> str:
    stored = (f"{turn_id} may be stored: see `turns turn show {turn_id}`" for turn_id in error.turn_ids)
    return "; ".join([str(error), *stored, "`turns doctor` says more"])


def _reject_non_text(arguments: list[str]) -> None:
    for place, argument in enumerate(arguments, start=1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"argument {place} is not UTF-8 text: {argument[:40]!a}") from None


def _print_usage_error(error: click.UsageError) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # a group alone
        error.show()
        return error.exit_code
    where = f" (see `{error.ctx.command_path} --help`)" if error.ctx and error.ctx.parent else ""
    said = error.format_message()
    if isinstance(error, click.MissingParameter):  # click puts each choice on a line of its own
        said = " ".join(said.split())
    return _print_problems([said + where], error.exit_code)


def _print_problems(problems: list[str], exit_code: int, code: str = "") -> int:
    for problem in problems:
        click.echo(f"turns: {problem}{f' [{code}]' if code else ''}", err=True)
    return exit_code
