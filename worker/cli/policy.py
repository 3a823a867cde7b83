"""Implement ``turns policy``: check, show and compare policy files, and print their JSON Schema."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from api_client.contract.settings import load_settings
from api_client.contract.tool_calls import ToolRule
from worker.cli import NO
from worker.cli.output import count_noun, fit_line, json_option, write_json, write_result, write_table
from worker.cli.text_input import build_root_option, read_text
from worker.enforcement.policies import (
    ChosenRules,
    PolicyError,
    PolicyFile,
    PolicyRule,
    PolicySubject,
    build_json_schema,
    build_rules,
    choose_rules,
    read_policy,
)
from worker.enforcement.printed_output import divert_output
from worker.runners.tool_rules.agent_tools import AGENTS, check_tool_rule, parse_agent_name


@divert_output()  # of rules in packages, which may print while they are imported
def load_policy_file(file: str) -> PolicyFile:
    """Read and return the policy file that the user named on the command line."""
    try:
        return read_policy(read_text(file))
    except PolicyError as error:
        lines = [f"{file}:{fit_line(problem)}" for problem in error.problems]
        raise click.UsageError("\n".join(["the policy cannot be used:", *lines])) from None


def _find_broken_rules(file: str, read: PolicyFile, root: Path) -> Iterator[str]:
    """Yield a message with file and line for each rule of a policy file that cannot be made on this machine."""
    for entry in read.rules:
        try:
            build_rules(read, [entry.name], root=root, locale="en")
        except (ValueError, TypeError, ImportError) as error:
            yield f"{file}:{entry.line}:1: {fit_line(error)}"


def add_subject_options(function: Any) -> Any:
    """Add the options --model, --owner and --route, which describe a turn, to a command."""
    for name in ("model", "owner", "route"):
        function = click.option(f"--{name}", default="", metavar="NAME", help=f"A turn of this {name}.")(function)
    return function


@click.command(epilog="Example: turns policy check policy.yaml")
@click.argument("file")
@build_root_option("Where rules in plain files are looked for.")
@json_option
def check(file: str, root: Path, as_json: bool) -> None:
    """Check a policy FILE (`-` for standard input). If it is invalid, list every problem and exit with code 2.

    Also loads rules of Python files and packages, and lists the entries of `tools` that agents of HELIX_MODELS cannot
    enforce.
    """
    read = load_policy_file(file)
    with divert_output():
        broken = [*_find_broken_rules(file, read, root)]
    if broken:
        raise click.UsageError("\n".join(["the policy cannot be used:", *broken]))
    not_held = [*find_unenforced_rules(read.tools, load_settings().models)] if read.tools else []
    data = {"file": file, "hash": read.hash, "rules": [entry.name for entry in read.rules], "unheld": not_held}
    lines = [f"{file}: {count_noun(len(read.rules), 'rule')}, hash {read.hash}", *not_held]
    write_result(as_json, data, "\n".join(lines))


def find_unenforced_rules(rules: Sequence[ToolRule], models: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each entry under ``tools`` that these models' agents cannot enforce."""
    for number, rule in enumerate(rules, 1):
        of_models = replace(rule, owners=())
        agents = {parse_agent_name(runner) for model, runner in models.items() if of_models.matches(model, "")}
        found = [check_tool_rule(rule.tool, agent).warning for agent in sorted(agents & set(AGENTS) or set(AGENTS))]
        nowhere = all(" has no tool " in why for why in found)
        yield from (f"tools, entry {number}: {why}" for why in found if nowhere or " without asking" in why)


@divert_output()
def choose_file_rules(read: PolicyFile, subject: PolicySubject, *, root: Path, locale: str = "en") -> ChosenRules:
    """Return the rules of a policy file that apply to a turn. Raises ``UsageError`` for an invalid rule."""
    try:
        return choose_rules(read, subject, root=root, locale=locale)
    except (ValueError, TypeError, ImportError) as error:
        raise click.UsageError(f"a rule cannot be made: {fit_line(error)}") from None


@click.command(epilog="Example: turns policy show policy.yaml --model chat")
@click.argument("file")
@add_subject_options
@build_root_option("Where rules in plain files are looked for.")
@json_option
def show(file: str, root: Path, model: str, owner: str, route: str, as_json: bool) -> None:
    """Show the rules, reactions and limits that a policy FILE gives a turn.

    Without --model, --owner and --route all rules are shown.
    """
    read = load_policy_file(file)
    subject = PolicySubject(model=model, owner=owner, route=route)
    entries = [entry for entry in read.rules if not (model or owner or route) or entry.applies_to.matches(subject)]
    if as_json:
        write_json({**read.to_dict(), "hash": read.hash, "rules": [entry.to_dict() for entry in entries]})
        return
    choose_file_rules(read, subject, root=root)
    click.echo(f"hash {read.hash}, at most {count_noun(read.max_attempts, 'attempt')}")
    head = ("rule", "name", "reactions", "attempts", "applies to")
    write_table([head, *(_describe_rule(entry) for entry in entries)])


def _describe_rule(entry: PolicyRule) -> tuple[str, ...]:
    conditions = "; ".join(f"{name} {', '.join(values)}" for name, values in entry.applies_to.to_dict().items())
    return entry.rule, entry.name, entry.reaction_words, str(entry.max_attempts or "-"), conditions or "every turn"


@click.command(epilog="Example: turns policy diff old.yaml policy.yaml")
@click.argument("old")
@click.argument("new")
@json_option
def diff(old: str, new: str, as_json: bool) -> None:
    """Compare the meaning of two policy files. Exit code 1 if they differ."""
    before, after = load_policy_file(old), load_policy_file(new)
    rules = {"removed": {e.name: e for e in before.rules}, "added": {e.name: e for e in after.rules}}
    names = [*rules["removed"], *(name for name in rules["added"] if name not in rules["removed"])]
    changes = {
        name: (rules["removed"].get(name), rules["added"].get(name))
        for name in names
        if rules["removed"].get(name) != rules["added"].get(name)
    }
    if as_json:
        pairs = {name: [entry and entry.to_dict() for entry in pair] for name, pair in changes.items()}
        whole = [_describe_file(read) for read in (before, after)]
        file = {key: [each[key] for each in whole] for key in whole[0] if whole[0][key] != whole[1][key]}
        write_json({"old": before.hash, "new": after.hash, "rules": pairs, "file": file})
    else:
        for line in difflib.unified_diff(_policy_lines(before), _policy_lines(after), old, new, n=1, lineterm=""):
            click.echo(line)
    if before.hash != after.hash:
        raise click.exceptions.Exit(NO)


def _describe_file(read: PolicyFile) -> dict[str, Any]:
    """Return what a policy file says apart from the content of its rules."""
    return {
        "max_attempts": read.max_attempts,
        "locale": read.locale,
        "order": [entry.name for entry in read.rules],
        "tools": [entry.to_dict() for entry in read.tools],
    }


def _policy_lines(read: PolicyFile) -> list[str]:
    lines = [f"max_attempts: {read.max_attempts}", f"locale: {read.locale or 'of the turn'}"]
    for entry in read.rules:
        lines += [f"{entry.name}.{key}: {value}" for key, value in entry.to_dict().items() if key != "name"]
    return lines + [
        f"tools, entry {number}: {json.dumps(entry.to_dict())}" for number, entry in enumerate(read.tools, 1)
    ]


@click.command(epilog="Example: turns policy schema > policy.schema.json")
def schema() -> None:
    """Write the JSON Schema of policy files, for editors."""
    write_json(build_json_schema())
