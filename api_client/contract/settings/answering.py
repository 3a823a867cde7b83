"""The agents that answer a turn, and their limits."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.limits import MAX_ATTEMPTS, MAX_COST_USD, MAX_DEADLINE_SECONDS, MAX_TOKENS
from api_client.contract.offered import BUILT_IN
from api_client.contract.settings.declaring import setting
from api_client.contract.settings.setting_values import (
    choice,
    day_budgets,
    file_path,
    flow_weights,
    integer,
    model_runners,
    names,
    number,
    stream_modes_of,
    template,
    text,
)


@dataclass(frozen=True, kw_only=True)
class Answering:
    """The agents that answer a turn, and their limits."""

    models: dict[str, str] = setting(
        lambda: {"scripted": "scripted"},
        model_runners,
        "Models: model=runner[:option],...; none set, but HELIX_CLAUDE_API_KEY: also helix-consultant=claude_cli.",
    )
    vision_models: tuple[str, ...] = setting(
        (), names, "Models whose agents read images: of claude_cli, or of a service that does. Others refuse them."
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
        "Dollars a day (UTC): all=200,owner:*=5,key:webui=50,model:opus=100; a spent one refuses turns (429).",
    )
    stream_modes: dict[str, str] = setting(
        dict,
        stream_modes_of,
        "How a model's answers are streamed: model=live|draft|validated,...; else the client decides.",
    )
    escalation_model: str = setting(
        "",
        text,
        "Stage 1 of an escalation: the model of HELIX_MODELS that is asked on its own; none: no stage 1.",
        per_model=True,
    )
    escalation_human: str = setting(
        "yes",
        choice("yes", "no"),
        "Stage 2 of an escalation: park the turn in the inbox for a person to decide.",
        per_model=True,
    )
    escalation_timeout_seconds: float = setting(
        86_400.0,
        number(1, 2_592_000),
        "How long a turn waits in the inbox before the default is decided.",
        per_model=True,
    )
    flow_version: dict[str, int] = setting(
        lambda: {"v2": 1},
        flow_weights,
        "Versions of prompts and rules: v2=9,v3=1 spreads sessions over two (flow-versions.md).",
    )
    verifier_model: str = setting(
        "", text, "Model of HELIX_MODELS that verifies phases, best a small one; none: the phase's own."
    )
