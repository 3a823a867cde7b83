"""The settings by group, with their defaults, parsers and meanings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from api_client.contract.limits import MAX_ATTEMPTS, MAX_COST_USD, MAX_DEADLINE_SECONDS, MAX_TOKENS
from api_client.contract.offered import BUILT_IN
from api_client.contract.settings.declaration import constant, setting
from api_client.contract.settings.phase_grants import grants
from api_client.contract.settings.setting_values import (
    ROLES,
    bucket,
    choice,
    day_budgets,
    directory,
    file_path,
    flow_weights,
    folders,
    foreign_names,
    host_names,
    integer,
    key_list,
    key_prefix,
    message_roles,
    model_runners,
    names,
    networks,
    notice_kinds,
    number,
    program_path,
    store_address,
    template,
    trace_address,
    web_address,
    web_addresses,
    webhook_key,
)


@dataclass(frozen=True, kw_only=True)
class Agents:
    """The rights of an agent, and its way to its model."""

    box: str = setting(
        "auto",
        choice("auto", "off", "required"),
        "bubblewrap around agents: auto: where it works, but openai_http, python, scripted; required: for all.",
        per_model=True,
    )
    box_hosts: tuple[str, ...] = setting(
        (),
        host_names,
        "Hosts that an agent may reach from a box besides its model: name[:port],... or *.name; port 443 if none.",
        per_model=True,
    )
    limit_memory_mb: int = setting(
        4096,
        integer(0, 10**7),
        "Memory an agent and all it starts may use together, in MiB; 0: no limit.",
        per_model=True,
    )
    writable: tuple[str, ...] = setting(
        (), folders, "Folders below HELIX_ROOT that claude_cli may write besides its own, such as adr.", per_model=True
    )
    claude_path: str = setting(
        "claude", program_path, "The Claude Code CLI: a path, or a name on PATH (docs/claude-cli.md).", per_model=True
    )
    claude_api_url: str = setting(
        "", web_address, "Base address of the Messages API for the CLI; none: its own default."
    )
    claude_api_key: str = setting(
        "",
        str,
        "API key, or `claude setup-token` token, for the CLI; a key of the worker's own is not used.",
        secret=True,
    )
    claude_env: tuple[str, ...] = setting(
        (),
        foreign_names,
        "Names of the worker's own environment that the CLI is given, such as HTTPS_PROXY,AWS_REGION.",
        per_model=True,
    )
    claude_tools: tuple[str, ...] = setting(
        ("Read", "Write", "Edit", "Glob", "Grep"),
        names,
        "The CLI's built-in tools that exist at all; `default`: all.",
        per_model=True,
    )
    claude_allowed_tools: tuple[str, ...] = setting(
        (),
        names,
        "Permission rules beyond reading the project and writing in the run's folder, such as WebSearch.",
        per_model=True,
    )
    claude_warm_seconds: float = setting(
        300.0,
        number(0, 86_400),
        "How long an idle Claude CLI is kept for its session's next message (docs/claude-cli.md); 0: never.",
    )
    affinity_patience: float = constant(
        0.2, number(0, 60), "A message waits so long for the worker that can best go on with its session."
    )
    claude_warm_processes: int = constant(16, integer(1, 1000), "How many are kept in each worker process.")
    claude_warm_per_owner: int = constant(2, integer(1, 1000), "How many of these for one owner.")
    agent_path: str = setting(
        "",
        str,
        "The program of codex, acp and command agents, or the Python of your own; none: by name.",
        per_model=True,
    )
    agent_env: tuple[str, ...] = setting(
        (),
        foreign_names,
        "Names of the worker's own environment that these agents are given, such as HTTPS_PROXY.",
        per_model=True,
    )
    agent_allow: tuple[str, ...] = setting(
        (),
        names,
        "Kinds of tools that an acp agent may use when it asks, such as execute,fetch (docs/agents.md); else no.",
        per_model=True,
    )
    openai_url: str = setting(
        "", web_address, "Base address of an OpenAI-compatible service, with /v1, for openai_http:MODEL and agents."
    )
    openai_api_key: str = setting("", str, "Key for that service.", secret=True)
    service_at_once: int = setting(
        0,
        integer(0, 10**6),
        "Agents of all workers that may ask a model's service at once (operations.md); 0: any number.",
        per_model=True,
    )


@dataclass(frozen=True, kw_only=True)
class AnsweringSettings:
    """The agents that answer a turn, and their limits."""

    models: dict[str, str] = setting(
        lambda: {"scripted": "scripted"},
        model_runners,
        "Models: model=runner[:option],...; none set, but HELIX_CLAUDE_API_KEY: also helix-consultant=claude_cli.",
    )
    validators: tuple[str, ...] = setting(
        BUILT_IN,
        names,
        "Validators active when a request names none; any offered one can be named (validators.md).",
        per_model=True,
    )
    policy: str = setting(
        "",
        file_path,
        "Policy file (policy.md): its rules judge instead of HELIX_VALIDATORS; none: the three validators.",
        per_model=True,
    )
    prompt_template: str = setting(
        "",
        template,
        "Template of CLAUDE.md: a path, de, en, or none for no CLAUDE.md; not set: the turn's language (sessions.md).",
        per_model=True,
    )
    locale: str = setting(
        "en",
        choice("de", "en"),
        "Language of feedback and messages where a question shows neither German nor English.",
    )
    max_attempts: int = setting(
        3, integer(1, MAX_ATTEMPTS), "Agent runs per turn at most: ADR-038's max_retries plus one.", per_model=True
    )
    deadline_seconds: float = setting(
        3600.0, number(1, MAX_DEADLINE_SECONDS), "Wall time of a turn, over all attempts.", per_model=True
    )
    token_budget: int = setting(
        0, integer(0, MAX_TOKENS), "Tokens all attempts of a turn may use together; 0: no limit.", per_model=True
    )
    cost_budget_usd: float = setting(
        0.0, number(0, MAX_COST_USD), "The same for money, in US dollars; 0: no limit.", per_model=True
    )
    budgets: dict[str, float] = setting(
        dict,
        day_budgets,
        "Dollars a day (UTC): all=200,owner:*=5,key:webui=50,model:opus=100; a spent one refuses turns and runs (429).",
    )
    escalation_model: str = setting(
        "",
        str,
        "Stage 1 of an escalation: the model of HELIX_MODELS that is asked on its own; none: no stage 1.",
        per_model=True,
    )
    escalation_human: str = setting(
        "yes",
        choice("yes", "no"),
        "Stage 2 of an escalation: suspend the turn in the inbox for a person to decide.",
        per_model=True,
    )
    flow_version: dict[str, int] = setting(
        lambda: {"v2": 1},
        flow_weights,
        "Versions of prompts and rules: v2=9,v3=1 spreads sessions over two (flow-versions.md).",
    )
    verifier_model: str = setting(
        "", str, "Model of HELIX_MODELS that verifies phases, best a small one; none: the phase's own."
    )


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of the program: values no installation had a reason to change. Tests change them."""

    store_wait_seconds: float = constant(
        30.0, number(0, 3600), "How long a start waits for a store or broker that does not answer."
    )
    reap_seconds: float = constant(1.0, number(0.05, 60), "How often each worker looks for turns that need attention.")
    announce_seconds: float = constant(5.0, number(0.2, 600), "An unclaimed turn is announced again; doubles.")
    transient_delay_seconds: float = constant(1.0, number(0, 3600), "First delay after a passing error; doubles.")
    files_grace_seconds: float = constant(
        86_400.0, number(0, 10**9), "How long `turns gc` leaves what no session needs in the object store."
    )
    transient_retries: int = constant(4, integer(0, 100), "Passing errors (429, 5xx, network) forgiven per attempt.")
    kill_grace_seconds: float = constant(5.0, number(0, 600), "Time between SIGTERM and SIGKILL for an agent.")
    stalled_seconds: float = constant(
        60.0,
        number(0, 86_400),
        "A worker that takes no message for this long, though it could, is restarted; 0: never.",
    )
    minute_metrics_seconds: float = constant(
        2 * 86_400.0, number(3600, 10**9), "How long counters by the minute are kept; then hours answer."
    )
    hour_metrics_seconds: float = constant(
        40 * 86_400.0, number(86_400, 10**9), "How long counters by the hour are kept; then days answer."
    )
    day_metrics_seconds: float = constant(
        400 * 86_400.0, number(86_400, 10**9), "How long counters by the day are kept."
    )
    ping_seconds: float = constant(10.0, number(0.05, 300), "Longest silence on a stream before a keep-alive.")
    stuck_reader_seconds: float = constant(
        60.0, number(0, 86_400), "A reader of the relay that takes nothing for this long is dropped (Linux); 0: never."
    )
    rejoin_seconds: float = constant(
        900.0, number(0, 86_400), "A finished answer nobody received is given to a Regenerate for this long."
    )
    suspended_seconds: float = constant(
        300.0, number(0, 86_400), "How long a caller waits for a suspended turn; then it gets the error turn_suspended."
    )
    strikes: int = constant(5, integer(2, 100), "Deliveries that may end in a dead worker before the turn is dead.")
    validation_seconds: float = constant(10.0, number(0.1, 3600), "A validator that takes longer has failed.")
    verifier_seconds: float = constant(300.0, number(1, 3600), "A verifier that takes longer has not verified.")
    max_connections: int = constant(
        4_096, integer(1, 10**6), "Connections a relay serves at once; one more gets 503 and is closed."
    )
    max_unfinished: int = constant(
        10_000, integer(0, 10**7), "Unfinished turns with which the relay takes in no more: 429 queue_full."
    )
    max_messages: int = constant(2_000, integer(1, 10**5), "Messages a conversation may have.")
    max_message_chars: int = constant(2**20, integer(1, 2**24), "Characters one message may have.")
    stop_grace_seconds: float = constant(
        20.0, number(0, 86_400), "A turn whose Open WebUI reader left is cancelled after this long; 0: never."
    )
    witness: str = constant("", str, "File in which the scripted agent records what it really executed (tests).")
    failpoint: str = constant("", str, "Where this process dies or freezes on purpose (tests); see failpoints.py.")
    audit_seconds: float = constant(400 * 86_400.0, number(3600, 10**9), "How long lines of the audit log are kept.")
    escalation_runs: int = constant(1, integer(0, 10), "How often that model is run at most; 0: no stage 1.")
    escalation_default: str = constant(
        "reject",
        choice("reject", "approve"),
        "What is decided on a suspended turn when nobody does in time.",
    )
    breaker_errors: int = constant(
        10,
        integer(0, 10**6),
        "Errors of a model's service in a row (5xx, network) after which its turns wait.",
    )
    breaker_seconds: float = constant(
        60.0, number(0.1, 86_400), "An open breaker lets one turn try after this long; doubles up to 10 minutes."
    )
    replicas: int = constant(
        1,
        integer(1, 100),
        "With replicated: how many replicas have a turn before it is acknowledged, its end before it is shown.",
    )
    idle_seconds: float = constant(600.0, number(0.1, 86_400), "An agent silent for this long is stopped.")
    escalation_timeout_seconds: float = constant(
        86_400.0, number(1, 2_592_000), "How long a turn waits in the inbox before the default is decided."
    )
    roles: tuple[str, ...] = constant(ROLES, message_roles, "Roles a message may have.")
    limit_open_files: int = constant(
        4096, integer(0, 10**6), "Files each process of an agent may have open; 0: as many as the worker."
    )
    limit_tmp_mb: int = constant(
        1024,
        integer(0, 10**7),
        "Size of a box's /tmp, and of its /dev/shm, in MiB of memory; 0: half the machine's.",
    )
    limit_processes: int = constant(
        1024, integer(0, 10**6), "Processes and threads an agent may have, all together; 0: no limit."
    )
    limit_folder_mb: int = constant(
        2048,
        integer(0, 10**7),
        "What one run of an agent may write into its folder and its HOME, in MiB; 0: no limit.",
    )
    claude_permission_mode: str = constant(
        "acceptEdits",
        choice("acceptEdits", "auto", "bypassPermissions", "dontAsk", "manual", "plan"),
        "What the CLI may do without asking; nobody is there to ask, so the rest is denied.",
    )
    log_level: str = constant("info", choice("debug", "info", "warning", "error"), "Least severe level written.")
    claude_warm_mb: int = constant(
        1024,
        integer(0, 10**7),
        "MiB that kept CLIs of a worker process may hold together (the oldest end first); 0: any amount.",
    )
    claude_spares: int = constant(
        1,
        integer(0, 64),
        "How many CLIs a worker process starts ahead, outside a box, while new sessions come; 0: none.",
    )
    link_seconds: float = constant(
        604_800.0, number(60, 31_536_000), "How long a link to a turn's file holds, for whoever has it."
    )
    files_max_bytes: int = constant(
        256 * 2**20,
        integer(2**20, 2**36),
        "Largest session in the object store, in bytes; a turn beyond it fails.",
    )


