"""docs/rules/ has one page for each rule, and the page is right: its policy, its two answers, its tables."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from api_client.contract.value_kinds import field_default, settable_fields
from worker.enforcement import run_validators
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.policies import (
    AppliesTo,
    ChosenRules,
    PolicySubject,
    build_json_schema,
    choose_rules,
    read_policy,
)
from worker.enforcement.policies.policy_file import ENTRY
from worker.enforcement.repair import repair_answer
from worker.enforcement.rules import RULES, Rule
from worker.enforcement.rules.codes import RULE_CODES
from worker.enforcement.validators import services
from worker.external.local_services import provide_services

ROOT = Path(__file__).parents[4]
PAGES = ROOT / "docs" / "rules"


#: The judging model of docs/rules/llm_judge.md: it really reads the answer, so far as a script can.
JUDGE = """
- when: best choice in every way
  attempts: [[verdict: {success: false, errors: [It names no disadvantage.]}]]
- attempts: [[verdict: true]]
"""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path) -> Iterator[None]:
    """Programs run here without a sandbox, and the judge is a scripted agent."""
    (tmp_path / "judge.yaml").write_text(JUDGE)
    provide_services(Settings(root=ROOT, sandbox="off", models={"judge": f"scripted:{tmp_path / 'judge.yaml'}"}))
    yield
    services.provide_services(services.NOTHING)


def page(rule: str) -> str:
    return (PAGES / f"{rule}.md").read_text()


def policy_of(rule: str) -> str:
    return re.search(r"```yaml\n(.*?)```", page(rule), re.DOTALL)[1]


def answer(rule: str, word: str) -> str:
    found = re.search(rf"{word}:\n\n(`{{3,4}})markdown\n(.*?)\n\1\n", page(rule), re.DOTALL)
    return found[2]


REPAIRED = [rule for rule in RULES if "\nRepaired:\n" in page(rule)]


def chosen(rule: str) -> ChosenRules:
    return choose_rules(read_policy(policy_of(rule)), PolicySubject(), root=ROOT, locale="en")


def test_there_is_a_page_for_each_rule_and_for_nothing_else() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_the_accepted_answer_of_the_page_is_accepted(rule: str) -> None:
    assert run_validators(answer(rule, "Accepted"), chosen(rule).validators) == []


@pytest.mark.parametrize("rule", RULES)
def test_the_rejected_answer_of_the_page_is_rejected_by_codes_of_the_page(rule: str) -> None:
    found = run_validators(answer(rule, "Rejected"), chosen(rule).validators, {"locale": "en"})
    assert found
    assert {issue.validator for issue in found} == {rule}
    assert all(f"| `{issue.code}` | {RULE_CODES[issue.code].when} |" in page(rule) for issue in found)


@pytest.mark.parametrize("rule", REPAIRED)
def test_the_fallback_repairs_the_answer_of_the_page(rule: str) -> None:
    validators = chosen(rule).validators
    before, after = answer(rule, "Rejected, and repaired by the fallback"), answer(rule, "Repaired")
    assert run_validators(before, validators)
    repaired = repair_answer(before, validators, {"locale": "en"})
    assert (strip_marker(repaired.text).strip(), repaired.issues) == (after.strip(), ())
    assert repaired.changes


def test_every_rule_with_a_fallback_shows_it_on_its_page() -> None:
    assert {name for name, rule in RULES.items() if rule.apply_fallback is not Rule.apply_fallback} == set(REPAIRED)


@pytest.mark.parametrize("rule", RULES)
def test_the_page_lists_every_option_with_its_default(rule: str) -> None:
    for name, each in settable_fields(RULES[rule]).items():
        default = field_default(each)
        shown = "{}" if default == {} else json.dumps(default)
        assert f"| `{name}` | `{shown}` | {each.metadata['what']} |" in page(rule)


def test_every_code_of_the_rules_is_on_a_page() -> None:
    texts = "".join(map(page, RULES))
    assert [code for code in RULE_CODES if f"`{code}`" not in texts] == []


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("locale", ["de", "en"])
def test_a_rule_speaks_both_languages(rule: str, locale: str) -> None:
    found = run_validators(answer(rule, "Rejected"), chosen(rule).validators, {"locale": locale})
    assert {issue.message for issue in found}.isdisjoint(
        issue.message
        for issue in run_validators(
            answer(rule, "Rejected"), chosen(rule).validators, {"locale": "en" if locale == "de" else "de"}
        )
    )


def test_the_page_of_policy_files_is_right() -> None:
    text = (ROOT / "docs" / "policy.md").read_text()
    read = read_policy(re.search(r"```yaml\n(version.*?)```", text, re.DOTALL)[1])
    assert f"policy.yaml: {len(read.rules)} rules, hash {read.hash}" in text
    assert all(f"| [{rule}](rules/{rule}.md) |" in text for rule in RULES)
    keys = build_json_schema()["properties"]
    entry = keys["rules"]["items"]["anyOf"][1]["properties"]
    assert set(entry) == {"rule", "options", *ENTRY}
    assert all(f"| `{key}` |" in text for key in (*entry, *keys))
    assert all(f"`{key}`" in text for key in settable_fields(AppliesTo))
