"""The four seed ADRs, by shape: their headers and the outline of their sections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.enforcement.samples import codes
from worker.enforcement import ADRStructureValidator, FileExistenceValidator

#: adr id -> (files.modify, how its criteria look, whether rules stand between its sections)
ADRS = {
    "025": (["src/helix/claude_runner.py"], "### 1. Verifier\n\n- [x] a\n- [x] b\n\n### 2. Kanal\n\n- [x] c\n", True),
    "034": (
        ["src/helix/api/session_manager.py", "src/helix/api/routes/openai.py", "templates/consultant/session.md.j2"],
        "### Flow\n- [ ] Template hat keine {% if step %}\n- [ ] Step-Marker <!-- STEP: X -->\n\n### Rest\n- [ ] c\n",
        True,
    ),
    "036": (
        ["src/helix/enforcement/validators/step_marker.py"],
        "### Funktional\n\n- [ ] a\n- [ ] b\n- [ ] c\n",
        False,
    ),
    "038": (
        ["src/helix/consultant/claude_runner.py"],
        "### Tests\n\n- [ ] a\n\n### Cleanup\n\n- [ ] b\n- [ ] c\n",
        False,
    ),
}

DIAGRAM = "```\n┌──────────┐\n│ ## Kontext │\n└──────────┘\n```\n"
CODE = '```python\ntext = """\n---\nadr_id: x\n---\n"""\nif "## Akzeptanzkriterien" in text:\n    pass\n```\n'


def seed(number: str) -> str:
    modify, criteria, rules = ADRS[number]
    rule = "---\n\n" if rules else ""
    files = "".join(f"    - {path}\n" for path in modify)
    return (
        f'---\nadr_id: "{number}"\ntitle: "Titel - mit Strich"\nstatus: Proposed\n\ndomain: helix\n\nfiles:\n'
        f"  create:\n    - ~/.claude/hooks/session-end.sh\n  modify:\n{files}  delete: []\n\n"
        f"depends_on:\n  - ADR-029  # Session Persistence\n---\n\n# ADR-{number}: Titel\n\n"
        f"## Status\n\nProposed\n\n{rule}## Kontext\n\n### Das Problem\n\nText.\n\n{DIAGRAM}\n{rule}"
        "## Entscheidung\n\n### Wir entscheiden\n\nText.\n\n"
        f"## Implementation\n\n{CODE}\n{rule}## Akzeptanzkriterien\n\n{criteria}\n{rule}## Konsequenzen\n\nText.\n"
    )


@pytest.mark.parametrize("number", ADRS)
def test_adr_structure_finds_nothing_wrong(number: str) -> None:
    assert ADRStructureValidator().validate(seed(number), {}) == []


@pytest.mark.parametrize("number", ADRS)
def test_file_existence_names_exactly_the_missing_paths(number: str, tmp_path: Path) -> None:
    issues = FileExistenceValidator(helix_root=tmp_path).validate(seed(number), {})
    assert codes(issues) == ["FILE_NOT_FOUND"] * len(ADRS[number][0])
    for issue, path in zip(issues, ADRS[number][0], strict=True):
        assert issue.message.endswith(path)
