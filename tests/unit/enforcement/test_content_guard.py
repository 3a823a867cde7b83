"""The content guard (docs/enforcement.md): a reply removes no text that no issue named, or the turn does not pass."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.enforcement.samples import ADR, BODY, HEADER, codes, header_with
from worker.enforcement import (
    Accept,
    ADRStructureValidator,
    Attempt,
    Decision,
    Fallback,
    FileExistenceValidator,
    Policy,
    ResponseValidator,
    Retry,
    StepMarkerValidator,
    ValidationIssue,
    decide,
    judge,
)
from worker.enforcement.repaired import repair_attempt

MARKER = "\n<!-- STEP: done -->\n"
DECISION = "## Entscheidung\n\nWir nehmen einen Cache.\n\n"
LAST = "## Konsequenzen\n\nMehr Speicher.\n"
WITHOUT = ADR.replace(DECISION, "")
BUILT_IN = (StepMarkerValidator(), ADRStructureValidator(), FileExistenceValidator(Path(__file__).parent))


class NoCache(ResponseValidator):
    """A rule without a part: it names the whole answer."""

    name = "no_cache"

    def __init__(self, *, shortens: bool = False) -> None:
        self.shortens = shortens

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        found = "Cache" in response
        return [ValidationIssue("NO_CACHE", "Cache", "ohne Cache", shortens=self.shortens)] if found else []


WHOLE = (*BUILT_IN, NoCache())


def turn(*replies: str, rules: tuple[ResponseValidator, ...] = BUILT_IN) -> tuple[Decision, list[Attempt]]:
    """What is decided after these answers of an agent, and the attempts until then."""
    history: list[Attempt] = []
    decision: Decision | None = None
    for reply in replies:
        history.append(judge(history, reply, rules))
        decision = decide(history)
        if not isinstance(decision, Retry):
            break
    assert decision is not None
    return decision, history


@pytest.mark.parametrize(
    "reply",
    [
        "Ich habe alles ergänzt, wie gewünscht. " * 8,
        "Das ADR beschreibt einen Cache für die Suche und legt fest, wie er gemessen wird. " * 5,
        "Das kann ich leider nicht tun.",
        "Erledigt.",
    ],
)
def test_talk_never_takes_the_place_of_an_adr_that_lacks_a_section(reply: str) -> None:
    decision, history = turn(WITHOUT + MARKER, reply + MARKER)
    assert isinstance(decision, Retry)
    assert history[-1].answer == WITHOUT + MARKER


@pytest.mark.parametrize(
    ("first", "reply"),
    [
        ("Nimm Redis mit TTL 60 s.", "Entschuldigung, hier der Marker:\n" + MARKER),
        (f"{ADR}\n{LAST}", "Kurz gesagt: ein Cache für die Suche, gemessen und begrenzt. " * 6 + MARKER),
        (f"{ADR}\n{LAST}", ADR + MARKER),
        (f"{ADR}\n{LAST}", f"{ADR}\n{LAST}".replace("Die Suche ist langsam.", "Sie ist schnell.") + MARKER),
    ],
)
def test_asked_for_the_marker_alone_the_answer_stays_byte_for_byte(first: str, reply: str) -> None:
    decision, history = turn(first, reply)
    assert decision == Accept(2)
    assert history[-1].answer.startswith(first.rstrip("\n"))
    assert history[-1].answer[len(first) :].strip() == MARKER.strip()


def test_of_a_whole_new_answer_only_the_asked_section_is_taken() -> None:
    other = ADR.replace("Die Suche ist langsam.", "Etwas anderes.").replace("messbar", "schön")
    decision, history = turn(WITHOUT + MARKER, other + MARKER)
    assert decision == Accept(2)
    assert history[-1].answer == ADR + MARKER


def test_a_new_header_keeps_the_files_of_the_old_one() -> None:
    old = header_with("files:\n  create: [neu.py]\n").replace("status: Proposed\n", "")
    decision, history = turn(old + MARKER, HEADER)
    assert decision == Accept(2)
    assert history[-1].answer == header_with("files:\n  create: [neu.py]\n").replace("status: P", "status: P") + MARKER


def test_a_broken_header_that_is_sent_anew_keeps_its_files() -> None:
    old = (
        header_with("files:\n  create: [neu.py]\n")
        .replace('"Ein Cache"\n', '"Ein Cache\n', 1)
        .replace("e\n", "e: [\n", 1)
    )
    decision, history = turn(old + MARKER, HEADER)
    assert "neu.py" in history[-1].answer
    assert decision == Accept(2)


def test_paths_that_no_issue_named_stay_when_files_are_sent_anew() -> None:
    old = header_with("files:\n  create:\n    - neu.py\n  modify:\n    - fehlt.py\n    - samples.py\n") + MARKER
    decision, history = turn(old, "files:\n  modify:\n    - samples.py\n")
    assert decision == Accept(2)
    assert "- neu.py" in history[-1].answer
    assert "fehlt.py" not in history[-1].answer
    decision, history = turn(old, "files:\n  create:\n    - fehlt.py\n    - neu.py\n")
    assert isinstance(decision, Retry)
    assert history[-1].answer == old


def test_an_error_of_a_file_leaves_the_answer_as_it_is() -> None:
    files = {"files": {"ADR-1.md": WITHOUT}}
    first = judge([], "Siehe Datei." + MARKER, BUILT_IN, files)
    decision = decide([first])
    assert isinstance(decision, Retry)
    assert "ADR-1.md" in decision.feedback
    assert decision.feedback.endswith("Your answer itself is kept as it is.")
    assert judge([first], "Habe ich." + MARKER, BUILT_IN, {"files": {"ADR-1.md": ADR}}).answer == first.answer


def test_asked_for_a_whole_answer_an_adr_is_never_replaced_by_a_text_that_is_none() -> None:
    decision, history = turn(
        ADR + MARKER, "Hier ohne: wir messen erst einmal, was langsam ist. " * 9 + MARKER, rules=WHOLE
    )
    assert isinstance(decision, Retry)
    assert history[-1].answer == ADR + MARKER


def test_a_new_answer_that_drops_a_good_section_is_asked_again_for_that_section() -> None:
    first = f"{ADR}\n{LAST}{MARKER}"
    new = ADR.replace("Cache", "Index") + MARKER
    decision, history = turn(first, new, rules=WHOLE)
    assert codes(history[-1].issues) == ["CONTENT_LOST"]
    assert isinstance(decision, Retry)
    assert "Send only the section '## Konsequenzen'" in decision.feedback
    decision, history = turn(first, new, "Sie fehlte.", LAST, rules=WHOLE)
    assert codes(history[2].issues) == ["CONTENT_LOST"]
    decision, history = turn(first, new, LAST, rules=WHOLE)
    assert decision == Accept(3)
    assert "Mehr Speicher." in history[-1].answer


@pytest.mark.parametrize(
    "body",
    [
        "",
        "(unverändert)",
        "[… wie bisher …]",
        "<!-- siehe\noben -->",
        "\u200b",
        "TODO",
        "Erstens viel.\n\n[… Rest wie bisher …]",
    ],
)
def test_what_only_stands_for_a_section_does_not_count_as_the_section(body: str) -> None:
    new = ADR.replace("Cache", "Index") + f"\n## Konsequenzen\n\n{body}\n" + MARKER
    assert codes(turn(f"{ADR}\n{LAST}{MARKER}", new, rules=WHOLE)[1][-1].issues) == ["CONTENT_LOST"]


def test_a_section_that_was_merged_into_another_is_not_lost() -> None:
    text = "Mehr Speicher ist nötig, und ein Knoten."
    new = ADR.replace("Cache", "Index").replace("messbar\n", f"messbar\n\n{text}\n") + MARKER
    assert turn(f"{ADR}\n## Folgen\n\n{text}\n{MARKER}", new, rules=WHOLE)[0] == Accept(2)


def test_the_fallback_puts_a_lost_section_back_and_says_so() -> None:
    first = f"{ADR}\n{LAST}{MARKER}"
    new = ADR.replace("Cache", "Index") + MARKER
    decision, history = turn(first, new, "Da ist nichts.", rules=WHOLE)
    assert isinstance(decision, Fallback)
    repaired = repair_attempt(history[decision.attempt - 1], history, WHOLE)
    assert repaired.accepted
    assert "Mehr Speicher." in repaired.text
    assert repaired.changes == ("Section '## Konsequenzen' taken back from before",)
    assert codes(repaired.fixed_issues) == ["CONTENT_LOST"]


def test_a_rule_that_declares_that_it_shortens_may_drop_sections_but_not_the_adr() -> None:
    rules = (*BUILT_IN, NoCache(shortens=True))
    first = f"{ADR}\n{LAST}{MARKER}"
    assert turn(first, ADR.replace("Cache", "Index") + MARKER, rules=rules)[0] == Accept(2)
    assert turn(first, "Ohne." + MARKER, rules=rules)[1][-1].answer == first


def test_no_policy_weighs_lost_content_as_a_warning() -> None:
    policy = Policy(order={"content_guard": ("warn",), "no_cache": ("retry",)}, default=("warn",))
    history = [judge([], f"{ADR}\n{LAST}{MARKER}", WHOLE, policy=policy)]
    history.append(judge(history, ADR.replace("Cache", "Index") + MARKER, WHOLE, policy=policy))
    assert not isinstance(decide(history, policy), Accept)


def test_a_complete_answer_after_a_break_may_not_lack_the_adr_that_was_being_written() -> None:
    draft = judge([], (ADR + LAST)[:-5], BUILT_IN, complete=False)
    assert codes(judge([draft], "Fertig." + MARKER, BUILT_IN).issues) == ["CONTENT_LOST"]
    assert codes(judge([draft], ADR + MARKER, BUILT_IN).issues) == ["CONTENT_LOST"]
    assert judge([draft], ADR + LAST + MARKER, BUILT_IN).issues == ()


def test_an_answer_that_a_person_asked_for_anew_is_not_put_into_the_one_before() -> None:
    history = [judge([], ADR, BUILT_IN)]
    new = ADR.replace("Cache", "Index")
    history.append(judge(history, new, BUILT_IN, fresh=True))
    assert history[-1].answer == new
    assert judge(history, MARKER, BUILT_IN).answer == new + MARKER.rstrip("\n")
    assert "CONTENT_LOST" in codes(judge(history[:1], "Gut." + MARKER, BUILT_IN, fresh=True).issues)


def test_a_fallback_that_loses_content_does_not_count() -> None:
    class Cuts(NoCache):
        def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
            return BODY.partition("## Entscheidung")[0].replace("Cache", "Index") + MARKER

    history = [judge([], ADR + MARKER, (Cuts(),))]
    repaired = repair_attempt(history[0], history, (Cuts(),))
    assert repaired.text == ADR + MARKER
    assert not repaired.accepted


def test_the_feedback_says_that_a_reply_did_not_count() -> None:
    decision, _ = turn(WITHOUT + MARKER, "Erledigt." + MARKER)
    assert isinstance(decision, Retry)
    assert decision.feedback.endswith("Your last message did not contain that: the answer before it still counts.")
