"""Implement ``turns openwebui``: generate the settings of Open WebUI for this installation, and check them."""

from __future__ import annotations

import json
import secrets
import struct
import zlib
from base64 import b64encode
from typing import Any
from urllib.parse import urlsplit

import click
import yaml

from api_client.contract.settings import Settings, load_settings, read_running_installation
from worker.cli.checks.finding import print_findings
from worker.cli.installation.openwebui_check import RelayAddress, check_open_webui
from worker.cli.installation.relay_binding import RelayBinding
from worker.cli.output import json_option

#: The version tested in a real browser (docs/open-webui.md).
SEEN = "v0.12.4"
#: Headers and the variables with which Open WebUI fills them; they tell Regenerate from a new question.
TEMPLATES = {
    "X-Owui-Task": "{{TASK}}",
    "X-Owui-Chat-Id": "{{CHAT_ID}}",
    "X-Owui-Message-Id": "{{MESSAGE_ID}}",
    "X-Owui-User-Message-Id": "{{USER_MESSAGE_ID}}",
    "X-Owui-User-Id": "{{USER_ID}}",
}
NO_KEY = "PASTE-A-KEY-OF-turns-keys-create"
_ADMINS_ONLY = "Only admins see a model until it is imported (turns openwebui print models), or, for one team, until"
_NOTES = [
    '# OPENAI_API_BASE_URLS, if it is set too, wins over OPENAI_API_BASE_URL; "0" below is then its first address.',
    "# ENABLE_PERSISTENT_CONFIG=False: this file wins at each start over what was set in the Admin Panel.",
    "# WEBUI_SECRET_KEY is new in each print: keep the first one, another one signs everybody out.",
    "# Leave AIOHTTP_CLIENT_TIMEOUT unset: with it Open WebUI throws long answers away.",
    f"# {_ADMINS_ONLY}",
    "# BYPASS_MODEL_ACCESS_CONTROL=True",
]
_PROMPTS = {
    "de": [("Schreibe ein ADR", "zu einer Entscheidung, die ansteht"), ("Prüfe diesen Entwurf", "und nenne Lücken")],
    "en": [("Write an ADR", "for a decision we face"), ("Review this design", "and name what is missing")],
}
_DESCRIPTION = {"de": "Antworten werden geprüft, bevor sie gelten.", "en": "Answers are checked before they count."}


_url_option = click.option("--url", help="The relay's address as Open WebUI reaches it, with /v1.")
_key_option = click.option("--key", help="The API key Open WebUI uses; else the first of HELIX_API_KEYS.")


@click.command("print", epilog="Example: turns openwebui print env > open-webui.env")
@click.argument("what", type=click.Choice(["env", "docker", "compose", "models"]))
@_url_option
@_key_option
def print_settings(what: str, url: str | None, key: str | None) -> None:
    """Print the settings for an Open WebUI that uses this installation.

    `env` is its environment for a shell, `docker` for `docker run --env-file`, `compose` a file for Docker Compose to
    go beside compose/compose.yaml, `models` one for Workspace > Models > Import.
    """
    settings = load_settings()
    if what == "models":
        click.echo(json.dumps([build_model_entry(model, settings) for model in settings.models], indent=2))
        return
    url = add_version(url) if url else None
    written = {"compose": render_compose_file, "docker": render_docker_file, "env": render_env_file}[what](
        settings, url, key
    )
    click.echo(written, nl=False)


@click.command(epilog="Example: turns openwebui check --no-turn")
@_url_option
@_key_option
@click.option("--model", help="The model to ask; else the first of HELIX_MODELS.")
@click.option("--no-turn", is_flag=True, help="Do not ask the agent.")
@click.option("--timeout", type=click.FloatRange(1, 86_400), default=120.0, show_default=True, help="Seconds to wait.")
@json_option
def check(url: str | None, key: str | None, model: str | None, no_turn: bool, timeout: float, as_json: bool) -> None:
    """Send requests like Open WebUI's to the relay, and report misconfigurations on both sides. Runs the agent once.

    Exit code 1 if something is wrong.
    """
    settings = load_settings()
    relay = RelayAddress(add_version(url) if url else find_relay_address(settings), key or find_key(settings), timeout)
    print_findings(
        check_open_webui(settings, relay, model or next(iter(settings.models)), ask=not no_turn), as_json=as_json
    )


def add_version(url: str) -> str:
    """Return the relay's URL with the path /v1 appended if the URL has no path."""
    return f"{url.rstrip('/')}/v1" if urlsplit(url).path in {"", "/"} else url


def find_relay_address(settings: Settings) -> str:
    """Return the URL of the relay on this machine: that of a running `turns up`, or else the default."""
    installation = read_running_installation(settings.root)
    if "web_url" in installation and installation.get("redis_url") == settings.store_url:
        return f"{installation['web_url']}/v1"
    return f"{RelayBinding().url}/v1"


def find_key(settings: Settings) -> str:
    """Return an API key for Open WebUI, or a placeholder, because without a key Open WebUI hides the models."""
    if settings.forwarding_keys or settings.api_keys:
        return (*settings.forwarding_keys, *settings.api_keys)[0]
    return NO_KEY if settings.keys_path.exists() else "none-is-asked-for"


