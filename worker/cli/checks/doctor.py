"""Implement ``turns doctor``: find faults of the installation before a turn does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import click

from api_client.build_identity import build_identity
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, load_settings
from api_client.contract.settings.setting_faults import find_setting_faults
from api_client.workers.fleet import SETTINGS
from worker.cli.checks.finding import Finding, print_findings
from worker.cli.output import json_option
from worker.logs import configure_logging


@click.command(epilog="Example: turns doctor --json")
@json_option
def doctor(as_json: bool) -> None:
    """Check the installation: settings, broker, workers, session folder, disk, and the Claude CLI with its hooks.

    Sends a probe through broker and workers, writes and removes a file in the session folder, and starts the Claude CLI
    once without a model call. Exit code 1 if something is wrong.
    """
    configure_logging(Settings(log_level="error"))  # findings say the same, and stdout is for them
    print_findings(examine_installation(), as_json=as_json)


def examine_installation() -> Iterator[Finding]:
    """Run all checks of ``turns doctor`` and yield their findings, causes before consequences."""
    from worker.cli.checks.broker import check_brokers
    from worker.cli.checks.callers import check_callers
    from worker.cli.checks.machine import check_machine
    from worker.cli.checks.plugins import check_plugins, run_plugin_checks
    from worker.cli.checks.policies import check_policies
    from worker.cli.checks.sign_in import check_sign_in
    from worker.cli.checks.workers import check_workers

    try:
        settings = load_settings()
    except SettingsError as error:
        for problem in error.problems:
            yield Finding("settings", "wrong", problem, "see `turns config` and docs/settings.md")
        return
    yield Finding("settings", "ok", f"helix-turns {build_identity()}, HELIX_ROOT is {settings.root}")
    yield from check_plugins()
    for fault in find_setting_faults(settings):
        yield Finding(SETTINGS + fault.check, "wrong", fault.message, fault.fix)
    yield from check_machine(settings)
    yield from check_policies(settings)
    about_the_store = [*check_brokers(settings)]
    yield from about_the_store
    if any(found.state == "wrong" and found.check in {"store", "restore", "submit"} for found in about_the_store):
        yield Finding("workers", "warning", "skipped: these checks need the store", "repair the store first")
    else:
        yield from check_workers(settings)
    yield from run_plugin_checks(settings)
    yield from check_callers(settings)
    yield from check_sign_in(settings)
    yield from _check_agents(settings)


def _check_agents(settings: Settings) -> Iterator[Finding]:
    from worker.cli.checks.claude import check_claude
    from worker.cli.checks.machine import group_models
    from worker.cli.checks.models import check_models

    yield from check_models(settings)
    using = [model for model, runner in settings.models.items() if runner.partition(":")[0] == "claude_cli"]
    for named, own in group_models(
        settings, using, ("claude_path", "claude_api_key", "claude_env", "sandbox", "sandbox_hosts")
    ):
        for found in check_claude(own):
            yield found if set(named) == set(using) else replace(found, message=f"{', '.join(named)}: {found.message}")
    if not using:
        yield Finding("claude", "ok", "skipped: no model of HELIX_MODELS uses claude_cli")
