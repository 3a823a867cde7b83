"""Rules of answers: ``turns policy`` about a file of them, ``new-validator``, and ``validate``, judging by them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from api_client.contract.policy import BUILT_IN, offered_validators
from api_client.contract.settings import load
from api_client.contract.tool_calls import ToolRule
from worker.cli import NO
from worker.cli.terminal import (
    json_option,
    number_of,
    one_line,
    read_text,
    root_option,
    safe,
    write_json,
    write_said,
    write_table,
)
from worker.enforcement import (
    CODES,
    Policy,
    ResponseValidator,
    Severity,
    UnknownValidatorError,
    ValidationIssue,
    build_validators,
    demote,
    examine,
)
from worker.enforcement.child import isolated
from worker.enforcement.policies import (
    AppliesTo,
    Chosen,
    PolicyError,
    PolicyFile,
    PolicyRule,
    Subject,
    choose,
    json_schema,
    read_policy,
)
from worker.enforcement.policies.policy_file import is_rule_file, load_rule
from worker.enforcement.rules import RULES
from worker.enforcement.rules.rule import RULE_CODES
from worker.external import provide
from worker.runners.tool_rules.agent_tools import AGENTS, agent_of, unheld


@click.group()
def policy() -> None:
    """Rules of answers in a file: check, show, diff, schema. docs/policy.md describes the file."""


def read_file(file: str) -> PolicyFile:
    """Read a policy file named on the command line.

    Raises:
        UsageError: it cannot be read, or it has problems; one line for each.
    """
    try:
        return read_policy(read_text(file))
    except PolicyError as error:
        lines = [f"{file}:{one_line(problem)}" for problem in error.problems]
        raise click.UsageError("\n".join(["the policy cannot be used:", *lines])) from None


def _load(file: str, read: PolicyFile, root: Path) -> None:
    """Load the rules that stand in plain files. Raises ``UsageError``: some cannot be loaded; one line for each."""
    lines = []
    for entry in read.rules:
        if is_rule_file(entry.rule):
            try:
                load_rule(entry.rule, name=entry.name, root=root, locale="en", options=entry.options)
            except (ValueError, TypeError, ImportError) as error:
                lines.append(f"{file}:{entry.line}:1: {one_line(error)}")
    if lines:
        raise click.UsageError("\n".join(["the policy cannot be used:", *lines]))


def subject_options(function: Any) -> Any:
    """The options that say which turn is meant."""
    for name in ("model", "owner", "route"):
        function = click.option(f"--{name}", default="", metavar="NAME", help=f"A turn of this {name}.")(function)
    return function


@policy.command()
@click.argument("file")
@root_option("Where rules in plain files are looked for.")
@json_option
def check(file: str, root: Path, as_json: bool) -> None:
    """Check a policy FILE (`-` for standard input). Exit code 2 when it cannot be used, with every problem.

    Rules in plain files are loaded, with their options. Says which entries of `tools` the agents of HELIX_MODELS cannot
    be held to.
    """
    read = read_file(file)
    _load(file, read, root)
    not_held = [*unheld_rules(read.tools, load().models)] if read.tools else []
    data = {"file": file, "hash": read.hash, "rules": [entry.name for entry in read.rules], "unheld": not_held}
    lines = [f"{file}: {number_of(len(read.rules), 'rule')}, hash {read.hash}", *not_held]
    write_said(as_json, data, "\n".join(lines))


def unheld_rules(rules: Sequence[ToolRule], models: Mapping[str, str]) -> Iterator[str]:
    """Yield which entries of ``tools`` fit no tool of these models' agents, and what an agent uses without asking."""
    for number, rule in enumerate(rules, 1):
        of_models = replace(rule, owners=())
        agents = {agent_of(runner) for model, runner in models.items() if of_models.concerns(model, "")}
        found = [unheld(rule.tool, agent)[0] for agent in sorted(agents & set(AGENTS) or set(AGENTS))]
        nowhere = all(" has no tool " in why for why in found)
        yield from (f"tools, entry {number}: {why}" for why in found if nowhere or " without asking" in why)


def chosen_by(read: PolicyFile, subject: Subject, *, root: Path, locale: str = "en") -> Chosen:
    """The rules of a policy for a turn. Raises ``click.UsageError`` where one of them cannot be made."""
    try:
        return choose(read, subject, root=root, locale=locale)
    except (ValueError, TypeError, ImportError) as error:
        raise click.UsageError(f"a rule cannot be made: {one_line(error)}") from None