def build_environment(settings: Settings, url: str, key: str) -> dict[str, str]:
    """Return Open WebUI's environment variables for a relay with this URL and API key."""
    signed = {"FORWARD_USER_INFO_HEADER_JWT_SECRET": settings.user_jwt_secret} if settings.user_jwt_secret else {}
    return {
        "OPENAI_API_BASE_URL": url,
        "OPENAI_API_KEY": key,
        "OPENAI_API_CONFIGS": json.dumps({"0": {"headers": TEMPLATES}}, separators=(",", ":")),
        "ENABLE_FORWARD_USER_INFO_HEADERS": "true",
        **signed,
        "ENABLE_PERSISTENT_CONFIG": "False",
        "ENABLE_OLLAMA_API": "False",
        "DEFAULT_MODELS": next(iter(settings.models)),
        "WEBUI_SECRET_KEY": secrets.token_urlsafe(32),
    }


def render_env_file(settings: Settings, url: str | None, key: str | None) -> str:
    """Return Open WebUI's environment variables as a file for a shell or Compose's ``env_file``."""
    values = build_environment(settings, url or find_relay_address(settings), key or find_key(settings))
    head = [
        f"# Open WebUI {SEEN} in front of helix-turns. Save as open-webui.env, then: set -a; . ./open-webui.env",
        "# For `docker run --env-file`, which keeps quotes, use `turns openwebui print docker`.",
    ]
    quoted = [f"{name}='{value}'" if "{" in value else f"{name}={value}" for name, value in values.items()]
    return "\n".join([*head, *_NOTES, *quoted]) + "\n"


def render_docker_file(settings: Settings, url: str | None, key: str | None) -> str:
    """Return Open WebUI's environment variables as a file for `docker run --env-file`, which keeps quotes."""
    url = url or find_relay_address(settings).replace("127.0.0.1", "host.docker.internal")
    values = build_environment(settings, url, key or find_key(settings))
    head = [
        f"# Open WebUI {SEEN} in front of helix-turns. Save as open-webui.env, then:",
        "#   docker run -d --name open-webui -p 127.0.0.1:3000:8080 --add-host=host.docker.internal:host-gateway \\",
        f"#     --env-file open-webui.env -v open-webui:/app/backend/data ghcr.io/open-webui/open-webui:{SEEN}",
        "# The relay must listen where containers reach it: --host 0.0.0.0, which needs keys.",
    ]
    return "\n".join([*head, *_NOTES, *(f"{name}={value}" for name, value in values.items())]) + "\n"


def render_compose_file(settings: Settings, url: str | None, key: str | None) -> str:
    """Return a Docker Compose override that adds the service ``open-webui`` to compose/compose.yaml."""
    given = {name: value.replace("$", "$$") for name, value in build_environment(settings, "", "").items()}
    given["OPENAI_API_BASE_URL"] = url or "http://web:8765/v1"
    given["OPENAI_API_KEY"] = key.replace("$", "$$") if key else "${HELIX_WEBUI_KEY:?a key of the relay}"
    service = {
        "image": f"ghcr.io/open-webui/open-webui:{SEEN}",
        "depends_on": {"web": {"condition": "service_healthy"}},
        "environment": given,
        "ports": ["127.0.0.1:3000:8080"],
        "volumes": ["open-webui:/app/backend/data"],
        "networks": ["turns"],
        "restart": "unless-stopped",
    }
    head = (
        "# Save as compose/open-webui.yaml, then:\n"
        "#   docker compose -f compose/compose.yaml -f compose/open-webui.yaml up\n"
        f"# {_ADMINS_ONLY}\n# BYPASS_MODEL_ACCESS_CONTROL is set to True.\n"
    )
    body: dict[str, Any] = {"services": {"open-webui": service}, "volumes": {"open-webui": None}}
    return head + yaml.safe_dump(body, sort_keys=False, width=4096)


def build_model_entry(model: str, settings: Settings) -> dict[str, Any]:
    """Return the description of a model for Open WebUI's import, readable by all users.

    Its capabilities replace those from the relay, so they disable the built-in tools again.
    """
    locale, vision = settings.locale, settings.for_model(model).vision
    prompts = [{"title": [one, two], "content": f"{one}: "} for one, two in _PROMPTS.get(locale, _PROMPTS["en"])]
    return {
        "id": model,
        "base_model_id": None,
        "name": model.replace("-", " ").replace("_", " ").title(),
        "is_active": True,
        "params": {},
        "meta": {
            "profile_image_url": f"data:image/png;base64,{b64encode(draw_icon(model)).decode()}",
            "description": _DESCRIPTION.get(locale, _DESCRIPTION["en"]),
            "capabilities": {"builtin_tools": False, "vision": vision, "usage": True},
            "suggestion_prompts": prompts,
        },
        "access_grants": [{"principal_type": "user", "principal_id": "*", "permission": "read"}],
    }


def draw_icon(model: str, size: int = 64) -> bytes:
    """Draw a PNG icon in a colour derived from the model's name. Open WebUI accepts no SVG here."""
    red, green, blue = (64 + part % 128 for part in zlib.crc32(model.encode()).to_bytes(4, "big")[:3])
    middle = (size - 1) / 2

    def draw_pixel(x: int, y: int) -> bytes:
        away = ((x - middle) ** 2 + (y - middle) ** 2) ** 0.5 / (size / 2)
        seen = 0.62 < away < 0.95 or away < 0.28
        return bytes((red, green, blue, 255 if seen else 0))

    rows = b"".join(b"\0" + b"".join(draw_pixel(x, y) for x in range(size)) for y in range(size))

    def encode_chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + encode_chunk(b"IHDR", header)
        + encode_chunk(b"IDAT", zlib.compress(rows))
        + encode_chunk(b"IEND", b"")
    )
