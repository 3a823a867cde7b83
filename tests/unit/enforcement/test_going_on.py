"""Going on after a break: what is asked for, and what comes put behind the text so far."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.lab.bench.economy.answers import adr, chat
from worker.enforcement import Attempt, Fail, Policy, Retry, decide_next
from worker.enforcement.answer_continuation import (
    LEAST,
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
@given(text=TEXTS, cut=st.floats(0, 1), data=st.data())
def test_a_text_cut_anywhere_and_gone_on_from_any_quoted_line_is_the_text_again(
    text: str, cut: float, data: st.DataObject
) -> None:
    so_far = find_unfinished_text(broken(text[: round(len(text) * cut)]))
    assume(so_far)
    quoted = quote_last_lines(so_far)
    start = len(so_far.rstrip()) - len(quoted)
    assert so_far.rstrip().endswith(quoted)
    begins = [start + n for n in range(len(quoted)) if n == 0 or quoted[n - 1] == "\n"]
    # Half a mark, and one of several equal lines, may be quoted or new.
    sure = [at for at in begins if len(so_far[at:].strip()) >= 3 or so_far[at:].lstrip().startswith("|")]
    clear = [at for at in sure if not any(text[at:].startswith(so_far.rstrip()[b:]) for b in begins if b != at)]
    assume(clear)
    begin = data.draw(st.sampled_from(clear))

    joined = append_continuation(so_far, text[begin:])

    assert joined.fits
    assert joined.text == text


@pytest.mark.parametrize(
    ("text", "cut", "begin"),
    [
        ("Satz.\n| 4 | | Index |\n|---|---|\n|---|---|\n| 7 | | x |\n", "|---|---|\n|---|-", "|---|---|\n|---|-"),
        ("```text\n| 1 | Cache | |\n|---|---|\n| 2 | Index |\n```\n", "| |\n|---|", "|---|"),
        ("Satz davor.\n\n\n| 8 | Cache | |\n|---|\n```", "| |\n|-", "|-"),
        ("Satz 1 davor.\n| 9 | Cache | |\n|---|\n```\n```python12\nx = 1\n", "```py", "```py"),
        ("Satz 1 davor.\n| 7 | Cache | |\n|---|---|\n```\n```\n- 11 und\n", "```", "```"),
        ("Satz 1 davor.\n- [ ] Punkt 5\n|---|---|\n\n- [ ] Punkt 9\n| 10 | x |", "|\n\n- [ ]", "- [ ]"),
    ],
)
def test_a_seam_without_words_is_not_doubled(text: str, cut: str, begin: str) -> None:
    so_far = text[: text.index(cut) + len(cut)]
    joined = append_continuation(so_far, text[so_far.rindex(begin) :])
    assert (joined.fits, joined.text) == (True, text)


def test_a_header_that_begins_again_is_no_seam() -> None:
    so_far = "---\nadr_id: 40\ntitle: Ein Cache\n---"
    anew = "---\nadr_id: 40\ntitle: Ein Cache\nstatus: Proposed\n---\n\n# ADR-040: Ein Cache\n"
    assert append_continuation(so_far, anew).text == anew


@settings(max_examples=400, deadline=None)
@given(text=st.sampled_from(ANSWERS), cut=st.floats(0, 1))
def test_a_rest_that_repeats_nothing_is_put_behind_the_break_or_does_not_fit(text: str, cut: float) -> None:
    so_far = find_unfinished_text(broken(text[: round(len(text) * cut)]))
    assume(so_far and text[len(so_far) :].strip())

    joined = append_continuation(so_far, text[len(so_far) :])

    if joined.fits:
        assert "".join(joined.text.split()) == "".join(text.split())
        assert so_far.rstrip() == joined.text[: len(so_far.rstrip())]
    else:
        assert joined.text == so_far


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
    ("so_far", "reply", "rest"),
    [
        (PROSE, "Er wird vom Schreiber geleert, sobald dieser speichert. Ende.", ". Ende."),
        (PROSE, "sobald dieser speichert. Ende.", ". Ende."),
        (
            PROSE,
            "Gern, hier geht es weiter:\n\nEr wird vom Schreiber geleert, sobald dieser speichert. Ende.",
            ". Ende.",
        ),
        (PROSE, "> Er wird vom Schreiber geleert, sobald dieser speichert. Ende.", ". Ende."),
        (PROSE, "… sobald dieser speichert. Ende.", ". Ende."),
        (PROSE, ", und dann neu gelesen.", ", und dann neu gelesen."),
        (PROSE, "```markdown\nsobald dieser speichert. Ende.\n```", None),
        (PROSE, "```markdown\nEr wird vom Schreiber geleert, sobald dieser speichert. Ende.\n```", ". Ende."),
        (LIST, "- zweitens der Index\n- drittens nichts\n", "ex\n- drittens nichts\n"),
        (LIST, "Index\n- drittens nichts\n", "ex\n- drittens nichts\n"),
        (CODE, "    hit = cache.get(query)\n    return hit\n```\n\nEnde.", "ry)\n    return hit\n```\n\nEnde."),
        (
            CODE,
            "```python\n    hit = cache.get(query)\n    return hit\n```\n\nEnde.",
            "ry)\n    return hit\n```\n\nEnde.",
        ),
        (CODE, "ry)\n    return hit\n```\n\nEnde.", "ry)\n    return hit\n```\n\nEnde."),
        (TABLE, "| 2 | der Index |\n| 3 | nichts |\n", "ex |\n| 3 | nichts |\n"),
        (TABLE, "| Nr | Text |\n|---|---|\n| 2 | der Index |\n| 3 | nichts |\n", "ex |\n| 3 | nichts |\n"),
        (HEADER, "status: Proposed\n---\n\n# ADR-040: Cache\n", "tus: Proposed\n---\n\n# ADR-040: Cache\n"),
    ],
)
def test_the_joint_is_right_in_prose_lists_code_tables_and_headers(so_far: str, reply: str, rest: str | None) -> None:
    joined = append_continuation(so_far, reply)
    if rest is None:
        assert joined.text.count("dieser speichert") == 1
    else:
        assert joined.text.rstrip() == (so_far + rest).rstrip()
    assert joined.fits


@pytest.mark.parametrize(
    ("space", "reply"),
    [
        ("\n\n", "Er wird geleert, wenn er voll ist.\n\n## Ende"),
        ("\n", "Er wird geleert, wenn er voll ist.\n\n## Ende"),
        ("", "Er wird geleert, wenn er voll ist.\n\n## Ende"),
        ("\n\n", "Er wird geleert, wenn er voll ist.\n## Ende"),
        ("\n\n", "## Ende"),
        ("", "## Ende"),
        ("", "\n\n## Ende"),
    ],
)
def test_white_space_at_the_joint_counts_once(space: str, reply: str) -> None:
    so_far = f"{PROSE}.\n\nEr wird geleert, wenn er voll ist."
    assert append_continuation(so_far + space, reply).text == f"{so_far}\n\n## Ende"


def test_a_table_that_broke_off_behind_a_row_gets_no_blank_line() -> None:
    rows = f"{PROSE}.\n\n| Nr | Text |\n|---|---|\n| 1 | der Cache |\n"
    assert append_continuation(rows, "\n| 2 | der Index |\n").text == rows + "| 2 | der Index |\n"
    assert (
        append_continuation(rows, "| Nr | Text |\n|---|---|\n| 2 | der Index |\n").text == rows + "| 2 | der Index |\n"
    )


WHOLE = (
    ADR.replace("we", "weil er schnell ist.") + "\n\n## Akzeptanzkriterien\n\n- [ ] eins\n\n<!-- STEP: generate -->\n"
)


@pytest.mark.parametrize("before", ["", "Entschuldigung, hier noch einmal vollständig:\n\n"])
@pytest.mark.parametrize("whole", [WHOLE, WHOLE.replace("liegt vor", "steht vor"), WHOLE.partition(":\n\n")[2]])
def test_an_agent_that_begins_again_is_noticed_and_its_answer_is_the_whole(before: str, whole: str) -> None:
    joined = append_continuation(ADR, before + whole)
    assert joined.text.count("# ADR-040") == 1
    assert joined.text.count("## Entscheidung") == 1
    assert "weil er schnell ist." in joined.text
    assert joined.fits


def test_an_agent_that_begins_its_section_again_is_noticed() -> None:
    joined = append_continuation(
        ADR, "## Entscheidung\n\nWir nehmen nun Redis, weil er schnell ist.\n\n## Akzeptanzkriterien\n\n- [ ] eins\n"
    )
    assert joined.text == ADR[: ADR.index("## Entscheidung")] + joined.text[joined.kept :]
    assert joined.text.count("## Entscheidung") == 1
    assert "weil er schnell ist." in joined.text


def test_an_agent_that_begins_again_without_the_header_does_not_take_it_away() -> None:
    assert append_continuation(ADR, WHOLE.removeprefix(HEAD)).text == WHOLE


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "<!-- STEP: done -->",
        "Das kann ich leider nicht tun.\n\n<!-- STEP: done -->",
        WHOLE.replace(PROSE, "Wie oben."),
        WHOLE.partition("## Kontext")[0] + "## Akzeptanzkriterien\n\n- [ ] eins\n",
    ],
    ids=["nothing", "the marker", "a refusal", "a summary", "sections dropped"],
)
def test_what_does_not_fit_changes_nothing(reply: str) -> None:
    assert append_continuation(ADR, reply) == append_continuation(ADR, "")
    assert append_continuation(ADR, "").text == ADR
    assert not append_continuation(ADR, reply).fits


def test_what_leaves_the_code_open_in_which_the_answer_broke_off_does_not_fit() -> None:
    assert not append_continuation(CODE, "Nein.\n\n<!-- STEP: done -->").fits
    assert append_continuation(CODE, "ry)\n    return", complete=False).fits


def test_a_marker_alone_fits_behind_a_whole_sentence() -> None:
    assert append_continuation(f"{PROSE}.", "<!-- STEP: done -->").text == f"{PROSE}.\n\n<!-- STEP: done -->"


def test_a_new_beginning_that_breaks_off_earlier_does_not_replace_what_there_is() -> None:
    assert append_continuation(ADR, WHOLE[:200], complete=False) == append_continuation(ADR, "")


@pytest.mark.parametrize("mark", ["#", "```", "- [ ]", "|", "<!-- S", "--", "}\n}"])
def test_half_a_mark_at_the_break_is_no_place_to_go_on_from(mark: str) -> None:
    assert trim_partial_marks(f"{PROSE}.\n{mark}") == f"{PROSE}.\n"


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