@dataclass(frozen=True, kw_only=True)
class NotificationSettings:
    """The people who are called when somebody is needed (docs/webhooks.md)."""

    webhook_urls: tuple[str, ...] = setting(
        (), web_addresses, "Addresses that get notices, each signed as OpenAI signs its webhooks.", secret=True
    )
    webhook_secret: str = setting(
        "",
        webhook_key,
        "Signs them: whsec_ and base64, as `turns notices secret` makes one; none: unsigned.",
        secret=True,
    )
    webhook_internal: str = setting(
        "refused", choice("refused", "allowed"), "Whether those addresses may lead to this machine or an inner network."
    )
    notice_command: str = setting(
        "", str, "A shell command that is run for each notice, which it gets as JSON on standard input.", masked=True
    )
    notice_kinds: tuple[str, ...] = setting(
        ("*",), notice_kinds, "The kinds of notices that are sent: turn.failed,response.*; * for all."
    )


@dataclass(frozen=True, kw_only=True)
class RelaySettings:
    """The relay: its addresses, its keys, and what it takes in."""

    trusted_proxies: tuple[str, ...] = setting(
        (),
        networks,
        "Proxies (127.0.0.1,10.1.0.0/16) whose X-Forwarded-For and X-Forwarded-Proto count; none: no proxy is trusted.",
    )
    public_url: str = setting(
        "",
        web_address,
        "Address at which people reach the relay's pages; then a chat that waits for one of them links there.",
    )
    chat_note: str = setting(
        "no",
        choice("yes", "no"),
        "Below each answer in Open WebUI, in two lines: what it was checked for, and what its turn cost.",
    )
    trace_page: str = setting(
        "",
        trace_address,
        "Address of a trace's page, with {trace_id} in it; then the page of a finished turn links there.",
    )
    api_keys: tuple[str, ...] = setting(
        (),
        key_list,
        "Keys the relay accepts, beside those of `turns keys`; without any it serves loopback only.",
        secret=True,
    )
    forwarding_keys: tuple[str, ...] = setting(
        (),
        key_list,
        "The same for keys that speak for several users, such as Open WebUI's: each request names its user.",
        secret=True,
    )
    keys_file: str = setting(
        "", file_path, "Where `turns keys` keeps its keys (hashes only); none: HELIX_ROOT/.helix/keys.json."
    )
    user_jwt_secret: str = setting(
        "",
        str,
        "Open WebUI's FORWARD_USER_INFO_HEADER_JWT_SECRET: users of a forwarding key must then be signed.",
        secret=True,
    )
    phase_directories: tuple[str, ...] = setting(
        (),
        grants,
        "Folders below HELIX_ROOT in which keys may run phases: FOLDER=OWNER,... (owners of `turns keys list`, or *).",
    )
    max_body_bytes: int = setting(8 * 2**20, integer(1024, 2**30), "Largest request body the relay reads.")


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The place of turns, and their lifetime."""

    root: Path = setting(Path.cwd, directory, "The project the agents work in; paths in answers resolve against it.")
    config: str = setting(
        "", file_path, "The settings file (TOML), below; none: HELIX_ROOT/.helix/helix.toml, where there is one."
    )
    broker_url: str = setting(
        "", store_address, "Celery's broker. REDIS_URL sets broker and store at once.", secret=True
    )
    store_url: str = setting("", store_address, "Where turns, events and metrics live.", secret=True)
    open_broker: str = setting(
        "refused",
        choice("refused", "allowed"),
        "What to do with a broker or store beyond this machine whose address has no password.",
    )
    namespace: str = setting(
        "helix", key_prefix, "Prefix of every key, so that several installations can share a store."
    )
    durability: str = setting(
        "everysec",
        choice("everysec", "power", "replicated"),
        "What a submit and a shown end wait for: power: the disk; replicated: a replica, as for Sentinel.",
    )
    files: str = setting(
        "",
        bucket,
        "Object store for the files of sessions, s3://BUCKET/PREFIX; none: HELIX_ROOT, which all workers share then.",
    )
    files_endpoint: str = setting("", web_address, "Address of its S3 service; none: that of AWS in its region.")
    retention_seconds: float = setting(7 * 86_400.0, number(60, 10**9), "How long a finished turn stays readable.")


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The way a worker runs agents."""

    run_slots: int = setting(16, integer(1, 1000), "Agents a worker runs at once, in all its processes.")
    lease_seconds: float = setting(6.0, number(0.5, 600), "A worker silent for this long has lost its turn.")
    shutdown_seconds: float = setting(
        20.0, number(0, 86_400), "On SIGTERM running agents may finish for this long; then their turns are handed over."
    )
    log_format: str = setting("console", choice("console", "json"), "How log lines are written.")
