"""The settings of answers."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.limits import MAX_ATTEMPTS, MAX_COST_USD, MAX_DEADLINE_SECONDS, MAX_TOKENS
from api_client.contract.settings.declaration import SettingsGroup, declare_setting
from api_client.contract.settings.setting_values import (
    choice_parser,
    integer_parser,
    names,
    number_parser,
    parse_model_runners,
)
from api_client.contract.validator_names import BUILT_IN


@dataclass(frozen=True, kw_only=True)
class AnsweringSettings(SettingsGroup):
    """Settings of the models that answer turns, and of the limits for turns."""

    models: dict[str, str] = declare_setting(
        lambda: {"scripted": "scripted"},
        parse_model_runners,
        "Models: model=runner[:option],...; none set, but HELIX_CLAUDE_API_KEY: also helix-consultant=claude_cli.",
    )
    validators: tuple[str, ...] = declare_setting(
        BUILT_IN,
        names,
        "Validators active when a request names none; any offered one can be named (validators.md).",
        per_model=True,
    )
    locale: str = declare_setting(
        "en",
        choice_parser("de", "en"),
        "Language of feedback and messages where a question shows neither German nor English.",
    )
    max_attempts: int = declare_setting(
        3,
        integer_parser(1, MAX_ATTEMPTS),
        "Agent runs per turn at most: ADR-038's max_retries plus one.",
        per_model=True,
    )
    deadline_seconds: float = declare_setting(
        3600.0, number_parser(1, MAX_DEADLINE_SECONDS), "Wall time of a turn, over all attempts.", per_model=True
    )
    token_limit: int = declare_setting(
        0, integer_parser(0, MAX_TOKENS), "Tokens all attempts of a turn may use together; 0: no limit.", per_model=True
    )
    cost_limit_usd: float = declare_setting(
        0.0, number_parser(0, MAX_COST_USD), "The same for money, in US dollars; 0: no limit.", per_model=True
    )
