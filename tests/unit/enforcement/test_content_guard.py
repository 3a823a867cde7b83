"""The content guard (docs/enforcement.md): a reply removes no text that no issue named, or the turn does not pass."""

import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

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
    decide_next,
    validate_attempt,
)
from worker.enforcement.answer_continuation import append_continuation, find_unfinished_text
from worker.enforcement.repair import repair_attempt
from worker.enforcement.reply_merging import list_candidates

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
        history.append(validate_attempt(history, reply, rules))
        decision = decide_next(history)
        if not isinstance(decision, Retry):
            break
    assert decision is not None
    return decision, history


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
    first = validate_attempt([], "Siehe Datei." + MARKER, BUILT_IN, files)
    decision = decide_next([first])
    assert isinstance(decision, Retry)
    assert "ADR-1.md" in decision.feedback
    assert decision.feedback.endswith("Your answer itself is kept as it is.")
    assert (
        validate_attempt([first], "Habe ich." + MARKER, BUILT_IN, {"files": {"ADR-1.md": ADR}}).answer == first.answer
    )


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
    history = [validate_attempt([], f"{ADR}\n{LAST}{MARKER}", WHOLE, policy=policy)]
    history.append(validate_attempt(history, ADR.replace("Cache", "Index") + MARKER, WHOLE, policy=policy))
    assert not isinstance(decide_next(history, policy), Accept)


def test_a_complete_answer_after_a_break_may_not_lack_the_adr_that_was_being_written() -> None:
    draft = validate_attempt([], (ADR + LAST)[:-5], BUILT_IN, complete=False)
    assert codes(validate_attempt([draft], "Fertig." + MARKER, BUILT_IN).issues) == ["CONTENT_LOST"]
    assert codes(validate_attempt([draft], ADR + MARKER, BUILT_IN).issues) == ["CONTENT_LOST"]
    assert validate_attempt([draft], ADR + LAST + MARKER, BUILT_IN).issues == ()


def test_an_answer_that_a_person_asked_for_anew_is_not_put_into_the_one_before() -> None:
    history = [validate_attempt([], ADR, BUILT_IN)]
    new = ADR.replace("Cache", "Index")
    history.append(validate_attempt(history, new, BUILT_IN, fresh=True))
    assert history[-1].answer == new
    assert validate_attempt(history, MARKER, BUILT_IN).answer == new + MARKER.rstrip("\n")
    assert "CONTENT_LOST" in codes(validate_attempt(history[:1], "Gut." + MARKER, BUILT_IN, fresh=True).issues)


def test_a_fallback_that_loses_content_does_not_count() -> None:
    class Cuts(NoCache):
        def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
            return BODY.partition("## Entscheidung")[0].replace("Cache", "Index") + MARKER

    history = [validate_attempt([], ADR + MARKER, (Cuts(),))]
    repaired = repair_attempt(history[0], history, (Cuts(),))
    assert repaired.text == ADR + MARKER
    assert not repaired.accepted


def test_the_feedback_says_that_a_reply_did_not_count() -> None:
    decision, _ = turn(WITHOUT + MARKER, "Erledigt." + MARKER)
    assert isinstance(decision, Retry)
    assert "Nothing could be taken from your last message" in decision.feedback


# For any answer, any issues and any reply: text outside the named parts survives, or the turn does not pass.

TITLES = ("Kontext", "Entscheidung", "Akzeptanzkriterien", "Konsequenzen", "Notizen", "Context", "Decision")
FIELDS = ("adr_id", "title", "status", "owner", "files")
STEP = "<!-- STEP: done -->"
#: A section may come back under its English name.
ENGLISH = {"Kontext": "Context", "Entscheidung": "Decision"}
PARTS = ("step_marker", "yaml_header", *(f"yaml_header.{key}" for key in FIELDS), *(f"## {title}" for title in TITLES))
NOISE = st.text(alphabet="aä #-`~>\n\r<!*:|[](){}\"'.0\u200b\ufeff", max_size=40)

