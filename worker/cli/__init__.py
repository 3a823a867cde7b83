"""The ``turns`` command, which starts relay and worker and queries the store.

Commands are listed in a table and imported when they run, so that ``turns --help`` is fast.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping

import click

from api_client.contract.catalogue import collect_declarations
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
from api_client.contract.plugins import COMMAND, UnusablePlugin, find_plugins, is_known, load_plugin
from worker.processes import process_tuning

#: Exit codes: success; negative result (not found, not passed, busy); usage or set-up error.
FINE, NO, USAGE = 0, 1, 2
INTERRUPTED = 130

#: Commands of the kernel by name: module and function below ``worker.cli``, and the help line.
_KERNEL_COMMANDS = {
    "demo": ("installation.demo:demo", "Watch turns rejected, repaired, delivered, and a worker killed in the middle."),
    "up": ("installation.up:up", "Start broker, worker, relay and Flower; Ctrl-C ends them all."),
    "submit": ("turns.turn:submit", "Submit a message; wait for its answer or watch it."),
    "top": ("figures.top:top", "Show what runs now, live: turns, queues, rates, last outcomes."),
    "list": ("turns.listing:list_turns", "List turns by state, outcome, model, session, owner, rule, time, text."),
    "watch": ("turns.turn:watch", "Follow a turn, from its first event to its last."),
    "show": ("turns.turn:show", "Show a turn: state, outcome, answer, error."),
    "attempts": ("turns.turn:attempts", "Show each attempt of a turn: issues, evidence, feedback."),
    "cancel": ("turns.actions:cancel", "Stop a turn, or all that a filter names."),
    "replay": ("turns.replay:replay", "Submit finished turns again, as new turns."),
    "drop": ("turns.actions:drop", "Take turns off the dead letter list."),
    "audit": ("turns.audit:audit", "Show who cancelled, replayed or dropped what, and when."),
    "export": ("turns.bundle:export", "Write a turn as one JSON text, or all rejected answers as JSON lines."),
    "import-feedback": ("turns.feedback:import_feedback", "Join Open WebUI's exported thumbs to turns."),
    "bundle": ("turns.bundle:bundle", "Pack what a bug report about a turn needs, secrets masked."),
    "retry-rate": ("figures.stats:retry_rate", "Show how often agents were asked again, and because of which rule."),
    "stats": ("figures.stats:stats", "Show how turns ended, what rules did, cost and time."),
    "dead": ("turns.dead:dead", "Turns that kept killing their workers: list, show, replay, drop."),
    "inbox": ("turns.inbox:inbox", "Turns that wait for a person: list, show, approve, edit, retry, reject."),
    "validate": ("validate:validate", "Validate files, without any turn."),
    "new-validator": ("validator_scaffold:new_validator", "Write a new rule, with its test and its page."),
    "config": ("config:config", "Show every setting, its value and where it comes from."),
    "explain": ("explain:explain", "Explain an error code, and what to do."),
    "doctor": (
        "checks:doctor",
        "Find faults: settings, broker, workers, sessions, disk, the agent's CLI.",
    ),
    "gc": ("installation.gc:gc", "Delete records and files past their retention; --dry-run counts."),
    "worker": ("installation.worker:worker", "Run the workers: for agents and for validation."),
    "workers": (
        "installation.workers:workers",
        "Workers and their turns: list, quiet, drain, stop, resume.",
    ),
    "sessions": ("turns.sessions:sessions", "Agents kept for a session: close."),
    "web": ("installation.web:web", "Run the OpenAI-compatible relay."),
    "keys": ("keys:keys", "API keys of the relay: create, list, revoke."),
    "openwebui": (
        "installation.openwebui:openwebui",
        "Print Open WebUI's settings, and check whether they work.",
    ),
    "broker": ("installation.broker:broker", "Run the embedded broker in the foreground."),
}


def _insert_declared(commands: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return the commands with those of capabilities, each before the command that its declaration names."""
    names, found = [*commands], dict(commands)
    for name, (following, place, line) in collect_declarations("COMMANDS").items():
        names.insert(names.index(following), name)
        found[name] = place, line
    return {name: found[name] for name in names}


