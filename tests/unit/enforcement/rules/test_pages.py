"""docs/rules/ has one page for each rule, and the page is right: its policy, its two answers, its tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from worker.enforcement import examine
from worker.enforcement.policies import AppliesTo, Chosen, Subject, choose, read_policy
from worker.enforcement.policies.policy_file import ENTRY_KEYS, KEYS
from worker.enforcement.policies.reading import default_of, settable
from worker.enforcement.rules import RULES
from worker.enforcement.rules.codes import RULE_CODES

ROOT = Path(__file__).parents[4]
PAGES = ROOT / "docs" / "rules"


def page(rule: str) -> str:
    return (PAGES / f"{rule}.md").read_text()


def policy_of(rule: str) -> str:
    return re.search(r"```yaml\n(.*?)```", page(rule), re.DOTALL)[1]


def answer(rule: str, word: str) -> str:
    found = re.search(rf"{word}:\n\n(`{{3,4}})markdown\n(.*?)\n\1\n", page(rule), re.DOTALL)
    return found[2]


def chosen(rule: str) -> Chosen:
    return choose(read_policy(policy_of(rule)), Subject(), root=ROOT, locale="en")


def test_there_is_a_page_for_each_rule_and_for_nothing_else() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_the_accepted_answer_of_the_page_is_accepted(rule: str) -> None:
    assert examine(answer(rule, "Accepted"), chosen(rule).validators) == []


@pytest.mark.parametrize("rule", RULES)
def test_the_rejected_answer_of_the_page_is_rejected_by_codes_of_the_page(rule: str) -> None:
    found = examine(answer(rule, "Rejected"), chosen(rule).validators, {"locale": "en"})
    assert found
    assert {issue.validator for issue in found} == {rule}
    assert all(f"| `{issue.code}` | {RULE_CODES[issue.code].when} |" in page(rule) for issue in found)


@pytest.mark.parametrize("rule", RULES)
def test_the_page_lists_every_option_with_its_default(rule: str) -> None:
    for name, each in settable(RULES[rule]).items():
        default = default_of(each)
        shown = "{}" if default == {} else json.dumps(default)
        assert f"| `{name}` | `{shown}` | {each.metadata['what']} |" in page(rule)


def test_every_code_of_the_rules_is_on_a_page() -> None:
    texts = "".join(map(page, RULES))
    assert [code for code in RULE_CODES if f"`{code}`" not in texts] == []


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("locale", ["de", "en"])
def test_a_rule_speaks_both_languages(rule: str, locale: str) -> None:
    found = examine(answer(rule, "Rejected"), chosen(rule).validators, {"locale": locale})
    assert {issue.message for issue in found}.isdisjoint(
        issue.message
        for issue in examine(
            answer(rule, "Rejected"), chosen(rule).validators, {"locale": "en" if locale == "de" else "de"}
        )
    )


def test_the_page_of_policy_files_is_right() -> None:
    text = (ROOT / "docs" / "policy.md").read_text()
    read = read_policy(re.search(r"```yaml\n(version.*?)```", text, re.DOTALL)[1])
    assert f"policy.yaml: {len(read.rules)} rules, hash {read.hash}" in text
    assert all(f"| [{rule}](rules/{rule}.md) |" in text for rule in RULES)
    assert all(f"| `{key}` |" in text for key in (*ENTRY_KEYS, *KEYS))
    assert all(f"`{key}`" in text for key in settable(AppliesTo))