@policy.command(short_help="Show the rules that a policy FILE gives.")
@click.argument("file")
@subject_options
@json_option
def show(file: str, model: str, owner: str, route: str, as_json: bool) -> None:
    """Show what a policy FILE gives a turn: rules in their order, reactions, caps.

    Without --model, --owner and --route all rules are shown.
    """
    read = read_file(file)
    subject = Subject(model=model, owner=owner, route=route)
    entries = [entry for entry in read.rules if not (model or owner or route) or entry.applies_to.judges(subject)]
    if as_json:
        write_json({**read.to_dict(), "hash": read.hash, "rules": [entry.to_dict() for entry in entries]})
        return
    chosen_by(read, subject, root=Path())
    click.echo(f"hash {read.hash}, at most {number_of(read.max_attempts, 'attempt')}")
    head = ("rule", "name", "reactions", "attempts", "applies to")
    write_table([head, *(_row(entry) for entry in entries)])


def _row(entry: PolicyRule) -> tuple[str, ...]:
    reactions = "shadow" if entry.shadow else ", ".join(map(str, entry.order))
    return entry.rule, entry.name, reactions, str(entry.max_attempts or "-"), _conditions(entry.applies_to)


def _conditions(applies_to: AppliesTo) -> str:
    return "; ".join(f"{name} {', '.join(values)}" for name, values in applies_to.to_dict().items()) or "every turn"


@policy.command()
@click.argument("old")
@click.argument("new")
@json_option
def diff(old: str, new: str, as_json: bool) -> None:
    """Compare two policy files by their meaning. Exit code 1 when they differ."""
    before, after = read_file(old), read_file(new)
    rules = {"removed": {e.name: e for e in before.rules}, "added": {e.name: e for e in after.rules}}
    names = [*rules["removed"], *(name for name in rules["added"] if name not in rules["removed"])]
    changes = {
        name: (rules["removed"].get(name), rules["added"].get(name))
        for name in names
        if rules["removed"].get(name) != rules["added"].get(name)
    }
    if as_json:
        pairs = {name: [entry and entry.to_dict() for entry in pair] for name, pair in changes.items()}
        write_json({"old": before.hash, "new": after.hash, "rules": pairs})
    else:
        for line in difflib.unified_diff(_lines(before), _lines(after), old, new, n=1, lineterm=""):
            click.echo(line)
    if before.hash != after.hash:
        raise click.exceptions.Exit(NO)


def _lines(read: PolicyFile) -> list[str]:
    lines = [f"max_attempts: {read.max_attempts}", f"locale: {read.locale or 'of the turn'}"]
    for entry in read.rules:
        lines += [f"{entry.name}.{key}: {value}" for key, value in entry.to_dict().items() if key != "name"]
    return lines


@policy.command()
def schema() -> None:
    """Write the JSON Schema of policy files, for editors."""
    write_json(json_schema())


# ``turns new-validator``: a new rule with its test and its page, ready to run.

_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_TEMPLATES = Path(__file__).with_name("new_validator")


@click.command("new-validator")
@click.argument("name")
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder to write to. Default: this one.",
)
@json_option
def new_validator(name: str, folder: Path, as_json: bool) -> None:
    """Write a rule NAME, its test and its page. Nothing that exists is overwritten."""
    if not _NAME.fullmatch(name) or len(name) > 60:
        raise click.UsageError("NAME must be like cites_source: small letters, digits and single underscores")
    if name in (*offered_validators(), *RULES):
        where = "built in" if name in (*BUILT_IN, *RULES) else "offered by an installed package"
        raise click.UsageError(f"a rule {name} is {where} already; choose another name")
    from jinja2 import Template

    kind = "".join(part.capitalize() for part in name.split("_"))
    files = {f"{name}.py": "rule.py.j2", f"test_{name}.py": "test.py.j2", f"{name}.md": "page.md.j2"}
    there = [file for file in files if (folder / file).exists()]
    if there:
        raise click.UsageError(f"{', '.join(there)}: exists already in {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, template in files.items():
            text = Template((_TEMPLATES / template).read_text(encoding="utf-8"), keep_trailing_newline=True)
            (folder / file).write_text(text.render(name=name, kind=kind, title=name.replace("_", " ")))
    except OSError as error:
        raise click.UsageError(f"cannot write to {folder}: {error.strerror}") from None
    said = f"wrote {', '.join(files)} to {folder}; try it with: pytest {folder / f'test_{name}.py'}"
    write_said(as_json, {"folder": str(folder), "files": list(files)}, said)


# ``turns validate``: rules over saved answers and ADRs, without a turn. A rule writer's inner loop, and a linter.

FORMATS = ("text", "json", "sarif", "github")

#: A file and what was found in it.
Judged = Sequence[tuple[str, Sequence[ValidationIssue]]]


def write(judged: Judged, form: str) -> None:
    """Write what was found in one of ``FORMATS``."""
    {"text": _text, "json": _json, "sarif": _sarif, "github": _github}[form](judged)


def _text(judged: Judged) -> None:
    for file, issues in judged:
        if not issues:
            click.echo(f"{safe(file)}: ok")
        for issue in issues:
            click.echo(f"{safe(file)}:{issue.line or 1}: {issue.severity} {issue.code}: {one_line(issue.message)}")
            click.echo(f"    fix: {one_line(issue.fix_hint)}")


def _json(judged: Judged) -> None:
    write_json(
        [
            {
                "file": file,
                "valid": not any(issue.is_error for issue in issues),
                "issues": [issue.to_dict() for issue in issues],
            }
            for file, issues in judged
        ]
    )


def _sarif(judged: Judged) -> None:
    codes = dict.fromkeys(issue.code for _, issues in judged for issue in issues)
    driver = {
        "name": "helix-turns",
        "rules": [{"id": code, "shortDescription": {"text": _when(code)}} for code in codes],
    }
    results = [_result(file, issue) for file, issues in judged for issue in issues]
    write_json(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
        }
    )


