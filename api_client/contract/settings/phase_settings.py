"""The settings of phases: who may run them where, and who verifies them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from api_client.contract.phase_checks import explain_bad_folder
from api_client.contract.settings.declaration import SettingsGroup, declare_constant, declare_setting
from api_client.contract.settings.setting_values import names


def parse_grants(value: str) -> tuple[str, ...]:
    """Parse the folders in which owners may run phases, in the form ``FOLDER=OWNER,...``."""
    given = names(value)
    for item in given:
        folder, _, owner = (part.strip() for part in item.partition("="))
        if not owner:
            raise ValueError("must look like FOLDER=OWNER,FOLDER=OWNER; OWNER is `turns keys list`'s, * every key's")
        if problem := explain_bad_folder(folder):
            raise ValueError(problem)
    return given


@dataclass(frozen=True, kw_only=True)
class PhaseSettings(SettingsGroup):
    """Settings of a workflow's phases: who may run them where, and who verifies them (docs/WORKFLOW-SYSTEM.md)."""

    phase_directories: tuple[str, ...] = declare_setting(
        (),
        parse_grants,
        "Folders below HELIX_ROOT in which keys may run phases: FOLDER=OWNER,... (owners of `turns keys list`, or *).",
        pairs=True,
    )
    verifier_model: str = declare_setting(
        "", str, "Model of HELIX_MODELS that verifies phases, best a small one; none: the phase's own."
    )
    verifier_seconds: float = declare_constant(300.0, "A verifier that takes longer has not verified.")

    def list_named_models(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each setting that refers to a model, together with the model."""
        yield from super().list_named_models()
        yield "HELIX_VERIFIER_MODEL", self.verifier_model
