"""Settings of tools: blocks ``[tools.NAME]`` of the settings file, one for each MCP server (docs/tools.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from api_client.contract.interruption import MAX_WAIT_SECONDS, Answerer
from api_client.contract.plugins import EQUIPMENT, why_missing
from api_client.contract.settings.declaration import SettingsGroup, declare_file_value, declare_setting
from api_client.contract.settings.oidc_settings import parse_secure_address
from api_client.contract.settings.setting_values import parse_path, parse_web_address
from api_client.contract.value_kinds import Kind, choice_kind, integer_kind, list_kind, read_bool, record_kind

#: What the gateway does with a call.
REACTIONS = ("allow", "ask", "deny")
_LIMITS = ("min", "max")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ToolSettings(SettingsGroup):
    """Settings for tools: the MCP servers that agents may use, and the file of keys that encrypt their credentials."""

    secrets_key_file: str = declare_setting(
        "", parse_path, "The keys that encrypt `turns secrets`; none: HELIX_ROOT/.helix/secrets.key."
    )
    tools_settings: dict[str, dict[str, Any]] = declare_file_value(dict)

    def find_problems(self) -> Iterator[str]:
        """Yield a message for each invalid server block, and for a missing plug-in."""
        yield from super().find_problems()
        for name, block in self.tools_settings.items():
            if not _NAME.fullmatch(name) or "__" in name or name.endswith("_"):
                yield f"[tools.{name}]: a name has 1 to 24 letters, digits, - and single _ inside"
            if bool(block.get("url")) == bool(block.get("command")):
                yield f"[tools.{name}]: give 'url' or 'command', one of the two"
            if "oauth" in block:
                yield from _find_oauth_problems(name, block)
        if self.tools_settings and (missing := why_missing(EQUIPMENT, "tools")):
            yield f"[tools.{next(iter(self.tools_settings))}]: {missing}"


def _find_oauth_problems(name: str, block: Mapping[str, Any]) -> Iterator[str]:
    oauth = block.get("oauth") or {}
    if not oauth.get("sign_in"):
        if not (block.get("url") and block.get("credentials")):
            yield f"[tools.{name}]: 'oauth' needs 'url', and 'credentials' with the client's secret"
        if not oauth.get("client_id"):
            yield f"[tools.{name}]: 'oauth' needs 'client_id', or sign_in = true"
        if extra := sorted({"who", "scopes"} & set(oauth)):
            yield f"[tools.{name}]: 'oauth' has {' and '.join(extra)} only with sign_in = true"
        return
    for key, address in (("url", block.get("url", "")), ("issuer", oauth.get("issuer", ""))):
        try:
            parse_secure_address(address)
        except ValueError as error:
            yield f"[tools.{name}]: people sign in, so {key!r} {error}"


def server_kinds() -> dict[str, Kind]:
    """Return a parser for each key of a server block ``[tools.NAME]``."""
    texts = list_kind(_read_text, "texts")
    return {
        "url": lambda value: parse_web_address(_read_text(value)),
        "command": texts,
        "environment": _read_environment,
        "credentials": _read_text,
        "oauth": record_kind(_OAUTH, ("issuer",), "oauth"),
        "models": texts,
        "keys": texts,
        "owners": texts,
        "writes": choice_kind(REACTIONS),
        "rules": list_kind(record_kind(_RULE, ("tool", "do"), "a rule"), "rules"),
        "timeout_seconds": integer_kind(1, 3_600),
        "max_result_bytes": integer_kind(1_000, 16 * 2**20),
        "max_memory_mb": integer_kind(16, 10**6),
        "max_processes": integer_kind(1, 10_000),
        "folders": texts,
        "network": read_bool,
    }


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    return value


def _read_environment(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError('must look like { NAME = "value" }; secrets belong in credentials')
    return dict(value)


def _read_arguments(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError('must look like { path = "reports/*", amount = { max = 100 } }')
    for path, wanted in value.items():
        limits = isinstance(wanted, Mapping) and wanted and set(wanted) <= set(_LIMITS)
        if limits and all(isinstance(each, int | float) for each in wanted.values()):
            continue
        if not isinstance(wanted, str | bool | int | float):
            raise ValueError(f"{path}: must be a pattern, a value, or {{ min = 1, max = 100 }}")
    return dict(value)


_OAUTH: dict[str, Kind] = {
    "issuer": lambda value: parse_web_address(_read_text(value)),
    "client_id": _read_text,
    "sign_in": read_bool,
    "scopes": list_kind(_read_text, "texts"),
    "who": choice_kind([Answerer.OWNER.value, Answerer.SIGNED_IN.value]),
}
_RULE: dict[str, Kind] = {
    "tool": _read_text,
    "do": choice_kind(REACTIONS),
    "arguments": _read_arguments,
    "owners": list_kind(_read_text, "texts"),
    "read_only": read_bool,
    "destructive": read_bool,
    "who": choice_kind([each.value for each in Answerer]),
    "wait_seconds": integer_kind(1, MAX_WAIT_SECONDS),
}
