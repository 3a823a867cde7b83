"""The setting that grants folders of phases to owners of keys."""

from __future__ import annotations

from api_client.contract.phase_checks import folder_problem
from api_client.contract.settings.setting_values import names


def grants(value: str) -> tuple[str, ...]:
    """Folders granted to owners of keys: ``FOLDER=OWNER,...``, the folders relative to HELIX_ROOT."""
    given = names(value)
    for item in given:
        folder, _, owner = (part.strip() for part in item.partition("="))
        if not owner:
            raise ValueError("must look like FOLDER=OWNER,FOLDER=OWNER; OWNER is `turns keys list`'s, * every key's")
        if problem := folder_problem(folder):
            raise ValueError(problem)
    return given
