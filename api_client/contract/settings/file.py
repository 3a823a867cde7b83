"""The settings file (TOML): settings by their short names, blocks of models, and the other blocks of ``BLOCKS``.

Secrets are in separate files (``api_keys_file``, ``key_file``).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from api_client.contract.completion import ProviderFault
from api_client.contract.settings.declaration import declared_fields
from api_client.contract.settings.guidance import guidance_kinds
from api_client.contract.settings.policy_blocks import BLOCKS, block_kinds, key_kinds
from api_client.contract.settings.setting_values import STREAM_MODES, number_parser, parse_web_address
from api_client.contract.settings.table import STATE_DIR, Settings
from api_client.contract.value_kinds import Findings, Kind, Problem, choice_kind, suggest_name

#: Default path of the file under ``HELIX_ROOT``. Agents can neither read nor write this file.
FILE_NAME = f"{STATE_DIR}/helix.toml"
#: Keys of a block that mean another setting for the Claude CLI than for other runners.
_BY_RUNNER = {
    "url": {"claude_cli": "claude_api_url", "": "openai_url"},
    "key_file": {"claude_cli": "claude_api_key", "": "openai_api_key"},
}
_ASK_NOBODY = {"scripted"}
#: Set by the runner itself in each request.
_OURS = {"model", "messages", "input", "stream", "stream_options", "store"}
_PRICES = {"input", "output", "cache_read", "cache_write"}
_LIST = 'a list of texts: ["a", "b"]'
_NOT_HERE = {"root", "config"}
#: Keys that name a file with a secret, and their settings.
_SECRETS = {f"{each.name}_file": each.name for each in declared_fields(Settings, "setting") if each.metadata["secret"]}


@dataclass(slots=True)
class SettingsFile:
    """The parsed content of a settings file, empty if there is no file.

    Attributes:
        name: the file's name in messages.
        places: ``key`` or ``model.NAME.key`` -> its line, its column and that of its value, from 1.
        values: setting -> value. models: model -> runner. model_settings: model -> setting -> value.
        blocks: kind of other blocks (``BLOCKS``) -> name of a block -> setting -> value.
        problems: the problems, each with file, line, column and key.
    """

    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    model_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    blocks: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    places: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def key_line(self, key: str) -> str:
        """Return the file name and line of a key, such as ``.helix/helix.toml:12``."""
        return f"{self.name}:{self.places[key][0]}" if key in self.places else self.name

    def key_place(self, key: str, *, of_key: bool) -> str:
        """Return the position of a value or, with ``of_key``, of its key, such as ``.helix/helix.toml:12:10``."""
        line, own, behind = self.places.get(key, (0, 0, 0))
        return f"{self.name}:{line}:{own if of_key else behind}" if line else self.name

    def model_setting_line(self, model: str, name: str) -> str:
        """Return the file name and line where a model's block sets the setting ``name``."""
        keys = [
            name,
            name.removesuffix("_orders"),
            *(key for key, runners in _BY_RUNNER.items() if name in runners.values()),
        ]
        places = [f"model.{model}.{key}" for key in keys]
        return self.key_line(next((place for place in places if place in self.places), f"model.{model}"))


def read_settings_file(path: Path, name: str, root: Path, *, required: bool) -> SettingsFile:
    """Read and check the settings file of a project. A missing file is a problem only if the file is ``required``."""
    found = SettingsFile(name=name)
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):  # the latter: HELIX_ROOT is reported separately
        found.problems += [f"HELIX_CONFIG={name}: no such file"] if required else []
        return found
    except (OSError, ValueError) as error:  # TOML errors include the line
        found.problems.append(f"{name}: {error if isinstance(error, ValueError) else error.strerror}")
        return found
    found.places = _locate_keys(text)
    if place := _find_nul(data):
        found.problems.append(f"{found.key_place(place, of_key=False)}: {place}: must hold no NUL character")
        return found
    for problem in _fill_file(found, data, path.parent, root):
        place = ".".join(map(str, problem.where))
        at = found.key_place(place, of_key=problem.of_key)
        found.problems.append(f"{at}: {place}: {problem.message[:200]}")
    return found


