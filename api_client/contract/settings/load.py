"""Load the settings: environment, then settings file, then a running ``turns up``, then defaults."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any

from api_client.contract.errors import SettingsError
from api_client.contract.settings.declaration import declared_fields, environment_name, spell_value
from api_client.contract.settings.file import FILE_NAME, SettingsFile, read_settings_file
from api_client.contract.settings.policy_settings import FLAG, find_flag_problems
from api_client.contract.settings.setting_values import parse_model_runners
from api_client.contract.settings.table import CONSTANTS, RUN_FILE, STATE_DIR, Settings
from api_client.contract.value_kinds import suggest_name

#: Default models if the Claude CLI has a key; without a key only the scripted agent could answer.
_CONSULTANT = {"helix-consultant": "claude_cli", "scripted": "scripted"}
#: Setting any of these ignores the broker that `turns up` runs here.
STORES = ("REDIS_URL", "REDIS_URL_FILE", "HELIX_BROKER_URL", "HELIX_STORE_URL")
#: Variables that are read elsewhere, by a process under test or by clients of the relay.
_READ_ELSEWHERE = frozenset({"HELIX_FAILPOINT", CONSTANTS, "HELIX_URL", "HELIX_KEY"})


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Load the settings from environment variables and the settings file.

    Broker and store come from their own variables, then ``REDIS_URL``, then the settings file, then a running ``turns
    up``, whose environment and models then apply too, unless HELIX_MODELS or the file names models. Raises
    ``SettingsError`` with every setting that cannot be read or, if all can, with every contradiction between them.
    """
    settings, contradictions = read_settings(environ)
    if contradictions:
        raise SettingsError(contradictions)
    return settings


def read_settings(environ: Mapping[str, str] | None = None) -> tuple[Settings, list[str]]:
    """Read the settings as ``load_settings`` does, and return them with every contradiction between them.

    Raises ``SettingsError`` with every setting that cannot be read, and nothing else: what the others say about a
    default value that stands in its place may be wrong.
    """
    problems: list[str] = []
    known = {environment_name(each.name): each for each in declared_fields(Settings, "setting")}
    secret = [name for name, each in known.items() if each.metadata["secret"]]
    environ = merge_installation(os.environ if environ is None else environ)
    environ = _read_secret_files(environ, [*secret, "REDIS_URL"], problems)
    problems += _find_unknown(environ, known)
    values = _read_environment(environ, problems) | _read_constants(environ, problems)
    file = find_settings_file(environ)
    problems += file.problems
    values = (
        file.values
        | _read_models(file, values)
        | {f"{kind}_settings": blocks for kind, blocks in file.blocks.items()}
        | values
    )
    if "models" not in values and values.get("claude_api_key"):
        values["models"] = dict(_CONSULTANT)
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    settings = Settings(**values)
    if contradictions := list(dict.fromkeys(_find_contradictions(settings))):
        return settings, contradictions
    return _use_running_broker(settings, own_models=bool(environ.get("HELIX_MODELS") or file.models)), []


def find_settings_file(environ: Mapping[str, str]) -> SettingsFile:
    """Read the settings file named in the environment, or the default file below HELIX_ROOT."""
    named = environ.get("HELIX_CONFIG", "")
    root = Path(environ.get("HELIX_ROOT") or ".").expanduser()
    path = Path(named).expanduser() if named else root / FILE_NAME
    return read_settings_file(path, named or FILE_NAME, root, required=bool(named))


def _read_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in declared_fields(Settings, "setting"):
        name = environment_name(each.name)
        raw = environ.get(name, "")
        if raw == "" and each.name in {"broker_url", "store_url"}:
            name, raw = "REDIS_URL", environ.get("REDIS_URL", "")
        if raw == "":
            continue
        try:
            values[each.name] = each.metadata["parse"](raw)
        except (ValueError, OSError) as error:  # OSError: a path that no file can have
            shown = "***" if each.metadata["masked"] else repr(raw[:80])
            problems.append(f"{name}={shown}: {error}")
    return values


