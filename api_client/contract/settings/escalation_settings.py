"""The settings of turns that go to another model or to a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from api_client.contract.settings.declaration import declare_constant, declare_setting
from api_client.contract.settings.model_blocks import ModelBlocks
from api_client.contract.settings.setting_values import choice_parser


@dataclass(frozen=True, kw_only=True)
class EscalationSettings(ModelBlocks):
    """Settings of escalation: whom to ask after all attempts of a turn have failed, another model or a person."""

    escalation_model: str = declare_setting(
        "",
        str,
        "Stage 1 of an escalation: the model of HELIX_MODELS that is asked on its own; none: no stage 1.",
        per_model=True,
    )
    escalation_human: str = declare_setting(
        "yes",
        choice_parser("yes", "no"),
        "Stage 2 of an escalation: suspend the turn in the inbox for a person to decide.",
        per_model=True,
    )
    escalation_runs: int = declare_constant(1, "How often that model is run at most; 0: no stage 1.")
    escalation_default: str = declare_constant(
        "reject", "What is decided on a suspended turn when nobody does in time."
    )
    escalation_timeout_seconds: float = declare_constant(
        86_400.0, "How long a turn waits in the inbox before the default is decided."
    )
    suspended_seconds: float = declare_constant(
        300.0, "How long a caller waits for a suspended turn; then it gets the error turn_suspended."
    )

    def list_named_models(self) -> Iterator[tuple[str, str]]:
        yield from super().list_named_models()
        yield "HELIX_ESCALATION_MODEL", self.escalation_model
        for name, block in self.model_settings.items():
            yield f"[model.{name}] escalation_model", str(block.get("escalation_model", ""))
