"""How many decision records pass the presets of ``structure``, and what the others lack.

``python -m tests.lab.adr_formats FOLDER...`` reads the Markdown files below each folder that name a decision.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from worker.enforcement.rules import StructureRule
from worker.enforcement.rules.adr_formats import PRESETS

_DECIDES = re.compile(
    r"^\s*(?:#{1,4}|\*\*|[-*] \*\*)[^\n]{0,12}(?:decision|entscheidung|considered options)"
    r"|in the context of|im kontext von",
    re.IGNORECASE | re.MULTILINE,
)
_OTHERS = re.compile(r"template|vorlage|contributing|skill", re.IGNORECASE)


def records(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.md")):
        if not _OTHERS.search(path.name) and _DECIDES.search(text := path.read_text(errors="replace")):
            yield text


def main(folders: list[str]) -> None:
    rules = {preset: StructureRule(preset=preset, locale="en") for preset in PRESETS}
    passed: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {preset: Counter() for preset in PRESETS}
    files = 0
    for text in (text for folder in folders for text in records(Path(folder))):
        files += 1
        for preset, rule in rules.items():
            issues = [issue for issue in rule.validate(text, {}) if issue.is_error]
            passed[preset] += not issues
            if issues:
                said = (
                    f"{'empty' if i.code == 'EMPTY_SECTION' else 'no'} {i.part.removeprefix('## ')}" for i in issues
                )
                reasons[preset][", ".join(said)] += 1
    print("| preset | files | pass | share |\n|---|---|---|---|")
    for preset in PRESETS:
        print(f"| `{preset}` | {files} | {passed[preset]} | {100 * passed[preset] / max(files, 1):.0f} % |")
    for preset in PRESETS:
        print(f"\n{preset}: " + "; ".join(f"{count} {why}" for why, count in reasons[preset].most_common(12)))


if __name__ == "__main__":
    main(sys.argv[1:])