def _read_constants(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    known = {each.name: each.metadata["parse"] for each in declared_fields(Settings, "constant")}
    try:
        given = json.loads(environ.get(CONSTANTS) or "{}")
        return {name: known[name](text) for name, text in given.items()}
    except (ValueError, KeyError, AttributeError) as error:
        problems.append(f"{CONSTANTS}: must be a JSON object, constant to text ({error})")
        return {}


def _read_models(file: SettingsFile, given: Mapping[str, Any]) -> dict[str, Any]:
    if not file.models:
        return {}
    blocks = {model: block for model, block in file.model_settings.items() if block}
    return {"models": given.get("models", file.models), "model_settings": blocks}


def _find_contradictions(settings: Settings) -> Iterator[str]:
    there = ", ".join(settings.models)
    for name, model in settings.list_named_models():
        if model and model not in settings.models:
            meant = suggest_name(model, settings.models)
            yield f"{name}={model[:80]!r}: not a model of HELIX_MODELS ({there}){meant}"
    yield from settings.find_problems()


def _find_unknown(environ: Mapping[str, str], known: Collection[str]) -> list[str]:
    constants = {environment_name(each.name): each for each in declared_fields(Settings, "constant")}
    problems = find_flag_problems(environ)
    for name in environ:
        if name in known or name == FLAG or name in _READ_ELSEWHERE:
            continue
        if not name.startswith("HELIX_") or name.startswith("HELIX_AGENT_"):
            continue
        if name in constants:
            default = constants[name].default
            value = "" if default is MISSING or default == "" else f" ({default})"
            problems.append(f"{name}: a constant{value}, no setting; leave it out")
            continue
        problems.append(f"{name}: no such setting{suggest_name(name, known)}")
    return problems


def _read_secret_files(environ: Mapping[str, str], secrets: list[str], problems: list[str]) -> dict[str, str]:
    found = dict(environ)
    for name in secrets:
        if not (path := found.pop(f"{name}_FILE", "")):
            continue
        if found.get(name):
            problems.append(f"{name}_FILE: {name} is set too; set one of them")
            continue
        try:
            found[name] = Path(path).read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError) as error:
            problems.append(f"{name}_FILE={path!r}: cannot be read ({type(error).__name__})")
    return found


def read_running_installation(root: Path) -> dict[str, str]:
    """Return the settings that a running ``turns up`` provides for ``root``, or none if none is running."""
    return _keep_texts(_read_run_file(root))


def shared_environment(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as environment variables for all processes of an installation, without secrets."""
    open_ones = [each.name for each in declared_fields(Settings, "setting") if not each.metadata["secret"]]
    given = {environment_name(each): spell_value(getattr(settings, each)) for each in open_ones if each != "root"}
    return {name: value for name, value in given.items() if environ.get(name) and value != ""}


def merge_installation(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Add the settings of a running ``turns up`` to the environment, unless the environment names a store."""
    if any(environ.get(name) for name in STORES):
        return environ
    root = Path(environ.get("HELIX_ROOT") or ".").expanduser()
    # The installation may be of another release.
    known = {environment_name(each.name) for each in declared_fields(Settings, "setting")}
    own = {name: value for name, value in environ.items() if value}
    return {
        name: value for name, value in _keep_texts(_read_run_file(root).get("settings")).items() if name in known
    } | own


def _read_run_file(root: Path) -> dict[str, Any]:
    try:
        data = json.loads((root / STATE_DIR / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _keep_texts(data: Any) -> dict[str, str]:
    pairs = data.items() if isinstance(data, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str)}


def _use_running_broker(settings: Settings, *, own_models: bool) -> Settings:
    if settings.broker_url and settings.store_url:
        return settings
    models = settings.models
    url = settings.store_url or settings.broker_url
    if not url:
        installation = read_running_installation(settings.root)
        if not (url := installation.get("redis_url", "")):
            return settings
        if not own_models and "models" in installation:
            models = parse_model_runners(installation["models"])
    return replace(settings, broker_url=settings.broker_url or url, store_url=settings.store_url or url, models=models)


def require_store(settings: Settings) -> Settings:
    """Return the settings unchanged if they name a store. Raises ``SettingsError`` otherwise."""
    if not settings.store_url:
        raise SettingsError(
            ["no broker: set REDIS_URL=redis://host:6379/0, or start one here with `turns up` (or run `turns demo`)"]
        )
    return settings