#: A piece of an answer: the part it belongs to (empty for none), and its text.
Piece = tuple[str, str]


@st.composite
def answers(draw: st.DrawFn) -> list[Piece]:
    """An ADR in its pieces, each line with a word that stands nowhere else; joined, they are the answer."""
    words = (f"w{number}" for number in count())
    eol = draw(st.sampled_from(["\n", "\r\n"]))
    pieces: list[Piece] = []
    if draw(st.booleans()):
        pieces.append(("", f"Vorab {next(words)}.\n\n"))
    if draw(st.booleans()):
        keys = ["adr_id", *draw(st.lists(st.sampled_from(FIELDS[1:]), unique=True))]
        pieces.append(("yaml_header", "---\n"))
        for key in keys:
            value = f"\n  create:\n    - {next(words)}.py" if key == "files" else f" {next(words)}"
            pieces.append((f"yaml_header.{key}", f"{key}:{value}\n"))
        pieces.append(("yaml_header", "---\n\n"))
    pieces.append(("", f"# ADR-040: {next(words)}\n\n"))
    for title in draw(st.lists(st.sampled_from(TITLES[:5]), unique=True, min_size=1)):
        heading = draw(st.sampled_from(["## {}", "## **{}**:", "## 1. {}", "## {} <!-- x -->"])).format(title)
        pieces.append(("", f"{heading}\n\n"))
        if draw(st.booleans()):
            code = f"\n```yaml\nstatus: {next(words)}\n```\n" if draw(st.booleans()) else ""
            pieces.append((f"## {title}", f"Text {next(words)}.\n{code}\n- {next(words)}\n"))
            pieces.append(("", "\n"))
    if draw(st.booleans()):
        pieces.append(("step_marker", STEP if draw(st.booleans()) else "<!-- STEP: nie -->"))
        pieces.append(("", "\n"))
    return [(part, text.replace("\n", eol)) for part, text in pieces]


WRAPS = ("{}", "Hier:\n\n```markdown\n{}\n```\n\nFertig.", "```yaml\n{}\n```", "```\n{}", "> {}", "1. x\n   {}")


def _part(part: str, draw: st.DrawFn) -> str:
    """A part as an agent may write it."""
    if part == "step_marker":
        return STEP
    if part.startswith("## "):
        heading = draw(st.sampled_from(["## {}", "### **{}**:", "# {}", "**{}**", "{}\n---"]))
        body = draw(
            st.sampled_from(["Neu, mit Gründen.", "Neu.\n\n#### Mehr\n\n- [ ] neu", "```\nohne Ende", "(wie oben)"])
        )
        return f"{heading.format(part.removeprefix('## '))}\n\n{body}"
    header = 'adr_id: "040"\ntitle: Neu\nstatus: Proposed\nowner: Neu\nfiles:\n  modify:\n    - neu.py'
    key = part.partition(".")[2]
    lines = [line for line in header.split("\n") if line.startswith(key) or (key == "files" and line[0] == " ")]
    return draw(st.sampled_from(["\n".join(lines), f"---\n{header}\n---", header]))


@st.composite
def replies(draw: st.DrawFn, named: Sequence[str] = PARTS) -> str:
    """Parts and talk in any order and any wrapping."""
    pieces = []
    for part in draw(st.lists(st.sampled_from([*named, *named, *PARTS, "", "adr", "noise"]), min_size=1, max_size=5)):
        if part == "adr":
            text = draw(st.sampled_from(["# ADR-040: Neu\n\n## Kontext\n\nNeu.\n\n## Entscheidung\n\n(unverändert)"]))
        elif part == "noise":
            text = draw(NOISE)
        else:
            talk = st.sampled_from(["Der Rest bleibt unverändert.", "Hier ist die Section:", "Entschuldigung."])
            text = _part(part, draw) if part else draw(talk)
        pieces.append(draw(st.sampled_from(WRAPS)).replace("{}", text))
    return draw(st.sampled_from(["\n\n", "\n\n", "\n", "\r\n\r\n"])).join(pieces)