def _fill_file(file: SettingsFile, data: dict[str, Any], folder: Path, root: Path) -> list[Problem]:
    found = Findings()
    blocks = {kind: found.read_part(_read_blocks, data.pop(kind, {}), kind) or {} for kind in ("model", *BLOCKS)}
    file.values = _read_values(found, data, _setting_kinds(folder))
    for kind, keys in block_kinds(folder).items():
        file.blocks[kind] = {name: _read_values(found, block, keys, kind, name) for name, block in blocks[kind].items()}
    for name, block in blocks["model"].items():
        runner, option = block.pop("runner", None), block.pop("model", "")
        if not isinstance(runner, str) or not runner or not isinstance(option, str):
            wrong = "a block names its runner: claude_cli, openai_http, scripted, ..."
            found.add_problem(wrong, "model", name, "runner")
            continue
        file.models[name] = f"{runner}:{option}" if option else runner
        kinds = _setting_kinds(folder, per_model=True) | _runner_kinds(runner, folder) | guidance_kinds(runner, root)
        kinds |= {
            "vision": _read_vision,
            "stream": choice_kind(STREAM_MODES),
            "prices": _read_prices,
            "fallbacks": _read_fallbacks,
        }
        kinds |= dict.fromkeys(("proxy_models", "proxy_allows"), _read_texts)
        if runner == "openai_http":
            kinds |= {
                "api": choice_kind(("chat", "responses")),
                "parameters": _read_parameters,
                "timeouts": _read_timeouts,
            }
        values = _read_values(found, block, kinds, "model", name)
        file.model_settings[name] = {_resolve_key(key, runner): each for key, each in values.items()}
    return found.problems


def _read_values(found: Findings, block: Mapping[str, Any], kinds: Mapping[str, Kind], *where: str) -> dict[str, Any]:
    values = {}
    for key, value in block.items():
        if key not in kinds:
            found.add_problem(f"no such setting{suggest_name(key, kinds)}", *where, key, of_key=True)
        elif (read := found.read_part(kinds[key], value, *where, key)) is not None:
            orders = key == "policy" and isinstance(read, dict)
            values["policy_orders" if orders else _SECRETS.get(key, key)] = read
    return values


def _read_blocks(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(block, dict) for block in value.values()):
        raise ValueError("must be blocks, each with a name")
    return value


def _setting_kinds(folder: Path, *, per_model: bool = False) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    for each in declared_fields(Settings, "setting"):
        if each.name in _NOT_HERE or (per_model and not each.metadata["per_model"]):
            continue
        if each.metadata["secret"]:
            kinds[each.name] = partial(_refuse_open_secret, name=each.name)
            kinds[f"{each.name}_file"] = partial(_read_secret, folder=folder, parse=each.metadata["parse"])
        else:
            kinds[each.name] = partial(_parse_value, known=each)
    return kinds | key_kinds(folder)


def _runner_kinds(runner: str, folder: Path) -> dict[str, Kind]:
    def kind_for(key: str, kind: Kind) -> Kind:
        def read_value(value: Any) -> Any:
            if runner in _ASK_NOBODY:
                raise ValueError(f"{runner} takes none")
            if not isinstance(value, str):
                raise ValueError("must be a text")
            return kind(value)

        return read_value

    return {
        "url": kind_for("url", parse_web_address),
        "key_file": kind_for("key_file", partial(_read_secret, folder=folder, parse=str)),
    }


def _resolve_key(key: str, runner: str) -> str:
    meanings = _BY_RUNNER.get(key, {"": key})
    return meanings.get(runner, meanings[""])


def _refuse_open_secret(_value: Any, name: str) -> None:
    raise ValueError(f"a secret is in a separate file: {name}_file = ...")


