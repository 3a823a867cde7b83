"""Every setting, once: name, default, what it means. Read from the environment by ``load``; both sides use the result.

A wrong value or an unknown ``HELIX_`` name is reported with all others at once, so that nobody repairs them one by one.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from api_client.contract.errors import SettingsError
from api_client.contract.offered import BUILT_IN
from api_client.contract.values.sentinels import Sentinels
from api_client.contract.values.setting_values import (
    ROLES,
    choice,
    directory,
    flow_weights,
    folders,
    foreign_names,
    grants,
    host_names,
    integer,
    key_list,
    message_roles,
    model_runners,
    names,
    number,
    store_address,
    stream_modes_of,
    text,
    web_address,
)

#: Where a running ``turns up`` writes the address of its broker, under ``HELIX_ROOT``.
STATE_DIR = ".helix"
RUN_FILE = "run.json"
#: The models offered by default where the Claude CLI has a key; without one only the scripted agent could answer.
_CONSULTANT = {"helix-consultant": "claude_cli", "scripted": "scripted"}
#: ADR-034's feature flag. Its flow is the only one now, so installations that set it go on.
_LLM_FLOW = "HELIX_USE_LLM_FLOW"


def _setting(default: Any, parse: Callable[[str], Any], help_text: str, *, secret: bool = False) -> Any:
    meta = {"parse": parse, "help": help_text, "secret": secret}
    return field(default_factory=default, metadata=meta) if callable(default) else field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. The environment name of ``lease_seconds`` is ``HELIX_LEASE_SECONDS``, and so on."""

    root: Path = _setting(Path.cwd, directory, "The project the agents work in; paths in answers resolve against it.")
    broker_url: str = _setting(
        "", store_address, "Celery's broker. REDIS_URL sets broker and store at once.", secret=True
    )
    store_url: str = _setting("", store_address, "Where turns, events and metrics live.", secret=True)
    open_broker: str = _setting(
        "refused",
        choice("refused", "allowed"),
        "What to do with a broker or store beyond this machine whose address has no password.",
    )
    namespace: str = _setting("helix", text, "Prefix of every key, so that several installations can share a store.")
    shards: int = _setting(1, integer(1, 1024), "Hash-tag shards sessions are spread over.")
    durability: str = _setting(
        "everysec",
        choice("everysec", "power", "replicated"),
        "What a submit and a shown end wait for: power: the disk; replicated: a replica, as for Sentinel.",
    )
    models: dict[str, str] = _setting(
        lambda: {"scripted": "scripted"},
        model_runners,
        "Models: model=runner[:option],...; none set, but HELIX_CLAUDE_API_KEY: also helix-consultant=claude_cli.",
    )
    vision_models: tuple[str, ...] = _setting(
        (), names, "Models whose agents read images: of claude_cli, or of a service that does. Others refuse them."
    )
    validators: tuple[str, ...] = _setting(
        BUILT_IN, names, "Validators active when a request names none; any offered one can be named (validators.md)."
    )
    locale: str = _setting("de", choice("de", "en"), "Language of feedback and of messages to the user.")
    max_attempts: int = _setting(3, integer(1, 20), "Agent runs per turn at most: ADR-038's max_retries plus one.")
    deadline_seconds: float = _setting(3600.0, number(1, 604_800), "Wall time of a turn, over all attempts.")
    validation_seconds: float = _setting(10.0, number(0.1, 3600), "Validators that need longer for one answer failed.")
    escalation_model: str = _setting(
        "", text, "Stage 1 of an escalation: the model of HELIX_MODELS that is asked on its own; none: no stage 1."
    )
    escalation_runs: int = _setting(1, integer(0, 10), "How often that model is run at most; 0: no stage 1.")
    escalation_human: str = _setting(
        "yes", choice("yes", "no"), "Stage 2 of an escalation: park the turn in the inbox for a person to decide."
    )
    escalation_timeout_seconds: float = _setting(
        86_400.0, number(1, 2_592_000), "How long a turn lies in the inbox before the default is decided."
    )
    escalation_default: str = _setting(
        "reject", choice("reject", "approve"), "What is decided on a parked turn when nobody does in time."
    )
    token_budget: int = _setting(0, integer(0, 10**9), "Tokens all attempts of a turn may use together; 0: no limit.")
    cost_budget_usd: float = _setting(0.0, number(0, 10**6), "The same for money, in US dollars; 0: no limit.")
    idle_seconds: float = _setting(600.0, number(0.1, 86_400), "An agent silent for so long is stopped.")
    kill_grace_seconds: float = _setting(5.0, number(0, 600), "Time between SIGTERM and SIGKILL for an agent.")
    transient_retries: int = _setting(4, integer(0, 100), "Passing errors (429, 5xx, network) forgiven per attempt.")
    transient_delay_seconds: float = _setting(1.0, number(0, 3600), "First delay after a passing error; doubles.")
    busy_delay_seconds: float = _setting(
        15.0, number(0, 3600), "The same where the service is too busy or limits us (429, 529); doubles three times."
    )
    lease_seconds: float = _setting(6.0, number(0.5, 600), "A worker silent for so long has lost its turn.")
    reap_seconds: float = _setting(1.0, number(0.05, 60), "How often each worker looks for turns nobody looks after.")
    announce_seconds: float = _setting(5.0, number(0.2, 600), "An unclaimed turn is announced again; doubles.")
    deaf_seconds: float = _setting(
        60.0, number(0, 86_400), "A worker that takes no message for so long, though it could, is restarted; 0: never."
    )
    shutdown_seconds: float = _setting(
        20.0, number(0, 86_400), "On SIGTERM running agents may finish for so long; then their turns are handed over."
    )
    strikes: int = _setting(5, integer(2, 100), "Deliveries that may end in a dead worker before the turn is dead.")
    retention_seconds: float = _setting(7 * 86_400.0, number(60, 10**9), "How long a finished turn stays readable.")
    event_retention_seconds: float = _setting(
        0.0, number(0, 10**9), "The same for its events, where shorter; `turns gc` enforces it. 0: as the turn."
    )
    attempt_retention_seconds: float = _setting(
        0.0, number(0, 10**9), "The same for its attempts and their folders (`turns gc`). 0: as the turn."
    )
    session_retention_seconds: float = _setting(
        0.0, number(0, 10**9), "Session folders not written to for so long are removed by `turns gc`. 0: never."
    )
    audit_seconds: float = _setting(400 * 86_400.0, number(3600, 10**9), "How long lines of the audit log are kept.")
    minute_metrics_seconds: float = _setting(
        2 * 86_400.0, number(3600, 10**9), "How long counters by the minute are kept; then hours answer."
    )
    hour_metrics_seconds: float = _setting(
        40 * 86_400.0, number(86_400, 10**9), "How long counters by the hour are kept; then days answer."
    )
    day_metrics_seconds: float = _setting(
        400 * 86_400.0, number(86_400, 10**9), "How long counters by the day are kept."
    )
    flow_version: dict[str, int] = _setting(
        lambda: {"v2": 1},
        flow_weights,
        "Version of prompts and rules, noted with each turn; v2=9,v3=1 spreads sessions.",
    )
    run_slots: int = _setting(16, integer(1, 1000), "Agents a worker runs at once.")
    check_slots: int = _setting(2, integer(1, 64), "Answers a worker judges at once.")
    web_host: str = _setting("127.0.0.1", text, "Address the relay listens on.")
    web_port: int = _setting(8765, integer(0, 65_535), "Port the relay listens on; 0 takes a free one.")
    public_url: str = _setting(
        "",
        web_address,
        "Address at which people reach the relay's pages; then a chat that waits for one of them links there.",
    )
    flower_port: int = _setting(5555, integer(0, 65_535), "Port Flower listens on; 0 turns Flower off.")
    api_keys: tuple[str, ...] = _setting(
        (),
        key_list,
        "Keys the relay accepts, beside those of `turns keys`; without any it serves loopback only.",
        secret=True,
    )
    forwarding_keys: tuple[str, ...] = _setting(
        (),
        key_list,
        "The same for keys that speak for several users, such as Open WebUI's: each request names its user.",
        secret=True,
    )
    keys_file: str = _setting(
        "", text, "Where `turns keys` keeps its keys (hashes only); none: HELIX_ROOT/.helix/keys.json."
    )
    phase_directories: tuple[str, ...] = _setting(
        (),
        grants,
        "Folders below HELIX_ROOT in which keys may run phases: FOLDER=OWNER,... (owners of `turns keys list`, or *).",
    )
    user_jwt_secret: str = _setting(
        "",
        text,
        "Open WebUI's FORWARD_USER_INFO_HEADER_JWT_SECRET: users of a forwarding key must then be signed.",
        secret=True,
    )
    turns_per_minute: int = _setting(
        60, integer(0, 10**6), "Turns an owner may hand in a minute, and at once; more get 429. 0: no limit."
    )
    owner_unfinished: int = _setting(
        100, integer(0, 10**7), "Turns of one owner that have not ended; more get 429. 0: no limit."
    )
    owner_bytes: int = _setting(
        256 * 2**20,
        integer(0, 2**50),
        "Bytes of one owner's requests within HELIX_RETENTION_SECONDS, half of it at once; more get 429. 0: no limit.",
    )
    owner_requests: int = _setting(
        100, integer(0, 10**6), "Requests of one owner in progress at a relay, streams included. 0: no limit."
    )
    max_connections: int = _setting(
        4_096, integer(1, 10**6), "Connections a relay serves at once; one more gets 503 and is closed."
    )
    max_unfinished: int = _setting(
        10_000,
        integer(0, 10**7),
        "Unfinished turns with which the relay takes in no more: 429 queue_full. 0: no limit.",
    )
    max_messages: int = _setting(2_000, integer(1, 10**5), "Messages a conversation may have.")
    max_message_chars: int = _setting(2**20, integer(1, 2**24), "Characters one message may have.")
    roles: tuple[str, ...] = _setting(ROLES, message_roles, "Roles a message may have.")
    ping_seconds: float = _setting(10.0, number(0.05, 300), "Longest silence on a stream before a keep-alive.")
    stream_modes: dict[str, str] = _setting(
        dict,
        stream_modes_of,
        "How a model's answers are streamed: model=live|draft|validated,...; else the client decides.",
    )
    stuck_reader_seconds: float = _setting(
        60.0, number(0, 86_400), "A reader of the relay that takes nothing for so long is dropped (Linux); 0: never."
    )
    stop_grace_seconds: float = _setting(
        20.0, number(0, 86_400), "A turn whose Open WebUI reader left is cancelled after so long; 0: never."
    )
    rejoin_seconds: float = _setting(
        900.0, number(0, 86_400), "A finished answer nobody received is given to a Regenerate for so long."
    )
    parked_seconds: float = _setting(
        300.0, number(0, 86_400), "How long a caller waits for a turn that waits for a person; then it is told."
    )
    max_body_bytes: int = _setting(8 * 2**20, integer(1024, 2**30), "Largest request body the relay reads.")
    box: str = _setting(
        "auto",
        choice("auto", "off", "required"),
        "bubblewrap around agents: auto: around claude_cli where it works; required: around every agent, or none runs.",
    )
    box_hosts: tuple[str, ...] = _setting(
        (),
        host_names,
        "Hosts that claude_cli may reach from a box besides its model: name[:port],... or *.name; port 443 if none.",
    )
    limit_memory_mb: int = _setting(
        4096, integer(0, 10**7), "Memory an agent and all it starts may use together, in MiB; 0: no limit."
    )
    limit_processes: int = _setting(
        1024, integer(0, 10**6), "Processes and threads an agent may have, all together; 0: no limit."
    )
    limit_open_files: int = _setting(
        4096, integer(0, 10**6), "Files each process of an agent may have open; 0: as many as the worker."
    )
    limit_tmp_mb: int = _setting(
        1024, integer(0, 10**7), "Size of a box's /tmp, and of its /dev/shm, in MiB of memory; 0: half the machine's."
    )
    limit_folder_mb: int = _setting(
        2048,
        integer(0, 10**7),
        "What one run of an agent may write into its folder and its HOME, in MiB; 0: no limit.",
    )
    writable: tuple[str, ...] = _setting(
        (), folders, "Folders below HELIX_ROOT that claude_cli may write besides its own, such as adr."
    )
    claude_path: str = _setting("claude", text, "The Claude Code CLI: a path, or a name on PATH (docs/claude-cli.md).")
    claude_model: str = _setting(
        "", text, "Model for the CLI; claude_cli:MODEL in HELIX_MODELS overrides; none: its own."
    )
    claude_api_url: str = _setting(
        "", web_address, "Base address of the Messages API for the CLI; none: its own default."
    )
    claude_api_key: str = _setting(
        "",
        text,
        "API key, or `claude setup-token` token, for the CLI; a key of the worker's own is not used.",
        secret=True,
    )
    claude_env: tuple[str, ...] = _setting(
        (),
        foreign_names,
        "Names of the worker's own environment that the CLI is given, such as HTTPS_PROXY,AWS_REGION.",
    )
    claude_permission_mode: str = _setting(
        "acceptEdits",
        choice("acceptEdits", "auto", "bypassPermissions", "dontAsk", "manual", "plan"),
        "What the CLI may do without asking; nobody is there to ask, so the rest is denied.",
    )
    claude_tools: tuple[str, ...] = _setting(
        ("Read", "Write", "Edit", "Glob", "Grep"), names, "The CLI's built-in tools that exist at all; `default`: all."
    )
    claude_allowed_tools: tuple[str, ...] = _setting(
        (), names, "Permission rules beyond reading the project and writing in the run's folder, such as WebSearch."
    )
    verifier_model: str = _setting(
        "", text, "Model of HELIX_MODELS that verifies phases, best a small one; none: the phase's own."
    )
    verifier_seconds: float = _setting(120.0, number(1, 3600), "A verifier that needs longer has not verified.")
    openai_url: str = _setting(
        "", web_address, "Base address of an OpenAI-compatible service, with /v1, for openai_http:MODEL."
    )
    openai_api_key: str = _setting("", text, "Key for that service.", secret=True)
    witness: str = _setting("", text, "File in which the scripted agent records what it really executed (tests).")
    failpoint: str = _setting("", text, "Where this process dies or freezes on purpose (tests); see failpoints.py.")
    log_format: str = _setting("console", choice("console", "json"), "How log lines are written.")
    log_level: str = _setting("info", choice("debug", "info", "warning", "error"), "Least severe level written.")

    @property
    def keys_path(self) -> Path:
        """The file of ``turns keys``."""
        return Path(self.keys_file).expanduser() if self.keys_file else self.root / STATE_DIR / "keys.json"

    @property
    def token_path(self) -> Path:
        """The file with the operator's token of an installation without keys."""
        return self.root / STATE_DIR / "operator-token"

    @property
    def sessions_dir(self) -> Path:
        """Where the sessions' folders are (ADR-034)."""
        return self.root / "projects" / "sessions"

    @property
    def celery_url(self) -> str:
        """The broker's address in Celery's spelling."""
        if sentinels := Sentinels.parse(self.broker_url):
            login = f":{sentinels.password}@" if sentinels.password else ""
            return ";".join(f"sentinel://{login}{host}:{port}/{sentinels.db}" for host, port in sentinels.nodes)
        return self.broker_url.replace("unix://", "redis+socket://", 1)

    @property
    def redis_url(self) -> str:
        """The store's address in redis-py's spelling."""
        return self.store_url.replace("redis+socket://", "unix://", 1)

    def environ(self) -> dict[str, str]:
        """The settings as environment variables, for a process we start."""
        return {name_of(f.name): _spell(getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != ""}


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def name_of(attribute: str) -> str:
    """The environment name of a setting."""
    return f"HELIX_{attribute.upper()}"


def masked(url: str) -> str:
    """An address without its password, fit for a message."""
    if url.startswith("sentinel://"):
        login, at, rest = url.removeprefix("sentinel://").rpartition("@")
        return f"sentinel://{login.partition(':')[0]}:***@{rest}" if at else url
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}{port}"))


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings.

    Order for broker and store: their own names, then ``REDIS_URL``, then the broker a running ``turns up`` announces
    under ``HELIX_ROOT/.helix``; with that broker come the models of that installation, unless HELIX_MODELS is set.

    Raises:
        SettingsError: with every problem found, one line each.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    known = {name_of(f.name): f for f in fields(Settings)}
    secret = [name for name, entry in known.items() if entry.metadata["secret"]]
    environ = _with_files(os.environ if environ is None else environ, [*secret, "REDIS_URL"], problems)
    problems += _unknown(environ, known)
    for name, entry in known.items():
        raw = environ.get(name, "")
        if raw == "" and entry.name in {"broker_url", "store_url"}:
            name, raw = "REDIS_URL", environ.get("REDIS_URL", "")
        if raw == "":
            continue
        try:
            values[entry.name] = entry.metadata["parse"](raw)
        except ValueError as error:
            shown = "***" if entry.metadata["secret"] else repr(raw[:80])
            problems.append(f"{name}={shown}: {error}")
    if "models" not in values and values.get("claude_api_key"):
        values["models"] = dict(_CONSULTANT)
    settings = Settings(**values)
    readable = "models" in values or not environ.get("HELIX_MODELS")
    if set(settings.api_keys) & set(settings.forwarding_keys):
        problems.append("HELIX_FORWARDING_KEYS: a key stands in HELIX_API_KEYS too; leave it in one of them")
    if settings.verifier_model and settings.verifier_model not in settings.models and readable:
        there = ", ".join(settings.models)
        problems.append(f"HELIX_VERIFIER_MODEL={settings.verifier_model!r}: not a model of HELIX_MODELS ({there})")
    if readable and (unknown := [name for name in settings.vision_models if name not in settings.models]):
        there = ", ".join(settings.models)
        problems.append(f"HELIX_VISION_MODELS={','.join(unknown)!r}: not a model of HELIX_MODELS ({there})")
    problems += [] if settings.open_broker == "allowed" else _open_brokers(settings)
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
    return _with_running_broker(settings, own_models=bool(environ.get("HELIX_MODELS")))


