"""The settings file (TOML): the settings of the environment by their short names; blocks of models, owners, flows.

Secrets stand in separate files (``api_keys_file``, ``key_file``), so that this file can be read and shared.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Collection, Iterable
from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import Any

from api_client.contract.policy import Action
from api_client.contract.settings.declaring import declared
from api_client.contract.settings.table import STATE_DIR, Settings
from api_client.contract.values.prompts import NONE, SHIPPED
from api_client.contract.values.setting_values import STREAM_MODES, number, web_address

#: Where the file is looked for under ``HELIX_ROOT`` when ``HELIX_CONFIG`` names none. Agents neither read nor write it.
FILE_NAME = f"{STATE_DIR}/helix.toml"
#: Keys of a block that mean another setting for each runner.
_BY_RUNNER = {
    "url": {"claude_cli": "claude_api_url", "openai_http": "openai_url"},
    "key_file": {"claude_cli": "claude_api_key", "openai_http": "openai_api_key"},
}
_LIST = 'a list of texts: ["a", "b"]'
#: Said by the environment alone: it is what finds this file.
_NOT_HERE = {"root", "config"}


@dataclass(slots=True)
class SettingsFile:
    """The content of a settings file; empty without a file.

    Attributes:
        name: the file as it is named in messages. lines: ``key`` or ``model.NAME.key`` -> its line, from 1.
        values: setting -> value. models: model -> runner. model_settings: model -> setting -> value.
        owner_settings: owner -> setting -> value. flow_settings: flow version -> setting -> value.
        problems: the faults, each with file, line and key.
    """

    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    model_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    owner_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    flow_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def where(self, key: str) -> str:
        """Place of a key, such as ``.helix/helix.toml:12``."""
        line = self.lines.get(key)
        return f"{self.name}:{line}" if line else self.name

    def where_of_model(self, model: str, name: str) -> str:
        """Place of what a block says about a setting, whatever its key is called there."""
        keys = [
            name,
            name.removesuffix("_orders"),
            *(key for key, runners in _BY_RUNNER.items() if name in runners.values()),
        ]
        places = [f"model.{model}.{key}" for key in keys]
        return self.where(next((place for place in places if place in self.lines), f"model.{model}"))


def read_file(path: Path, name: str, *, required: bool) -> SettingsFile:
    """Read a settings file; ``required``: somebody named it, so it must be there."""
    found = SettingsFile(name=name)
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):  # the latter: HELIX_ROOT is reported by itself
        found.problems += [f"HELIX_CONFIG={name}: no such file"] if required else []
        return found
    except (OSError, ValueError) as error:  # TOML says the line itself
        found.problems.append(f"{name}: {error if isinstance(error, ValueError) else type(error).__name__}")
        return found
    found.lines = _lines(text)
    if place := _with_nul(data):
        found.problems.append(f"{found.where(place)}: {place}: must hold no NUL character")
        return found
    _Reader(found, path.parent).read(data)
    return found


class _Reader:
    """Fills a ``SettingsFile`` from parsed TOML; every problem is noted, none ends the reading."""

    def __init__(self, found: SettingsFile, folder: Path) -> None:
        self._found = found
        self._folder = folder
        self._known = {each.name: each for each in declared(Settings, "setting") if each.name not in _NOT_HERE}

    def read(self, data: dict[str, Any]) -> None:
        blocks, owners, flows = (data.pop(kind, {}) for kind in ("model", "owner", "flow"))
        for key, value in data.items():
            name, given = self._content(key, key, value, self._known)
            if name not in self._known:
                self._unknown(key, key, [*self._known, "model", "owner", "flow"])
            elif name in _PATHS:
                self._own(key, key, value, self._found.values)
            elif given is not None:
                self._put(self._found.values, key, self._known[name], given)
        for owner, block in self._blocks("owner", owners):
            self._small("owner", owner, block, _OF_OWNERS, self._found.owner_settings)
        for flow, block in self._blocks("flow", flows):
            self._small("flow", flow, block, _OF_FLOWS, self._found.flow_settings)
        for model, block in self._blocks("model", blocks):
            self._block(model, block)

    def _blocks(self, kind: str, data: Any) -> list[tuple[str, dict[str, Any]]]:
        if isinstance(data, dict) and all(isinstance(block, dict) for block in data.values()):
            return list(data.items())
        self._problem(kind, f"must be blocks: [{kind}.NAME]")
        return []

    def _small(
        self, kind: str, name: str, block: dict[str, Any], keys: Collection[str], found: dict[str, dict[str, Any]]
    ) -> None:
        """A block with few keys, of an owner or a flow version."""
        values = found.setdefault(name, {})
        for key, value in block.items():
            place = f"{kind}.{name}.{key}"
            if key not in keys:
                self._unknown(place, key, keys)
            elif key == "policy" and not isinstance(value, str):
                self._problem(place, "must be a text")
            else:
                self._own(place, key, value, values)

    def _block(self, model: str, block: dict[str, Any]) -> None:
        runner, option = block.pop("runner", None), block.pop("model", "")
        if not isinstance(runner, str) or not runner or not isinstance(option, str):
            self._problem(f"model.{model}.runner", "a block names its runner: claude_cli, openai_http, scripted, ...")
            return
        self._found.models[model] = f"{runner}:{option}" if option else runner
        values = self._found.model_settings.setdefault(model, {})
        allowed = {name: each for name, each in self._known.items() if each.metadata["per_model"]}
        for key, value in block.items():
            place = f"model.{model}.{key}"
            if key in _BY_RUNNER:
                self._of_runner(place, key, runner, value, values)
            elif key in _OF_MODELS:
                self._own(place, key, value, values)
            elif key in allowed:
                self._put(values, place, allowed[key], value)
            else:
                self._unknown(place, key, [*allowed, *_OF_MODELS, *_BY_RUNNER])

    def _of_runner(self, place: str, key: str, runner: str, value: Any, values: dict[str, Any]) -> None:
        name = _BY_RUNNER[key].get(runner)
        if name is None or not isinstance(value, str):
            self._problem(place, f"a text, for {' and '.join(_BY_RUNNER[key])}" if name else f"{runner} takes none")
        elif key == "url":
            self._checked(place, lambda: values.__setitem__(name, web_address(value)))
        elif (secret := self._secret(place, value)) is not None:
            values[name] = secret

    def _own(self, place: str, key: str, value: Any, values: dict[str, Any]) -> None:
        name = "policy_orders" if key == "policy" and not isinstance(value, str) else key
        self._checked(place, lambda: values.__setitem__(name, _OWN[key](value, self._folder)))

    def _content(self, place: str, key: str, value: Any, known: dict[str, Field[Any]]) -> tuple[str, Any]:
        """The setting a key means, and its text; of ``NAME_file`` the file's content."""
        name = key.removesuffix("_file")
        if key in known or name not in known or not known[name].metadata["secret"]:
            if key in known and known[key].metadata["secret"]:
                self._problem(place, f"a secret is in a separate file: {key}_file = ...")
                return key, None
            return key, value
        return name, self._secret(place, value)

    def _secret(self, place: str, value: Any) -> str | None:
        try:
            return (self._folder / Path(str(value)).expanduser()).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            self._problem(place, f"cannot be read ({type(error).__name__})")
            return None

    def _put(self, values: dict[str, Any], place: str, known: Field[Any], value: Any) -> None:
        def read() -> None:
            values[known.name] = known.metadata["parse"](_text(value, known))

        self._checked(place, read)

    def _checked(self, place: str, read: Callable[[], None]) -> None:
        try:
            read()
        except (ValueError, OSError) as error:  # OSError: a path that no file can have
            self._problem(place, str(error)[:200])

    def _unknown(self, place: str, key: str, known: Iterable[str]) -> None:
        close = difflib.get_close_matches(key, list(known), n=1)
        self._problem(place, "no such setting" + (f"; did you mean {close[0]}?" if close else ""))

    def _problem(self, place: str, said: str) -> None:
        self._found.problems.append(f"{self._found.where(place)}: {place}: {said}")