def _when(code: str) -> str:
    known: Mapping[str, Any] = {**CODES, **RULE_CODES}
    return known[code].when if code in known else code


def _result(file: str, issue: ValidationIssue) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": file}, "region": {"startLine": issue.line or 1}}
    return {
        "ruleId": issue.code,
        "level": "error" if issue.severity is Severity.ERROR else "warning",
        "message": {"text": f"{issue.message}. {issue.fix_hint}"},
        "locations": [{"physicalLocation": place}],
    }


def _github(judged: Judged) -> None:
    for file, issues in judged:
        for issue in issues:
            place = f"file={_escaped(file, ',:')},line={issue.line or 1},title={issue.code}"
            click.echo(f"::{issue.severity} {place}::{_escaped(f'{issue.message}. {issue.fix_hint}')}")


def _escaped(text: str, more: str = "") -> str:
    """As workflow commands want it: percent signs and line ends, in properties colons and commas too."""
    return "".join(f"%{ord(char):02X}" if char in f"%\r\n{more}" else char for char in safe(text))


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False, allow_dash=True))
@root_option("The project that paths in ADRs are relative to.")
@click.option(
    "--validator",
    "names",
    multiple=True,
    metavar="NAME",
    help="Use this offered one instead of the active ones; may be given several times.",
)
@click.option("--policy", "policy_file", metavar="FILE", help="Use the rules of this policy file.")
@click.option("--model", default="", metavar="NAME", help="With --policy: judge as a turn of this model.")
@click.option(
    "--locale", type=click.Choice(["de", "en"]), default="en", show_default=True, help="Language of messages."
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="How to write.")
@json_option
def validate(
    files: tuple[str, ...],
    root: Path,
    names: tuple[str, ...],
    policy_file: str | None,
    model: str,
    locale: str,
    form: str,
    as_json: bool,
) -> None:
    """Judge files with rules, without a turn. `-` reads from standard input.

    Without --validator and --policy the active validators (HELIX_VALIDATORS) judge. A file named ADR-* needs no step
    marker, as in a turn. Rules in shadow are left out. Exit codes: 0 nothing wrong, 1 errors, 2 used wrongly.
    """
    if names and policy_file:
        raise click.UsageError("--validator and --policy exclude each other")
    provide()
    if policy_file:
        chosen = chosen_by(read_file(policy_file), Subject(model=model), root=root, locale=locale)
        validators, policy, locale = chosen.validators, chosen.policy, chosen.policy.locale
    else:
        validators, policy = _named(names, root, locale), Policy()
    with isolated(validators) as guarded:
        judged = [(file, demote(_judge(file, guarded, locale, named=bool(names)), policy)) for file in files]
    write(judged, "json" if as_json else form)
    if any(issue.is_error for _, issues in judged for issue in issues):
        raise click.exceptions.Exit(NO)


def _named(names: tuple[str, ...], root: Path, locale: str) -> tuple[ResponseValidator, ...]:
    chosen = list(dict.fromkeys(names)) or load().validators
    for name in chosen:
        if name not in offered_validators():
            where = "--validator" if names else "HELIX_VALIDATORS"
            raise click.BadParameter(str(UnknownValidatorError(name, offered_validators())), param_hint=where)
    return build_validators(chosen, root=root, locale=locale)


def _judge(
    file: str, validators: Sequence[ResponseValidator], locale: str, *, named: bool
) -> Sequence[ValidationIssue]:
    text = read_text(file)
    is_adr = Path(file).name.upper().startswith("ADR-")
    judging = [each for each in validators if named or not (is_adr and each.name == "step_marker")]
    return examine(text, judging, {"locale": locale, "expect_adr": is_adr})