#: All commands but those of plug-ins, in the order of the help text.
COMMANDS = _insert_declared(_KERNEL_COMMANDS)


def find_plugin_commands() -> dict[str, tuple[str, str]]:
    """Return the import path and help line of each plug-in command. Unusable plug-ins have an error as help."""
    return {name: _load_plugin_command(name) for name in sorted(find_plugins(COMMAND)) if name not in COMMANDS}


def _load_plugin_command(name: str) -> tuple[str, str]:
    try:
        place, line = load_plugin(COMMAND, name)[name]
    except UnusablePlugin as error:
        return "", str(error)
    return str(place), str(line)


class LazyGroup(click.Group):
    """A command group that imports a command only when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, the built-in commands before those of plug-ins."""
        return [*COMMANDS, *find_plugin_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command with this name.

        Raises:
            UsageError: the command is unknown; suggests a similar command or the missing plug-in.
        """
        if cmd_name in COMMANDS:
            place = f"worker.cli.{COMMANDS[cmd_name][0]}"
        elif is_known(COMMAND, cmd_name):
            place, problem = _load_plugin_command(cmd_name)
            if not place:
                raise click.UsageError(problem)
        else:
            import difflib

            close = difflib.get_close_matches(cmd_name, [*COMMANDS, *find_plugins(COMMAND)], n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see `turns --help`"
            raise click.UsageError(f"no command {cmd_name!r}; {hint}")
        module, _, attribute = place.partition(":")
        with process_tuning.import_without_unused():
            command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> int:
        """Run the command. It also succeeds if the reader of its output, such as ``head``, ends first."""
        try:
            super().invoke(ctx)
        except BrokenPipeError:
            # Python flushes stdout again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands into the help text without importing the commands."""
        for title, table in (("Commands", COMMANDS), ("Commands of plug-ins", find_plugin_commands())):
            if table:
                with formatter.section(title):
                    formatter.write_dl([(name, line) for name, (_, line) in table.items()])


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "--version", "-V", package_name="helix-turns", prog_name="turns")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Durable turns of LLM agents whose answers are validated.

    A turn is one message and its one answer. The agent is asked again until every validator accepts. Whatever crashes
    meanwhile, the turn ends exactly once.

    Settings are environment variables (`turns config`). Exit codes: 0 success, 1 issues or not found, 2 usage or
    set-up.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit the process. Expected errors are printed on stderr, one line per problem."""
    for stream in (sys.stdout, sys.stderr):  # replace characters that the terminal cannot show
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["help"]:  # `turns help submit` means `turns submit --help`
        arguments = [*arguments[1:], "--help"]
    try:
        _reject_non_text(arguments)
        code = cli.main(args=arguments, prog_name="turns", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except click.UsageError as error:
        where = f" (see `{error.ctx.command_path} --help`)" if error.ctx and error.ctx.parent else ""
        code = _print_problems([error.format_message() + where], error.exit_code)
    except click.ClickException as error:
        code = _print_problems([error.format_message()], USAGE)
    except SettingsError as error:
        code = _print_problems(error.problems, USAGE, error.code)
    except (TurnNotFound, KeyNotFound, SessionBusy, IdempotencyConflict, TurnNotFinished, TurnNotSuspended) as error:
        code = _print_problems([str(error)], NO, error.code)
    except StoreUnavailable as error:
        code = _print_problems([f"{error}; `turns doctor` says more"], USAGE, error.code)
    except HelixError as error:
        code = _print_problems([str(error)], USAGE, error.code)
    except OSError as error:
        said = (
            f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error.strerror or str(error)
        )
        code = _print_problems([said], USAGE)
    sys.exit(code)


def _reject_non_text(arguments: list[str]) -> None:
    for place, argument in enumerate(arguments, start=1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"argument {place} is not UTF-8 text: {argument[:40]!a}") from None


def _print_problems(problems: list[str], exit_code: int, code: str = "") -> int:
    for problem in problems:
        click.echo(f"turns: {problem}{f' [{code}]' if code else ''}", err=True)
    return exit_code