def _with_nul(value: Any, place: str = "") -> str:
    """The place of the first text with a NUL character, which no path, address or key can hold; empty without one."""
    match value:
        case str():
            return place if "\0" in value else ""
        case list():
            return next(filter(None, (_with_nul(item, place) for item in value)), "")
        case dict() if any("\0" in key for key in value):
            return place or "a key"
        case dict():
            return next(
                filter(None, (_with_nul(item, f"{place}.{key}".lstrip(".")) for key, item in value.items())), ""
            )
    return ""


def _text(value: Any, known: Field[Any]) -> str:
    """A TOML value as the environment would spell it; a text may always stand, as in the environment.

    Raises:
        ValueError: the value is of another type than the setting.
    """
    kind = str(known.type)
    if value == "" and kind == "str" and known.default:
        raise ValueError(f"must not be empty; without this line it is {known.default}")
    several = kind.startswith(("tuple", "dict"))
    pairs = kind.startswith("dict") or known.name == "phase_directories"
    match value:
        case str():
            return value
        case bool() if known.default in {"yes", "no"}:
            return "yes" if value else "no"
        case int() | float() if kind in {"int", "float"} and not isinstance(value, bool):
            return str(value)
        case list() if several and all(isinstance(item, str) for item in value):
            return ",".join(value)
        case dict() if pairs:
            return ",".join(f"{key}={item}" for key, item in value.items())
    wanted = {"int": "a whole number", "float": "a number", "str": "a text"}
    raise ValueError(f"must be {wanted.get(kind, 'a table' if pairs else _LIST)}")


