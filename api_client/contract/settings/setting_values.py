"""Values of settings: from the text in the environment to a checked value."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

from api_client.contract.notices import KINDS
from api_client.contract.session_paths import NONE, SHIPPED
from api_client.contract.settings.cluster import Cluster
from api_client.contract.settings.sentinels import Sentinels

#: How a streamed answer is shown before it is accepted (docs/http-api.md).
STREAM_MODES = ("live", "draft", "validated")
#: Every role a message can have.
ROLES = ("system", "developer", "user", "assistant", "tool")
_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]", re.ASCII)


def key_prefix(value: str) -> str:
    """Check a prefix of keys: no letters of patterns, and no braces, which would choose the slot in a cluster."""
    if not value or not value.isprintable() or not set(" {}*?[]\\").isdisjoint(value):
        raise ValueError("must be a word without spaces and without any of {}*?[]\\")
    return value


def number(low: float, high: float) -> Callable[[str], float]:
    """A number within limits, both included."""

    def parse(value: str) -> float:
        try:
            number = float(value) if value.isascii() else math.nan
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise ValueError(f"must be a number from {low:.15g} to {high:.15g}")
        return number

    return parse


def integer(low: int, high: int) -> Callable[[str], int]:
    """A whole number within limits, both included."""

    def parse(value: str) -> int:
        if not (value.isascii() and value.isdecimal() and low <= int(value) <= high):
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return parse


def choice(*allowed: str) -> Callable[[str], str]:
    """One of these words."""

    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return parse


def directory(value: str) -> Path:
    """A directory that is there, as an absolute path."""
    path = Path(value).expanduser()
    if not path.is_dir():
        raise ValueError("must be an existing directory")
    if path.resolve() == Path("/"):
        raise ValueError("must not be /, nor a link to it: it is the project, which agents read")
    return path.resolve()


def file_path(value: str) -> str:
    """A file, as an absolute path: each process of an installation has another working folder."""
    return str(Path(value).expanduser().absolute())


def program_path(value: str) -> str:
    """A program: a name on PATH as it is, a path as an absolute one."""
    return file_path(value) if "/" in value else value


def template(value: str) -> str:
    """A template of prompts: the name of a shipped one as it is, a path as an absolute one."""
    return value if value in (*SHIPPED, NONE) else file_path(value)


def store_address(value: str) -> str:
    """The address of a Redis or Valkey, of Sentinels, or of a cluster."""
    if Sentinels.parse(value) or Cluster.parse(value):
        return value
    parts = urlsplit(value)
    unix = parts.scheme in {"unix", "redis+socket"}
    if not (parts.scheme in {"redis", "rediss"} and parts.hostname) and not (unix and parts.path):
        raise ValueError(
            "must look like redis://host:6379/0, rediss://..., unix:///path, sentinel://host:port/master or"
            " redis+cluster://host:port,host:port"
        )
    _ = parts.port  # raises ValueError when it is not a port
    return value


def web_address(value: str) -> str:
    """The address of a website."""
    parts = urlsplit(value)
    if not (parts.scheme in {"http", "https"} and parts.hostname):
        raise ValueError("must look like https://host or http://host:port/path")
    _ = parts.port  # raises ValueError when it is not a port
    return value


def bucket(value: str) -> str:
    """The place in an object store, ``s3://BUCKET/PREFIX``; nothing: none."""
    parts = urlsplit(value)
    if value and (parts.scheme != "s3" or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{2,62}", parts.netloc) or parts.query):
        raise ValueError("must look like s3://bucket or s3://bucket/prefix")
    return value


#: What represents the trace's id (32 hexadecimal digits) in the address of its page.
TRACE_ID = "{trace_id}"


def trace_address(value: str) -> str:
    """The address of a trace's page, with ``{trace_id}`` in it; nothing: none."""
    if value and TRACE_ID not in web_address(value):
        raise ValueError(f"must hold {TRACE_ID}, as in http://127.0.0.1:16686/trace/{TRACE_ID}")
    return value


def web_addresses(value: str) -> tuple[str, ...]:
    """Addresses of websites, with commas between them."""
    found = names(value)
    for each in found:
        web_address(each)
        if "@" in urlsplit(each).netloc:
            raise ValueError("must not hold a user or password")
    return found


def webhook_key(value: str) -> str:
    """A key that signs webhooks: ``whsec_`` and base64, or any text."""
    if value.startswith("whsec_"):
        try:
            base64.b64decode(value.removeprefix("whsec_"), validate=True)
        except ValueError:
            raise ValueError("must be base64 behind whsec_") from None
    return value


def notice_kinds(value: str) -> tuple[str, ...]:
    """Kinds of notices with commas between them; ``response.*`` names all that begin so."""
    found = names(value)
    for each in found:
        if not any(kind == each or (each.endswith("*") and kind.startswith(each[:-1])) for kind in KINDS):
            raise ValueError(f"no kind of notice {each!r}; there are: {', '.join(KINDS)}")
    return found


def model_runners(value: str) -> dict[str, str]:
    """Models, each with its runner and the runner's option: ``model=runner[:option],...``."""
    models: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        model, separator, runner = item.partition("=")
        if not (separator and model.strip() and runner.strip()):
            raise ValueError("must look like model=runner[:option],model=runner")
        models[model.strip()] = runner.strip()
    if not models:
        raise ValueError("must name at least one model")
    return models


def flow_weights(value: str) -> dict[str, int]:
    """Flow versions, each with its weight: ``version=weight,...``; 1 where none is given."""
    flows = {}
    for item in names(value):
        version, given, weight = (part.strip() for part in item.partition("="))
        valid = version.isascii() and version.replace(".", "").replace("-", "").replace("_", "").isalnum()
        if not valid or len(version) > 32 or (given and not (weight.isascii() and weight.isdecimal())):
            raise ValueError("must look like version or version=weight,version=weight")
        flows[version] = int(weight) if given else 1
    if not any(flows.values()):
        raise ValueError("must name a version with a weight above 0")
    return flows


def day_budgets(value: str) -> dict[str, float]:
    """Dollars a day: ``all=200,owner:*=5,key:NAME=50,model:NAME=100``."""
    budgets = {}
    for item in names(value):
        scope, given, dollars = (part.strip() for part in item.rpartition("="))
        kind, _, name = scope.partition(":")
        if not given or (scope != "all" and (kind not in {"owner", "key", "model"} or not name)):
            raise ValueError("must look like all=200,owner:*=5,key:NAME=50,model:NAME=100: dollars a day")
        budgets[scope] = number(0, 10**9)(dollars)
    return budgets


def names(value: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(filter(None, (part.strip() for part in value.split(","))))


def networks(value: str) -> tuple[str, ...]:
    """Addresses, and networks of them."""
    given = names(value)
    for each in given:
        ip_network(each)  # raises ValueError, which names it
    return given


def key_list(value: str) -> tuple[str, ...]:
    """API keys with commas between them."""
    keys = names(value)
    if any(not key.isprintable() or not set(' "{}[]').isdisjoint(key) for key in keys):
        raise ValueError("must look like key1,key2 on one line; what `turns keys` writes is HELIX_KEYS_FILE's")
    return keys


def message_roles(value: str) -> tuple[str, ...]:
    """Some of ``ROLES``, user among them."""
    roles = names(value)
    if "user" not in roles or not set(roles) <= set(ROLES):
        raise ValueError(f"must name user, and otherwise any of {', '.join(ROLES)}")
    return roles


def folders(value: str) -> tuple[str, ...]:
    """Folders, relative to HELIX_ROOT and below it."""
    given = names(value)
    if any(Path(name).is_absolute() or ".." in Path(name).parts or Path(name) == Path() for name in given):
        raise ValueError("must be folders below HELIX_ROOT, such as adr,docs/decisions")
    return given


def foreign_names(value: str) -> tuple[str, ...]:
    """Environment variables that are not our settings."""
    given = names(value)
    if any(name.startswith("HELIX_") or name == "REDIS_URL" for name in given):
        raise ValueError("must not name our settings: agents do not get them")
    return given


def host_names(value: str) -> tuple[str, ...]:
    """Hosts, each with its port: ``name:port``; 443 where none is given."""
    hosts = []
    for item in names(value.lower()):
        bare = ":" not in item or item.endswith("]")
        host, _, port = (item, "", "443") if bare else item.rpartition(":")
        valid = port.isascii() and port.isdecimal() and 0 < int(port) < 65_536
        if not (_HOST.fullmatch(host) and valid):
            raise ValueError("must look like name,name:port,*.name or [::1]:port, without a scheme or a path")
        hosts.append(f"{host}:{port}")
    return tuple(hosts)
