"""Continuation of a truncated answer: what is asked for, and which replies are joined to the text so far."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.lab.bench.economy.answers import adr, chat
from worker.enforcement import Attempt, Fail, Policy, Retry, decide_next
from worker.enforcement.answer_continuation import (
    LEAST,
    ContinuedText,
    append_continuation,
    find_unfinished_text,
    is_shortened,
    quote_last_lines,
    trim_partial_marks,
)
from worker.enforcement.feedback import continuation_feedback

ANSWERS = [
    make(n, lang, size).text()
    for n, (make, lang, size) in enumerate(itertools.product((adr, chat), ("de", "en"), (300, 1500, 4000)), 1)
]
WORDS = st.sampled_from(
    ["Cache", "Index", "ist", "und", "schneller.", "ADR-040", "`find()`", "ä", "1.", "#", "|", "---"]
)
SHAPES = ["{n} {words}", "", "", "## Kontext {n}", "- [ ] Punkt {n}", "| {n} | {words} |", "|---|---|"]
SHAPES += ["```python{n}", "```", "---", "    x{n} = 1", "Satz{n} {words}", "Satz{n} {words}", "Satz{n} {words}"]
LINES = st.tuples(st.sampled_from(SHAPES), st.lists(WORDS, min_size=1, max_size=14).map(" ".join))


def numbered(lines: list[tuple[str, str]]) -> str:
    """No two lines with words alike: where a text says the same twice, nobody can know from which place it goes on."""
    return "\n".join(shape.format(n=n, words=words) for n, (shape, words) in enumerate(lines))


TEXTS = st.sampled_from(ANSWERS) | st.lists(LINES, min_size=4, max_size=30).map(numbered)


def broken(*texts: str) -> list[Attempt]:
    return [Attempt(number=n, text=text, answer=text, complete=False) for n, text in enumerate(texts, 1)]


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, cut=st.floats(0, 1), whole=st.booleans(), crlf=st.booleans(), reply_crlf=st.booleans())
def test_a_text_cut_anywhere_and_continued_from_the_quoted_line_is_the_text_again(
    text: str, cut: float, whole: bool, crlf: bool, reply_crlf: bool
) -> None:
    text = text.replace("\n", "\r\n") if crlf else text
    so_far = find_unfinished_text(broken(text[: round(len(text) * cut)]))
    base = trim_partial_marks(so_far).rstrip()
    quoted = quote_last_lines(base)
    seam = quoted if whole else quoted.rpartition("\n")[2]
    rest = text[len(base) :]
    assume("\n" in so_far and rest.strip() and sum(map(str.isalnum, seam)) >= 3)
    # Nobody knows which of two equal lines was repeated.
    assume(whole or not seam.startswith(quoted.partition("\n")[0].rstrip("\r")))
    reply = f"{seam}{rest}".replace("\r\n", "\n")
    reply = reply.replace("\n", "\r\n") if reply_crlf else reply
    joined = append_continuation(so_far, reply, complete=False)

    assert joined == ContinuedText(text, len(base))


def test_a_header_that_begins_again_is_no_seam() -> None:
    so_far = "---\nadr_id: 40\ntitle: Ein Cache\n---"
    anew = "---\nadr_id: 40\ntitle: Ein Cache\nstatus: Proposed\n---\n\n# ADR-040: Ein Cache\n"
    assert append_continuation(so_far, anew).text == anew


PROSE = (
    "Der Cache liegt vor dem Index und hält sechzig Sekunden.\n\nEr wird vom Schreiber geleert, sobald dieser speichert"
)
LIST = f"{PROSE}.\n\n- erstens der Cache\n- zweitens der Ind"
CODE = f"{PROSE}:\n\n```python\ndef find(query):\n    hit = cache.get(que"
TABLE = f"{PROSE}.\n\n| Nr | Text |\n|---|---|\n| 1 | der Cache |\n| 2 | der Ind"
HEADER = 'Hier ist das ADR, das gestern besprochen wurde:\n\n---\nadr_id: "040"\ntitle: "Ein Cache vor der Suche"\nsta'
HEAD = f"{HEADER}tus: Proposed\n---\n\n# ADR-040: Cache\n\n"
ADR = f"{HEAD}## Kontext\n\n{PROSE}.\n\n## Entscheidung\n\nWir nehmen Redis, we"


@pytest.mark.parametrize(
    ("so_far", "reply", "after"),
    [
        (PROSE, "Er wird vom Schreiber geleert, sobald dieser speichert. Ende.", ". Ende."),
        (PROSE, "> Er wird vom Schreiber geleert, sobald dieser speichert. Ende.", ". Ende."),
        (PROSE, "\nEr wird vom Schreiber geleert, sobald dieser speichert\n\n## Ende", "\n\n## Ende"),
        (LIST, "- zweitens der Index\n- drittens nichts\n", "ex\n- drittens nichts\n"),
        (LIST, "- erstens der Cache\n- zweitens der Index\n", "ex\n"),
        (CODE, "    hit = cache.get(query)\n    return hit\n```\n\nEnde.", "ry)\n    return hit\n```\n\nEnde."),
        (CODE, "hit = cache.get(query)\n    return hit\n```\n\nEnde.", "ry)\n    return hit\n```\n\nEnde."),
        (TABLE, "| 2 | der Index |\n| 3 | nichts |\n", "ex |\n| 3 | nichts |\n"),
        (HEADER, "status: Proposed\n---\n\n# ADR-040: Cache\n", "tus: Proposed\n---\n\n# ADR-040: Cache\n"),
        (f"{PROSE}.", f"{PROSE}.\n\n<!-- STEP: done -->", "\n\n<!-- STEP: done -->"),
    ],
)
def test_the_joint_is_right_in_prose_lists_code_tables_and_headers(so_far: str, reply: str, after: str) -> None:
    reply = reply.removeprefix(PROSE.partition("\n\n")[0] + "\n\n")
    assert append_continuation(so_far, reply) == ContinuedText(so_far + after, len(so_far))


@pytest.mark.parametrize("mark", ["#", "```", "- [ ]", "|", "<!-- S", "--", "}\n}"])
def test_half_a_mark_at_the_break_is_dropped_and_written_again(mark: str) -> None:
    assert trim_partial_marks(f"{PROSE}.\n{mark}") == f"{PROSE}.\n"
    last = quote_last_lines(f"{PROSE}.").rpartition("\n")[2]
    assert append_continuation(f"{PROSE}.\n{mark}", f"{last}\n\n## Ende").text == f"{PROSE}.\n\n## Ende"


WHOLE = (
    ADR.replace("we", "weil er schnell ist.") + "\n\n## Akzeptanzkriterien\n\n- [ ] eins\n\n<!-- STEP: generate -->\n"
)


@pytest.mark.parametrize("whole", [WHOLE, WHOLE.replace("liegt vor", "steht vor"), WHOLE.partition(":\n\n")[2]])
def test_an_agent_that_starts_over_is_noticed_and_its_answer_is_the_whole(whole: str) -> None:
    joined = append_continuation(ADR, whole)
    assert joined.text.count("# ADR-040") == 1
    assert joined.text.count("## Entscheidung") == 1
    assert "weil er schnell ist." in joined.text
    assert joined.fits


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "<!-- STEP: done -->",
        "Das kann ich leider nicht tun.\n\n<!-- STEP: done -->",
        "il er schnell ist.\n\n## Akzeptanzkriterien",
        "Gern, hier geht es weiter:\n\nWir nehmen Redis, weil er schnell ist.",
        "Wir nehmen Redis, we",
        WHOLE.replace(PROSE, "Wie oben."),
        WHOLE.partition("## Kontext")[0] + "## Akzeptanzkriterien\n\n- [ ] eins\n",
        WHOLE[:200],
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_a_reply_that_neither_begins_with_the_quoted_line_nor_has_all_content_changes_nothing(
    reply: str, complete: bool
) -> None:
    assert append_continuation(ADR, reply, complete=complete) == ContinuedText(ADR, len(ADR), fits=False)


def test_a_complete_reply_ends_the_code_in_which_the_answer_broke_off() -> None:
    last = CODE.rpartition("\n")[2]
    assert not append_continuation(CODE, f"{last}ry)\n    return").fits
    assert append_continuation(CODE, f"{last}ry)\n    return", complete=False).fits


@pytest.mark.parametrize("complete", [True, False])
def test_reasoning_before_the_quoted_lines_is_left_out(complete: bool) -> None:
    reply = "<think>\nI go on at the last line.\n</think>\n\n- zweitens der Index\n- drittens nichts"
    joined = append_continuation(LIST, reply, complete=complete)
    assert joined == ContinuedText(f"{LIST}ex\n- drittens nichts", len(LIST))
    assert not append_continuation(LIST, "<think>\n- zweitens der Index", complete=complete).fits


def test_a_whole_answer_after_a_break_within_a_heading_is_taken() -> None:
    so_far = WHOLE[: WHOLE.index("## Entscheidung") + len("## Entsch")]
    assert append_continuation(so_far, WHOLE) == ContinuedText(WHOLE, 0)


def test_a_text_of_nothing_but_marks_is_read_in_linear_time() -> None:
    assert trim_partial_marks("}\n" * 200_000) == ""


def test_an_answer_that_broke_off_is_asked_to_go_on_and_its_last_lines_are_quoted() -> None:
    for locale, words in (
        ("de", ("brach ab", "Setze deine Antwort dort fort")),
        ("en", ("broke off", "Go on from there")),
    ):
        decision = decide_next(broken(LIST), Policy(locale=locale))
        assert isinstance(decision, Retry)
        assert decision.goes_on
        assert decision.feedback == continuation_feedback(LIST, locale)
        assert "\n> - erstens der Cache\n> - zweitens der Ind\n" in decision.feedback
        assert all(word in decision.feedback for word in words)


def test_of_a_long_line_its_last_words_are_quoted() -> None:
    long = "Wort " * 100 + "Ende"
    assert len(quote_last_lines(long)) < 200
    assert long.endswith(quote_last_lines(long))


@pytest.mark.parametrize("short", ["", "Halb", "x" * (LEAST - 1)])
def test_a_short_text_and_a_policy_without_it_are_asked_for_in_full(short: str) -> None:
    for history, policy in ((broken(short), Policy()), (broken(LIST), Policy(go_on=False))):
        decision = decide_next(history, policy)
        assert isinstance(decision, Retry)
        assert not decision.goes_on
        assert "complete answer" in decision.feedback


def test_each_break_is_gone_on_from_until_two_runs_bring_nothing() -> None:
    policy = Policy(max_attempts=9)
    longer = LIST + "ex\n- drittens nichts von"
    for texts, goes_on in (
        ((LIST, longer), True),
        ((LIST, LIST), True),
        ((LIST, LIST, longer), True),
        ((LIST, LIST, LIST), False),
        ((LIST, LIST, LIST, LIST), False),
        ((LIST, LIST, LIST, longer), True),
    ):
        decision = decide_next(broken(*texts), policy)
        assert isinstance(decision, Retry)
        assert decision.goes_on is goes_on


def test_attempts_count_as_before() -> None:
    assert decide_next(broken(LIST, LIST + "ex und mehr", LIST + "ex und mehr und noch mehr")) == Fail(3, "incomplete")


def test_a_new_version_is_shorter_when_a_header_a_section_or_many_words_are_gone() -> None:
    assert not is_shortened(WHOLE, WHOLE.replace("schnell", "flink"))
    assert is_shortened(WHOLE, WHOLE.replace("adr_id", "id"))
    assert is_shortened(WHOLE, WHOLE.replace("## Entscheidung", "## Etwas"))
    assert is_shortened(f"{PROSE}. Ende.", "Etwas ganz anderes, das aber genauso lang ist wie der Text davor. " * 3)


@pytest.mark.parametrize("tag", ["</think>", "<think>", "<think>a</think>"])
def test_a_continuation_within_code_keeps_tags_of_reasoning(tag: str) -> None:
    so_far = (
        "# Tags of reasoning\n\nModels write their thoughts in tags.\n\n```xml\n<think>\nfirst the cache, then the ind"
    )
    reply = f"first the cache, then the index\n{tag}\nThe answer.\n```\n\nThe end.\n"
    joined = append_continuation(so_far, reply)
    assert (joined.fits, joined.text) == (True, so_far + reply.removeprefix("first the cache, then the ind"))