@st.composite
def retries(draw: st.DrawFn) -> tuple[list[Piece], list[str], str]:
    """An answer, parts that its issues name, and a reply."""
    named = draw(st.lists(st.sampled_from(PARTS), unique=True, min_size=1, max_size=3))
    return draw(answers()), named, draw(replies(named))


def survives(pieces: Sequence[str], answer: str) -> bool:
    """True when all pieces stand in the answer, byte for byte and in their order."""
    at = 0
    for piece in pieces:
        found = answer.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def outside(answer: Sequence[Piece], named: Sequence[str]) -> list[str]:
    """The texts that no part names, neighbours joined."""
    joined: list[str] = []
    apart = True
    for part, text in answer:
        if part in named or ("yaml_header" in named and part.startswith("yaml_header")):
            apart = True
            continue
        joined = [*joined, text] if apart else [*joined[:-1], joined[-1] + text]
        apart = text.endswith(("\n\n", "\r\n\r\n")) or part.startswith(("## ", "yaml_header"))
    return [text.strip("\r\n") for text in joined if text.strip()]


def merged(answer: str, errors: Sequence[ValidationIssue], reply: str) -> str:
    """The answer with the parts of a reply."""
    return next(each.answer for each in list_candidates(answer, errors, reply) if not each.whole)


def issue(part: str) -> ValidationIssue:
    return ValidationIssue("ANY", "any", "any", part=part)


@settings(deadline=None, max_examples=400)
@given(retries())
def test_asked_for_parts_everything_else_survives_byte_for_byte(case: tuple[list[Piece], list[str], str]) -> None:
    answer, named, reply = case
    text = "".join(piece for _, piece in answer)
    after = merged(text, [issue(part) for part in named], reply)
    has_header = any(part == "yaml_header" for part, _ in answer)
    wide = named if has_header or not any(p.startswith("yaml") for p in named) else [*named, "yaml_header"]
    event("changed" if after != text else "same")
    german = {f"## {english}": f"## {title}" for title, english in ENGLISH.items()}
    assert survives(outside(answer, [german.get(part, part) for part in wide]), after)


@settings(deadline=None, max_examples=300)
@example(" ", ["## Kontext"], "## Kontext\n\nNeu, mit Gründen.")  # the blank went
@given(NOISE, st.lists(st.sampled_from(["step_marker", "## Kontext", "yaml_header.title"]), unique=True), replies())
def test_any_text_at_all_is_only_added_to(answer: str, named: list[str], reply: str) -> None:
    # No ADR: a section or a key is nowhere to be put, so the whole answer is asked for, and a text may replace it.
    errors = [issue(part) for part in named]
    after = merged(answer, errors, reply)
    assert after.startswith(answer) if named in ([], ["step_marker"]) else after == reply or after.startswith(answer)


class AnyRule(ResponseValidator):
    """A rule without a part, until the answer says that it is new."""

    name = "any"

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        return [] if "Neu" in response else [issue("")]


@st.composite
def turns(draw: st.DrawFn) -> tuple[str, list[Piece], list[str]]:
    """A good ADR with one fault, its pieces, and what an agent says when it is asked again: a new one, or anything."""
    pieces = [("", '---\nadr_id: "040"\ntitle: Alt\nstatus: Proposed\n---\n\n# ADR-040: Alt\n\n')]
    for number, title in enumerate((*TITLES[:3], *draw(st.lists(st.sampled_from(TITLES[3:5]), unique=True)))):
        pieces.append((f"## {title}", f"## {title}\n\nGut w{number}.\n\n"))
    pieces.append(("step_marker", STEP))
    new = "".join(text.replace("Gut", "Neu") for _, text in draw(st.permutations(pieces)) if draw(st.integers(0, 5)))
    said = [new, draw(replies(TITLES and [f"## {title}" for title in TITLES[:5]])), new.replace("w1", "w7")]
    return "".join(text for _, text in pieces), pieces, draw(st.permutations(said))


