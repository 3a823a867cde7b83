"""Builds the prompts of a phase's agent and of its verifier."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from api_client.contract.phase import Phase
from api_client.contract.word_tables import load_word_table
from worker.files.template import fence_text

#: Most characters of output quoted in the verifier's prompt.
MAX_SHOWN = 120_000

_PROMPTS = load_word_table(__file__)


def build_verifier_prompt(
    phase: Phase,
    nonce: str,
    *,
    files: Mapping[str, str],
    unseen: Sequence[str] = (),
    checked: Sequence[str] = (),
    locale: str = "en",
) -> str:
    """Return the prompt that asks an independent agent to verify the output of a phase.

    ``nonce`` is the secret that the verdict must repeat, ``files`` has the quoted texts of the output by path, and
    ``checked`` is what the gates found correct.
    """
    shown = "\n".join(f"\n### {path}\n\n{fence_text(text)}" for path, text in files.items())
    where = "\nThe files are in the folder `files/` of your working directory; you can read them there."
    if unseen:
        where += "\nThese are not shown below: " + ", ".join(f"`{path}`" for path in unseen) + "."
    form = {"nonce": nonce, "success": False, "errors": ["..."], "checks_passed": ["..."], "feedback": "what to do"}
    expected = [*(f"the file `{path}`" for path in phase.output_files), *phase.criteria]
    return str(_PROMPTS["verifier"]["en"]).format(
        name=json.dumps(phase.id),
        description=fence_text(phase.description or "(nothing more was said)"),
        expected="\n".join(f"- {each}" for each in expected) or "- what the description says",
        checked="\n".join(f"- {each}" for each in checked) or "- nothing",
        where=where,
        files=f"{shown}\n" if shown else "\n(no text files)\n",
        language="German" if locale.startswith("de") else "English",
        form=json.dumps(form, indent=2),
    )


def build_phase_prompt(phase: Phase, *, inputs: Mapping[str, str] | None = None, locale: str = "en") -> str:
    """Return the prompt for a phase's first attempt. ``inputs`` maps paths of input files to their locations."""
    english = not locale.startswith("de")
    found = inputs or {}
    reads = "\n".join(f"- `{found.get(path, path)}`" for path in phase.input_files)
    heading = "## Input" if english else "## Eingaben"
    title = "Required:" if english else "Pflicht:"
    writes = "\n".join(f"- `output/{path}`" for path in phase.output_files)
    judge = " and a second agent judges them" if english else " und ein zweiter Agent beurteilt sie"
    return str(_PROMPTS["agent"]["en" if english else "de"]).format(
        name=phase.id,
        title=phase.name,
        description=phase.description,
        inputs=f"\n{heading}\n\n{reads}\n" if reads else "",
        outputs=f"\n{title}\n\n{writes}\n" if writes else "",
        judge=judge if phase.verify_agent else "",
    )
