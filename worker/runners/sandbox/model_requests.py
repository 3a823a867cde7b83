"""Check the body of a model call before it is sent: models, fields, tools and sources.

A body that a service might read differently is refused: it must be one JSON object in UTF-8, without names that differ
only in case.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from worker.runners.pricing import matches_name
from worker.runners.sandbox.provider_reports import find_api, find_model

#: Largest body, in bytes; no provider accepts more.
MAX_BODY = 64 * 2**20
_TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_FORMS = {
    api: {name: words.split() for name, words in form.items()}
    for api, form in _TABLE.items()
    if isinstance(form, dict) and "fields" in form
}
#: Source types whose content is inside the body.
_INLINE = frozenset({"base64", "text", "content"})
#: Fields that hold a file's address, or the file as a ``data:`` address.
_ADDRESSES = frozenset({"image_url", "video_url", "audio_url", "file_url", "file_uri", "fileuri"})
#: Fields and item types that refer to content stored at the provider.
_KEPT = frozenset({"file_id", "container", "container_id", "vector_store_ids", "server_url", "connector_id"})
_REFERENCES = frozenset({"item_reference", "container_upload", "container_auto", "container_reference"})
#: Output of the model or of a tool, which the provider does not act on.
_SAID = frozenset({"citations", "annotations", "args", "response", "arguments"})


class CallNotAllowed(Exception):
    """Raised when the model proxy refuses a call. Adding ``word`` to the setting ``proxy_allows`` permits the call."""

    def __init__(self, message: str, word: str = "") -> None:
        super().__init__(message)
        self.word = word


def check_request(
    target: str, headers: Iterable[tuple[bytes, bytes]], body: bytes, models: Iterable[str], allows: Iterable[str]
) -> tuple[str, bool]:
    """Check a model call, and return its model and whether it offers tools. Raises ``CallNotAllowed``.

    ``models`` are the allowed model names (``*`` matches any text; empty allows all). ``allows`` lists further content.
    """
    path, _, query = target.partition("?")
    path = path.removesuffix("/count_tokens").replace(":countTokens", ":generateContent")
    api = find_api(path)
    if api is None:
        raise CallNotAllowed(f"{path[:100]} takes no body")
    rules = _BodyRules(_FORMS[api], frozenset(allows))
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name not in _TABLE["query"]:
            rules.require_allowed(f"the query parameter {name[:64]!r}", name)
    _check_headers(headers)
    found = _parse_body(body)
    model = find_model(path) or found.get("model")
    if not isinstance(model, str) or not model:
        raise CallNotAllowed("it names no model")
    if (named := tuple(models)) and not any(matches_name(model, pattern) for pattern in named):
        raise CallNotAllowed(
            f"the model {model[:64]!r} is not allowed here; write it into `models` of the block", "models"
        )
    rules.check_body(found)
    return model, bool(found.get("tools") or found.get("functions"))


def _check_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    kinds = [value.lower() for name, value in headers if name == b"content-type"]
    if len(kinds) != 1 or kinds[0].replace(b" ", b"") not in {b"application/json", b"application/json;charset=utf-8"}:
        raise CallNotAllowed("its content-type must be application/json")
    if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in headers):
        raise CallNotAllowed("its body must not be compressed")


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body.decode(), object_pairs_hook=_unique_names, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        why = f": {error}" if type(error) is ValueError else ""
        raise CallNotAllowed(f"its body is not one JSON object in UTF-8{why}") from None
    if not isinstance(found, dict):
        raise CallNotAllowed("its body is not a JSON object")
    return found


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a name twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class _BodyRules:
    def __init__(self, form: Mapping[str, list[str]], allows: frozenset[str]) -> None:
        self._form, self._allows = form, allows

    def require_allowed(self, what: str, word: str) -> None:
        if not self._allows & {word, "*"}:
            hint = f"write {word[:64]!r} into `proxy_allows` of the model's block to allow it"
            raise CallNotAllowed(f"{what} is not passed on; {hint}", word)

    def check_body(self, body: Mapping[str, Any]) -> None:
        shown, fields = self._form["shown"], self._form["fields"]
        for name, value in body.items():
            if name in shown:
                self._check_content(value, item=name == "input")
            elif value and name not in fields:
                self.require_allowed(f"the field {name[:64]!r}", name)
            self._check_value(name, value)
        for tool in _as_list(body.get("tools")):
            self._check_tool(tool)
        for name, value in _as_object(body.get("generationConfig")).items():
            self._check_value(name, value)

    def _check_value(self, name: str, value: object) -> None:
        known = _TABLE["values"].get(name)
        if known and value and not all(each in known for each in (value if isinstance(value, list) else [value])):
            self.require_allowed(f"{name} = {str(value)[:64]!r}", name)

    def _check_tool(self, tool: object) -> None:
        given = {name.lower(): inner for name, inner in _as_object(tool).items()}
        kinds = [given.get("type") or "custom"] if "functiondeclarations" not in self._form["tools"] else [*given]
        for kind in kinds:
            known = any(matches_name(str(kind), each) for each in self._form["tools"])
            word = next((each for each in self._allows if str(kind) == each or str(kind).startswith(f"{each}_")), "")
            if not known and not word:
                self.require_allowed(f"the tool {str(kind)[:64]!r} of the provider", str(kind))
        self._check_content({name: given[name] for name in ("environment", "container") if name in given})
        for inner in _as_list(given.get("tools")):
            self._check_tool(inner)

    def _check_content(self, value: object, *, item: bool = False) -> None:
        if isinstance(value, list):
            for each in value:
                if item and isinstance(each, dict) and not (each.get("type") or each.get("role")):
                    self.require_allowed("an item that is kept at the provider", "item_reference")
                self._check_content(each)
        elif isinstance(value, dict):
            lowered = {name.lower(): inner for name, inner in value.items()}
            if len(lowered) < len(value):
                raise CallNotAllowed("two names in its body differ in case alone")
            self._check_block(lowered)
            for name, inner in lowered.items():
                if name not in _SAID and not (name == "input" and str(lowered.get("type")).endswith("_use")):
                    self._check_content(inner)

    def _check_block(self, block: Mapping[str, Any]) -> None:
        kind = str(block.get("type")).lower()
        if kind in _REFERENCES:
            self.require_allowed(f"{kind}, which is kept at the provider,", kind)
        source = block.get("source")
        if kind == "url" or (isinstance(source, dict) and source.get("type") not in _INLINE):
            word = {"file": "file_id"}.get(word := str(_as_object(source).get("type", "url")), word)
            self.require_allowed(f"a source of the type {word[:64]!r}", word)
        for name, value in block.items():
            address = _as_object(value).get("url") if isinstance(value, dict) else value
            if name in _ADDRESSES and value and not str(address).lower().startswith("data:"):
                self.require_allowed(f"{name}, which its provider would read,", "url")
            elif name in _KEPT and value:
                self.require_allowed(f"{name}, which is kept at the provider,", name)
        if tools := block.get("tools"):
            for tool in _as_list(tools):
                self._check_tool(tool)


def _as_object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