#: A heading of level 2 or 3, underlined or not, with content below it.
_FILLED = r"^(?:#{2,3} .*|\w+\n---)\n+(?:\w|```)"


@settings(deadline=None, max_examples=300)
@given(turns(), st.booleans())
def test_a_turn_that_passes_has_lost_no_adr_and_no_good_section(
    case: tuple[str, list[Piece], list[str]], repair_first: bool
) -> None:
    first, pieces, said = case
    rules = (StepMarkerValidator(), ADRStructureValidator(), AnyRule())
    policy = Policy(order={"step_marker": ("repair", "retry", "fallback")} if repair_first else {})
    history = [validate_attempt([], first, rules, policy=policy)]
    for reply in said:
        if not isinstance(decide_next(history, policy), Retry):
            break
        history.append(validate_attempt(history, reply, rules, policy=policy))
    decision = decide_next(history, policy)
    if isinstance(decision, Accept):
        passed = history[-1].answer
    elif isinstance(decision, Fallback):
        repaired = repair_attempt(history[decision.attempt - 1], history, rules)
        passed = repaired.text if repaired.accepted else ""
    else:
        passed = ""
    event(f"{type(decision).__name__} {bool(passed)}")
    for part, _ in pieces if passed else ():
        title = part.removeprefix("## ")
        assert title in passed or ENGLISH.get(title, title) in passed or part == "step_marker"
    assert not passed or len(re.findall(_FILLED, passed.replace("\r", ""), re.MULTILINE)) >= len(pieces) - 2


# What leaves or enters an accepted text is put in or left out by name; every other byte stays, in all paths.

RULES = (StepMarkerValidator(), ADRStructureValidator())
END_MARKER = "<!-- STEP: generate -->"
FRAME = '<part id="0a1b2c">'
BLOCKS = [
    "Wir setzen den Cache {n} vor die Suche.",
    "<details>\n<summary>S</summary>\n\ninnen {n}\n\n</details>",
    "<section>\nZeile {n}\n</section>",
    "<answer>\n42{n}\n</answer>",
    "<div class='a'>\n<p>Absatz {n}</p>\n</div>",
    "<table>\n<tr><td>{n}</td></tr>\n</table>",
    "```xml\n<a>\n<answer>{n}</answer>\n<section>\n</section>\n</a>\n```",
    "```html\n<details>\n{n}\n</details>\n```",
    "```markdown\n# Titel {n}\n\n<response>\n```",
    "~~~\n## Kontext {n}\n~~~",
    "| a | b |\n|---|---|\n| {n} | <br> |",
    "    x{n} = 1\n    y = 2",
    "- eins {n}\n  - zwei\n\n    drei",
    "> Zitat {n}\n> zweite Zeile",
    "### Tiefer {n}\n\nText.",
    "Zeile {n}  \nmit Umbruch\tund Tab",
    "<!-- Anmerkung {n} -->",
    "***\n\nDer Index {n} bleibt.",
    "[Verweis {n}](#k) und `code` und **fett**",
    "a\u00a0b\u2028c\x0bd {n}",
]
BODIES = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=7).map(
    lambda blocks: "\n\n".join(block.format(n=n) for n, block in enumerate([*blocks, BLOCKS[0]]))
)
LACKING = ADR.replace("## Entscheidung\n\nWir nehmen einen Cache.\n\n", "") + f"\n{END_MARKER}\n"
HEAD, TAIL = LACKING.split("## Akzeptanzkriterien")


def asked(first: str, reply: str) -> Attempt:
    """The second attempt of a turn, which must be accepted."""
    history = [validate_attempt([], first, RULES)]
    history.append(validate_attempt(history, reply, RULES, feedback=FRAME))
    assert decide_next(history) == Accept(2), history[-1].issues
    return history[-1]


