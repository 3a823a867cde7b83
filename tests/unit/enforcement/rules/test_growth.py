"""Rules and the code that decides take time that grows with text and issues, not with their square."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.growth import assert_linear
from tests.unit.enforcement.samples import ADR, header_with
from tests.unit.enforcement.test_foreign_input import ALL, NOWHERE
from worker.enforcement import ResponseValidator, decide_next, validate_attempt
from worker.enforcement.documents.document import parse_document
from worker.enforcement.repair import repair_attempt
from worker.enforcement.rules import RULES
from worker.enforcement.validator_process import MOST_CHARACTERS, runs_in_place

KEY = "-----BEGIN RSA PRIVATE KEY-----\n"
PATHS = [f"  - a{i}.py\n" for i in range(600)]
TOKEN = "eyJaaaaaaaaaa.eyJaaaaaaaaaa.aaaaaaaaaaaa\n"


def rule(kind: str, **options: Any) -> ResponseValidator:
    return RULES[kind](name=kind, root=NOWHERE, locale="en", **options)


STRUCTURE = rule("structure", sections=("Context|Kontext", "Missing"), level=0)
FORBIDDEN, LINKS = rule("forbidden", words=("verboten",)), rule("links", hosts=("ok.example.org",))
HOSTILE: dict[str, tuple[Sequence[ResponseValidator], Callable[[int], str]]] = {
    "missing paths": (ALL, lambda n: header_with("files:\n  modify:\n" + "".join(PATHS[: 300 * n]))),
    "sections without text": ([STRUCTURE], lambda n: "## Context\n" * (6000 * n)),
    "criteria with half a comment": (ALL, lambda n: ADR + "## Akzeptanzkriterien\n- [ ] <!--\n" * (1500 * n)),
    "sections in sections": ([STRUCTURE], lambda n: "# Context\n## Context\n### Context\n" * (700 * n)),
    "sections of an ADR": (ALL, lambda n: ADR + "## Context\n" * (1500 * n)),
    "heads of keys": ([FORBIDDEN], lambda n: KEY * (3000 * n)),
    "tokens": ([FORBIDDEN], lambda n: TOKEN * (3000 * n)),
    "blocks of wrong JSON": ([rule("code")], lambda n: "```json\n{,}\n```\n" * (400 * n)),
    "addresses": ([LINKS], lambda n: "![p](//evil.example.net/p.png)\n" * (2000 * n)),
    "definitions": ([LINKS], lambda n: "[" * (60_000 * n) + "\n[a]: //b\n" * (1000 * n)),
    "half tags": ([LINKS], lambda n: "<img src=" * (8000 * n) + "<//" * (8000 * n)),
    "blanks before addresses": ([LINKS], lambda n: "](" + " " * (60_000 * n) + "url(" * (8000 * n)),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_to_judge_to_decide_and_to_repair_takes_twice_the_time_for_twice_the_text(kind: str) -> None:
    rules, text = HOSTILE[kind]
    texts = {size: text(size) for size in (1, 2)}

    def once(size: int) -> None:
        parse_document.cache_clear()
        first = validate_attempt([], texts[size], rules)
        decide_next([first])
        second = validate_attempt([first], texts[size] + "x", rules)
        decide_next([first, second])
        repair_attempt(second, [first, second], rules, {})

    assert_linear(once)


def test_a_long_text_is_judged_where_it_can_be_ended() -> None:
    short, long = "x" * MOST_CHARACTERS, "x" * (MOST_CHARACTERS + 1)
    assert runs_in_place(STRUCTURE, [short])
    assert not runs_in_place(STRUCTURE, [long])


def test_an_f_string_that_python_reads_in_the_square_of_its_length_is_judged_where_it_can_be_ended() -> None:
    code = "```python\nx = f'" + "{a}" * 6000 + "'\n```\n"
    assert not runs_in_place(rule("code"), [code])
    assert runs_in_place(rule("code"), [code.replace("f'", "'")])
