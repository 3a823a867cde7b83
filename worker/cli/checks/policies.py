"""Check the policy files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from api_client.policies.policy_files import PolicyFiles
from worker.cli.checks.finding import Finding
from worker.cli.policy import find_unenforced_rules
from worker.runners.tool_rules.shell_words import find_shfmt


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