def _vision(value: Any, _folder: Path) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _stream(value: Any, _folder: Path) -> str:
    if value not in STREAM_MODES:
        raise ValueError(f"must be one of {', '.join(STREAM_MODES)}")
    return str(value)


def _prices(value: Any, _folder: Path) -> dict[str, float]:
    if not isinstance(value, dict) or not set(value) <= {"input", "output"}:
        raise ValueError("must look like { input = 3.0, output = 15.0 }: US dollars for a million tokens")
    return {name: number(0, 10**6)(str(price)) for name, price in value.items()}


def _policy(value: Any, folder: Path) -> str | dict[str, tuple[str, ...]]:
    """A policy file; or, in a model's block, what is tried for each validator's errors."""
    if isinstance(value, str):
        return str((folder / Path(value).expanduser()).resolve())
    wrong = f"must name a policy file, or map validators to lists of {', '.join(Action)}"
    if not isinstance(value, dict):
        raise ValueError(wrong)
    for order in value.values():
        if not isinstance(order, list) or not order or not set(map(str, order)) <= set(Action):
            raise ValueError(wrong)
    return {validator: tuple(order) for validator, order in value.items()}


def _failure_rate(value: Any, _folder: Path) -> float:
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError("must be a share of all turns, between 0 and 1: 0.2")
    return float(value)


def _template(value: Any, folder: Path) -> str:
    if value in (*SHIPPED, NONE):
        return str(value)
    path = folder / Path(str(value)).expanduser()
    if not path.is_file():
        raise ValueError(f"no such file; else it must be {', '.join(SHIPPED)} or {NONE}")
    return str(path.resolve())


#: Keys that a block has, or that name a file: how each is read.
_OWN: dict[str, Callable[[Any, Path], Any]] = {
    "vision": _vision,
    "stream": _stream,
    "prices": _prices,
    "policy": _policy,
    "prompt_template": _template,
    "max_failure_rate": _failure_rate,
}


#: Those that may stand outside a block too.
_PATHS = ("policy", "prompt_template")
#: Those of a model's block.
_OF_MODELS = ("vision", "stream", "prices", "policy", "prompt_template")
#: Keys of an owner's block, and of a flow version's.
_OF_OWNERS = ("policy",)
_OF_FLOWS = ("policy", "prompt_template", "max_failure_rate")


def _lines(text: str) -> dict[str, int]:
    """Key -> its line. A reading of the text beside the parser, which keeps no places; good enough for a message."""
    found: dict[str, int] = {}
    table = ""
    for number_, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("["):
            table = bare.strip("[] ").replace('"', "") + "."
            found.setdefault(table.rstrip("."), number_)
            found.setdefault(f"{table}runner", number_)
        elif "=" in bare and not bare.startswith("#"):
            found[table + bare.partition("=")[0].strip().strip('"')] = number_
    return found