def _read_secret(value: Any, folder: Path, parse: Callable[[str], Any]) -> Any:
    try:
        text = (folder / Path(str(value)).expanduser()).read_text(encoding="utf-8-sig").strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read ({type(error).__name__})") from None
    return parse(text)


def _find_nul(value: Any, place: str = "") -> str:
    match value:
        case str():
            return place if "\0" in value else ""
        case list():
            return next(filter(None, (_find_nul(item, place) for item in value)), "")
        case dict() if any("\0" in key for key in value):
            return place or "a key"
        case dict():
            return next(
                filter(None, (_find_nul(item, f"{place}.{key}".lstrip(".")) for key, item in value.items())), ""
            )
    return ""


def _parse_value(value: Any, known: Field[Any]) -> Any:
    try:
        return known.metadata["parse"](_to_text(value, known))
    except OSError as error:  # a path that no file can have
        raise ValueError(str(error)) from None


def _to_text(value: Any, known: Field[Any]) -> str:
    kind = str(known.type)
    if value == "" and kind == "str" and known.default:
        raise ValueError(f"must not be empty; without this line it is {known.default}")
    several = kind.startswith(("tuple", "dict"))
    pairs = kind.startswith("dict") or known.metadata["pairs"]
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


def _read_vision(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _read_prices(value: Any, *, of_model: bool = False) -> dict[str, Any]:
    given = value if isinstance(value, dict) else {}
    further = {name: each for name, each in given.items() if isinstance(each, dict) and not of_model}
    own = {name: each for name, each in given.items() if name not in further}
    if not own or not set(own) <= _PRICES:
        example = "{ input = 3.0, output = 15.0, cache_read = 0.3, cache_write = 3.75, other-model = { input = 1.0 } }"
        raise ValueError(f"must look like {example}: US dollars for a million tokens")
    prices = {name: number_parser(0, 10**6)(str(price)) for name, price in own.items()}
    return prices | {name: _read_prices(each, of_model=True) for name, each in further.items()}


def _read_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ValueError(f"must be {_LIST}")
    return tuple(value)


def _read_timeouts(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or not set(value) <= {"first", "next"}:
        raise ValueError("must look like { first = 60, next = 20 }: seconds until an event of the answer comes")
    return {name: number_parser(1, 600)(str(seconds)) for name, seconds in value.items()}


def _read_fallbacks(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise ValueError('must look like { limit = ["other"], auth = ["other", "third"] }')
    for kind, models in value.items():
        if kind not in list(ProviderFault):
            known = (
                suggest_name(kind, [each.value for each in ProviderFault]) or f"; there are {', '.join(ProviderFault)}"
            )
            raise ValueError(f"{kind[:80]!r} names no error{known}")
        if not isinstance(models, list) or not models or not all(isinstance(model, str) for model in models):
            raise ValueError(f'{kind} must name models in their order: ["other", "third"]')
    return {kind: tuple(models) for kind, models in value.items()}


def _read_parameters(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must look like { temperature = 0.2, max_tokens = 4000 }")
    if ours := sorted(_OURS & value.keys()):
        raise ValueError(f"{', '.join(ours)}: set by the runner itself")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("must hold texts, numbers, true, false, lists and tables alone") from None
    return value


def _locate_keys(text: str) -> dict[str, tuple[int, int, int]]:
    found: dict[str, tuple[int, int, int]] = {}
    table = ""
    for number_, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        own = len(line) - len(line.lstrip()) + 1
        if bare.startswith("["):
            table = bare.strip("[] ").replace('"', "") + "."
            found.setdefault(table.rstrip("."), (number_, own, own))
            found.setdefault(f"{table}runner", (number_, own, own))
        elif "=" in bare and not bare.startswith("#"):
            key, _, value = line.partition("=")
            behind = len(line) - len(value.lstrip()) + 1
            found[table + key.strip().strip('"')] = (number_, own, behind)
    return found
