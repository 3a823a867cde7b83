"""The table of all commands of ``turns``: kernel, capabilities and plug-ins."""

from __future__ import annotations

import click

from api_client.contract.catalogue import collect_declarations
from api_client.contract.plugins import COMMAND, UnusablePlugin, find_plugins, import_object, load_plugin

#: Sections of ``turns --help``, in their order.
SECTIONS = ("Start", "Turns", "Rules", "Operation")
#: Commands and groups at the top by name: section, module and function below ``worker.cli`` (a group has none), help.
_KERNEL_TOP = {
    "demo": ("Start", "installation.demo:demo", "Watch turns rejected, repaired and delivered; no key needed."),
    "init": ("Start", "installation.init:init", "Write a settings file: which agent, which rules; try it once."),
    "up": ("Start", "installation.up:up", "Start broker, worker, relay and Flower; Ctrl-C ends them."),
    "doctor": ("Start", "checks.doctor:doctor", "Find faults and name each remedy."),
    "config": ("Start", "checks.config:config", "Show every setting, its value and where it comes from."),
    "submit": ("Turns", "turns.turn:submit", "Submit a message; wait for its answer or watch it."),
    "turn": ("Turns", "", "List, watch, show, explain, cancel and export turns."),
    "inbox": ("Turns", "turns.inbox:inbox", "Decide turns that wait for a person."),
    "validate": ("Rules", "validate:validate", "Validate files without a turn."),
    "policy": ("Rules", "", "Check, compare, try and version rules of answers."),
    "stats": ("Rules", "", "Show outcomes, retry rates, cost, and what runs now."),
    "run": ("Operation", "", "Run one process: worker, relay, broker, mcp or traces."),
    "worker": ("Operation", "", "List, quiet, drain and stop workers; close idle agents."),
    "keys": ("Operation", "keys:keys", "Create, list and revoke the relay's API keys."),
    "openwebui": ("Operation", "", "Print Open WebUI's settings, and check them."),
    "data": ("Operation", "", "Back up, restore, clear and audit what is stored."),
}
#: Commands in groups by path: module and function below ``worker.cli``, help line.
_KERNEL_NESTED = {
    "turn list": ("turns.listing:list_turns", "List turns by state, outcome, model, session, owner, rule, time, text."),
    "turn watch": ("turns.turn:watch", "Follow a turn, from its first event to its last."),
    "turn show": ("turns.turn:show", "Show a turn: state, outcome, answer, error."),
    "turn attempts": ("turns.turn:attempts", "Show each attempt of a turn: issues, evidence, feedback."),
    "turn explain": ("explain:explain", "Explain an error code, and what to do."),
    "turn cancel": ("turns.actions:cancel", "Cancel a turn, or all turns that match filters."),
    "turn replay": ("turns.replay:replay", "Submit finished turns again, as new turns."),
    "turn dead": ("turns.dead:dead", "List turns that kept killing their workers, and what those died of."),
    "turn drop": ("turns.actions:drop", "Take turns off the list of dead letters."),
    "turn export": ("turns.bundle:export", "Write a turn as one JSON text, or all rejected answers as JSON lines."),
    "turn bundle": ("turns.bundle:bundle", "Pack a bug report about a turn, with secrets masked."),
    "policy new-rule": ("validator_scaffold:new_rule", "Write a new rule, with its test and its page."),
    "stats summary": ("figures.stats:summary", "Show how turns ended, what rules did, cost and time."),
    "stats retry-rate": (
        "figures.stats:retry_rate",
        "Show how often agents were asked again, and because of which rule.",
    ),
    "stats top": ("figures.top:top", "Show what runs now, live: turns, queues, rates, last outcomes."),
    "run worker": ("installation.worker:worker", "Run agents and validate answers."),
    "run relay": ("installation.relay:relay", "Run the OpenAI-compatible relay."),
    "run broker": ("installation.broker:broker", "Run the embedded broker in the foreground."),
    "worker list": ("installation.workers:list_workers", "Show every worker process and the turns it holds."),
    "worker quiet": ("installation.workers:quiet", "Make a worker take no new turns."),
    "worker drain": ("installation.workers:drain", "Make a worker take no new turns, and end once it holds none."),
    "worker stop": ("installation.workers:stop", "End a worker now."),
    "worker resume": ("installation.workers:resume", "Let a worker take turns again."),
    "worker close-agent": ("turns.sessions:close_agent", "Stop the idle agent that is kept for a session."),
    "openwebui print": ("installation.openwebui:print_settings", "Print Open WebUI's settings for this installation."),
    "openwebui check": ("installation.openwebui:check", "Find misconfigurations here and in Open WebUI."),
    "data gc": ("installation.gc:gc", "Delete records and files past their retention; --dry-run counts."),
    "data audit": ("turns.audit:audit", "Show who cancelled, replayed or dropped what, and when."),
    "data import-feedback": ("turns.feedback:import_feedback", "Join Open WebUI's exported thumbs to turns."),
}
#: Commands and groups at the top, with those of capabilities: name to section, place, help line.
TOP: dict[str, tuple[str, str, str]] = {**_KERNEL_TOP, **collect_declarations("TOP_COMMANDS")}
#: All commands but those of plug-ins: path to place and help line.
COMMANDS: dict[str, tuple[str, str]] = {
    **{name: (place, line) for name, (_, place, line) in TOP.items() if place},
    **_KERNEL_NESTED,
    **collect_declarations("COMMANDS"),
}


def is_ours(path: str) -> bool:
    """Return True if the path names a command or group that no plug-in may replace."""
    return path in TOP or path in COMMANDS


def find_plugin_commands() -> dict[str, tuple[str, str]]:
    """Return the import path and help line of each plug-in command. Unusable plug-ins have an error as help."""
    paths = {name.replace(".", " "): name for name in sorted(find_plugins(COMMAND))}
    return {path: load_plugin_command(name) for path, name in paths.items() if not is_ours(path)}


def load_plugin_command(name: str) -> tuple[str, str]:
    """Return the import path and help line of a plug-in command, or an empty path and the error."""
    try:
        place, line = load_plugin(COMMAND, name)[name]
    except UnusablePlugin as error:
        return "", str(error)
    except (LookupError, TypeError, ValueError):
        return "", f"the command {name!r}: its plug-in has no COMMANDS with its module, its function and its help line"
    return str(place), str(line)


def import_plugin_command(name: str) -> click.Command:
    """Import and return a plug-in command. Raises ``UnusablePlugin``."""
    place, problem = load_plugin_command(name)
    if not place:
        raise UnusablePlugin(problem)
    command = import_object(place, f"the command {name!r}")
    if not isinstance(command, click.Command):
        raise UnusablePlugin(f"the command {name!r} ({place}) is no command of click")
    return command


def list_children(group: str) -> dict[str, str]:
    """Return the commands and subgroups of a group, each with its help line. An empty ``group`` is the top level."""
    tables = {**COMMANDS, **find_plugin_commands()}
    found = {} if group else {name: line for name, (_, _, line) in TOP.items()}
    for path, (_, line) in tables.items():
        above, _, name = path.rpartition(" ")
        if above == group:
            found.setdefault(name, line)
        elif not group:
            found.setdefault(above.split()[0], f"Commands of the plug-in {above}.")
    return found
