"""The settings of turns that go to another model or to a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from api_client.contract.settings.declaration import constant, setting
from api_client.contract.settings.model_blocks import ModelBlocks
from api_client.contract.settings.setting_values import choice, integer, number


@dataclass(frozen=True, kw_only=True)
class EscalationSettings(ModelBlocks):
    """What happens to a turn that its agents could not answer."""

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
    escalation_runs: int = constant(1, integer(0, 10), "How often that model is run at most; 0: no stage 1.")
    escalation_default: str = constant(
        "reject",
        choice("reject", "approve"),
        "What is decided on a suspended turn when nobody does in time.",
    )
    escalation_timeout_seconds: float = constant(
        86_400.0, number(1, 2_592_000), "How long a turn waits in the inbox before the default is decided."
    )
    suspended_seconds: float = constant(
        300.0, number(0, 86_400), "How long a caller waits for a suspended turn; then it gets the error turn_suspended."
    )

    def named_models(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each setting that names a model for escalations, together with that model."""
        yield from super().named_models()
        yield "HELIX_ESCALATION_MODEL", self.escalation_model
        for name, block in self.model_settings.items():
            yield f"[model.{name}] escalation_model", str(block.get("escalation_model", ""))