def _unknown(environ: Mapping[str, str], known: Collection[str]) -> list[str]:
    """What is wrong with names that look like settings and are none, or no longer."""
    problems = []
    if environ.get(_LLM_FLOW, "true").lower() not in {"true", "1", ""}:
        problems.append(
            f"{_LLM_FLOW}: only true; the flow before ADR-034 is not here. HELIX_FLOW_VERSION compares flows"
        )
    for name in environ:
        if name in known or name == _LLM_FLOW or not name.startswith("HELIX_") or name.startswith("HELIX_AGENT_"):
            continue
        close = difflib.get_close_matches(name, known, n=1)
        problems.append(f"{name}: no such setting" + (f"; did you mean {close[0]}?" if close else ""))
    return problems


def _with_files(environ: Mapping[str, str], secrets: list[str], problems: list[str]) -> dict[str, str]:
    """The environment with ``NAME`` read from the file that ``NAME_FILE`` names, for settings that are secret."""
    found = dict(environ)
    for name in secrets:
        if not (path := found.pop(f"{name}_FILE", "")):
            continue
        if found.get(name):
            problems.append(f"{name}_FILE: {name} is set too; set one of them")
            continue
        try:
            found[name] = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            problems.append(f"{name}_FILE={path!r}: cannot be read ({type(error).__name__})")
    return found