@settings(max_examples=150, deadline=None)
@given(body=BODIES, eol=st.sampled_from(["\n", "\r\n"]), reply_eol=st.sampled_from(["\n", "\r\n"]))
@pytest.mark.parametrize("path", ["part alone", "framed", "whole", "fence"])
def test_a_section_comes_in_as_it_was_sent_and_nothing_else_changes(
    path: str, body: str, eol: str, reply_eol: str
) -> None:
    section = f"## Entscheidung\n\n{body}"
    reply = {
        "part alone": section,
        "framed": f"Hier ist die Section:\n\n{FRAME}\n{section}\n</part>\n\nFertig.",
        "whole": f"{HEAD}{section}\n\n## Akzeptanzkriterien{TAIL}",
        "fence": f"`````markdown\n{section}\n`````",
    }[path]
    second = asked(LACKING.replace("\n", eol), reply.replace("\n", reply_eol))
    wanted = f"{HEAD}## Entscheidung\n\n{body}\n\n## Akzeptanzkriterien{TAIL}"
    assert second.answer == wanted
    assert second.answer == reply or any("## Entscheidung" in edit for edit in second.edits)


@settings(max_examples=150, deadline=None)
@given(body=BODIES, eol=st.sampled_from(["\n", "\r\n"]), reply=BODIES)
def test_asked_for_a_marker_or_a_field_no_byte_of_the_sections_changes(body: str, eol: str, reply: str) -> None:
    answer = (
        f"{HEADER}\n# ADR-040: X\n\n## Kontext\n\n{body}\n\n## Entscheidung\n\nx\n\n## Akzeptanzkriterien\n\n- [ ] y"
    )
    second = asked(answer.replace("\n", eol), f"{reply}\n\n{END_MARKER}")
    assert second.answer == f"{answer}\n\n{END_MARKER}"
    lacking = answer.replace("status: Proposed\n", "") + f"\n\n{END_MARKER}"
    assert asked(lacking.replace("\n", eol), "status: Proposed").answer == f"{answer}\n\n{END_MARKER}"


@settings(max_examples=150, deadline=None)
@given(answer=BODIES)
def test_the_fallback_and_a_repair_before_asking_change_no_other_byte(answer: str) -> None:
    policy = Policy(order={"step_marker": ("repair", "fail")})
    first = validate_attempt([], answer, RULES[:1], policy=policy)
    assert first.answer.startswith(answer)
    assert first.answer[len(answer) :].strip().startswith("<!-- STEP: ")
    assert first.changes
    repaired = repair_attempt(validate_attempt([], answer, RULES[:1]), [], RULES[:1])
    assert repaired.text.startswith(answer)
    assert repaired.changes


@settings(max_examples=150, deadline=None)
@given(body=BODIES, cut=st.floats(0.2, 1), eol=st.sampled_from(["\n", "\r\n"]))
@example(body=f"{'Der Cache liegt vor der Suche. ' * 4}\n\n***\n\nDer Index bleibt.", cut=0.947, eol="\n")
def test_going_on_keeps_every_byte_before_the_break_and_behind_it(body: str, cut: float, eol: str) -> None:
    whole = f"{HEAD}## Entscheidung\n\n{body}".replace("\n", eol)
    so_far = find_unfinished_text(
        [Attempt(number=1, text=(text := whole[: round(len(whole) * cut)]), answer=text, complete=False)]
    )
    if not so_far or not whole[len(so_far) :].strip():
        return
    joined = append_continuation(so_far, whole[so_far.rstrip().rfind("\n") + 1 :], complete=False)
    if joined.fits:
        assert joined.text == whole
    assert so_far.startswith(joined.text[: joined.kept])


class Whole(StepMarkerValidator):
    """A rule about the whole answer."""

    name = "whole"

    def validate(self, response: str, context: object) -> list[ValidationIssue]:
        return [ValidationIssue("BAD", "bad", "anew")] if "BAD" in response else []


@settings(max_examples=100, deadline=None)
@given(body=BODIES)
def test_a_whole_new_answer_is_taken_byte_for_byte(body: str) -> None:
    history = [validate_attempt([], "Das ist BAD. " * 3, [Whole()])]
    history.append(validate_attempt(history, body, [Whole()]))
    assert history[-1].answer == body
    assert history[-1].edits == ()
