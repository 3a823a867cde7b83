"""Finds settings with which an installation would not start, or which ``turns doctor`` calls wrong."""

from __future__ import annotations

from collections.abc import Callable

from api_client.api_keys import read_sound_keys
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from api_client.contract.settings.setting_faults import find_setting_faults
from api_client.contract.validator_names import offered_validators
from api_client.secrets.cipher import SecretCipher
from worker.cli.checks.machine import check_active_validators, check_sandboxes
from worker.cli.checks.models import list_model_problems
from worker.cli.checks.policies import list_policy_problems
from worker.runners.claude.cli_program import missing_programs


def list_unusable_settings(settings: Settings) -> list[str]:
    """Return one line for each well-formed setting that cannot work on this machine. Asks no store and no service."""
    found = [fault.message for fault in find_setting_faults(settings)]
    found += list_model_problems(settings) + missing_programs(settings) + list_policy_problems(settings)
    active = [name for model in settings.models for name in settings.for_model(model).validators]
    rules = check_active_validators(tuple(dict.fromkeys(active)), offered_validators())
    found += [f"{each.check}: {each.message}" for each in (rules, *check_sandboxes(settings)) if each.state == "wrong"]
    found += _collect_problems(lambda: read_sound_keys(settings.keys_path))
    if settings.secrets_key_file or settings.secrets_key_path.exists():
        found += _collect_problems(lambda: SecretCipher(settings))
    return list(dict.fromkeys(found))


def _collect_problems(check: Callable[[], object]) -> list[str]:
    try:
        check()
    except SettingsError as error:
        return error.problems
    return []