def _open_brokers(settings: Settings) -> list[str]:
    """What is wrong with a server on another machine that asks for no password: who reaches it reads and runs all."""
    return [
        f"{name}={masked(url)}: a server beyond this machine needs a password: redis://user:password@host (Valkey: ACL "
        "users as in compose/broker/users.acl, or requirepass); HELIX_OPEN_BROKER=allowed takes it as it is"
        for name, url in (("HELIX_BROKER_URL", settings.broker_url), ("HELIX_STORE_URL", settings.store_url))
        if url and not _guarded(url)
    ]


def _guarded(url: str) -> bool:
    """Whether a server has a password, or only this machine reaches it. Pure: names are not looked up."""
    if sentinels := Sentinels.parse(url):
        return bool(sentinels.password) or all(_is_here(host) for host, _ in sentinels.nodes)
    parts = urlsplit(url)
    return parts.scheme not in {"redis", "rediss"} or bool(parts.password) or _is_here(parts.hostname or "")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def running(root: Path) -> dict[str, str]:
    """What a running ``turns up`` tells of itself under ``HELIX_ROOT``: addresses, models; nothing when none runs."""
    try:
        told = json.loads((root / STATE_DIR / RUN_FILE).read_text())
        return {name: value for name, value in told.items() if isinstance(value, str)}
    except (OSError, ValueError, AttributeError):
        return {}


def _with_running_broker(settings: Settings, *, own_models: bool) -> Settings:
    """Fill in the broker that ``turns up`` runs, and its models, where none are set."""
    if settings.broker_url and settings.store_url:
        return settings
    values = {f.name: getattr(settings, f.name) for f in fields(settings)}
    url = settings.store_url or settings.broker_url
    if not url:
        told = running(settings.root)
        if not (url := told.get("redis_url", "")):
            return settings
        if not own_models and "models" in told:
            values["models"] = model_runners(told["models"])
    values["broker_url"] = settings.broker_url or url
    values["store_url"] = settings.store_url or url
    return Settings(**values)


def require_store(settings: Settings) -> Settings:
    """The settings, if they name a store.

    Raises:
        SettingsError: no store is set and none is running here; says the ways out.
    """
    if not settings.store_url:
        raise SettingsError(
            ["no broker: set REDIS_URL=redis://host:6379/0, or start one here with `turns up` (or run `turns demo`)"]
        )
    return settings
