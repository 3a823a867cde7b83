"""Describes settings with their origins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from api_client.contract.settings import (
    RUN_FILE,
    STATE_DIR,
    STORES,
    Settings,
    declared_fields,
    environment_name,
    mask_password,
    merge_installation,
    spell_value,
)
from api_client.contract.settings.file import SettingsFile
from api_client.contract.settings.load import find_settings_file

_URLS = {"broker_url", "store_url"}


def describe_settings(settings: Settings, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Return a row for each setting with its name, masked value, origin and help text."""
    file = find_settings_file(merge_installation(environ))
    return [
        {
            "name": environment_name(field.name),
            "value": _masked_value(field, getattr(settings, field.name)),
            "origin": _find_origin(field, settings, environ, file),
            "help": field.metadata["help"],
        }
        for field in declared_fields(Settings, "setting")
    ] + _describe_model_settings(settings, file)


def _describe_model_settings(settings: Settings, file: SettingsFile) -> list[dict[str, str]]:
    known = {field.name: field for field in fields(Settings)}
    return [
        {
            "name": f"{model}: {name}",
            "value": "***" if known[name].metadata["masked"] else format_value(value),
            "origin": file.model_setting_line(model, name),
            "help": known[name].metadata["help"],
        }
        for model, block in settings.model_settings.items()
        for name, value in block.items()
    ]


def format_value(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else spell_value(value)


def _masked_value(field: Field[Any], value: Any) -> str:
    if field.name in _URLS:
        return mask_password(value)
    return "***" if field.metadata["masked"] and value else format_value(value)


def _find_origin(field: Field[Any], settings: Settings, environ: Mapping[str, str], file: SettingsFile) -> str:
    name = environment_name(field.name)
    if environ.get(name):
        return "environment"
    if environ.get(f"{name}_FILE"):
        return "file"
    if field.name in _URLS and (environ.get("REDIS_URL") or environ.get("REDIS_URL_FILE")):
        return "REDIS_URL"
    if merge_installation(environ).get(name):
        return str(Path(STATE_DIR) / RUN_FILE)
    if field.name in file.values:
        return file.key_line(field.name if field.name in file.places else f"{field.name}_file")
    if field.name == "models" and file.models:
        return file.key_line(f"model.{next(iter(file.models))}")
    if field.name == "models" and settings.store_url and not any(environ.get(name) for name in STORES):
        return str(Path(STATE_DIR) / RUN_FILE)
    if field.name in _URLS and getattr(settings, field.name):
        other = next((environment_name(n) for n in _URLS if environ.get(environment_name(n))), "")
        return other or str(Path(STATE_DIR) / RUN_FILE)
    return "default"
