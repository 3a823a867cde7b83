"""Check the policy files."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from typing import IO

from api_client.contract.errors import SettingsError
from api_client.contract.policy import PolicyFile
from api_client.contract.settings import Settings
from api_client.contract.validator_names import BUILT_IN
from api_client.policies.policy_files import PolicyFiles
from worker.cli.checks.finding import Finding
from worker.cli.policy import find_unenforced_rules
from worker.enforcement.rules import OUR_RULES
from worker.processes.own_programs import TURNS, build_environ
from worker.runners.tool_rules.shell_words import find_shfmt

#: Seconds in which the rules of a policy file must have loaded.
_TO_LOAD = 60.0


def list_policy_problems(settings: Settings) -> list[str]:
    """Return why a relay would refuse the policy files, or an empty list if it can use them."""
    try:
        PolicyFiles(settings).check_files()
    except SettingsError as error:
        return error.problems
    return []


def check_policies(settings: Settings) -> Iterator[Finding]:
    """Check the policy files by loading them as a relay would, and yield findings."""
    read = PolicyFiles(settings)
    if problems := list_policy_problems(settings):
        fix = (
            "correct it: a running relay keeps what it said before, and one that starts refuses it; see docs/policy.md"
        )
        yield Finding("policy", "wrong", "; ".join(problems), fix)
        return
    for path in settings.policy_files:
        source = read.read_file(path)
        if broken := _find_broken_rules(path, source, settings):
            yield Finding("policy", "wrong", broken, "correct the rule, or install its package again")
        else:
            yield Finding("policy", "ok", f"{path}: hash {source.hash}")
        fix = "docs/policy.md has a table of what holds which agent"
        yield from (
            Finding("tool rules", "warning", why, fix) for why in find_unenforced_rules(source.tools, settings.models)
        )
        with contextlib.suppress(FileNotFoundError):
            find_shfmt()
            continue
        said, fix = (
            "rules fit every command line: shfmt is not beside Python",
            "install shfmt-py where the workers' Python is",
        )
        yield Finding("tool rules", "warning", said, fix)


def _find_broken_rules(path: str, source: PolicyFile, settings: Settings) -> str:
    """Return why rules in files or packages of others cannot be made, or an empty string.

    A process of its own tries, because their code may hang or end it.
    """
    if all(entry.rule in (*BUILT_IN, *OUR_RULES) for entry in source.rules):
        return ""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:  # a program that a rule leaves holds no pipe
        try:
            subprocess.run(
                [*TURNS, "policy", "check", path, "--root", str(settings.root)],
                env=build_environ(settings, PYTHONIOENCODING="utf-8"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                timeout=_TO_LOAD,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{path}: its rules take longer than {_TO_LOAD:g} s to load"
        passed, said = _read_whole(out), _read_whole(err)
    problems = [line.partition(" (see `turns")[0] for line in said.splitlines() if line.startswith(path)]
    died = "" if source.hash in passed else f"{path}: loading its rules ended their process"
    return "; ".join(problems) or died


def _read_whole(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
