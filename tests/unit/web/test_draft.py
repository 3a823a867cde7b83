"""A chat that shows an answer while it is written shows the answer, not the model's reasoning."""

import pytest

from api_client.web.streaming.draft import Draft
from api_client.web.streaming.reply import Reply
from tests.unit.web.fake import event, finished

ANSWER = "# A title\n\nThe answer.\n"
START = {"attempt": 1, "delivery": 1, "max_attempts": 3, "worker": "w"}


def shown_while_written(text: str, size: int) -> tuple[Draft, list[str]]:
    """The draft of a text that comes in pieces, and what its reader sees after each piece."""
    draft, seen, page = Draft(Reply(turn_id="turn-1", model="m", created=1, locale="en")), [], ""
    for at in range(0, len(text), size):
        for edit in draft.apply_event(event(2, "attempt.output", attempt=1, text=text[at : at + size])):
            page = (page if edit.replacement is None else edit.replacement) + edit.appended
        assert page == draft.shown
        seen.append(page)
    return draft, seen


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
@pytest.mark.parametrize(
    "text",
    [f"<think>I must\nthink.</think>\n\n{ANSWER}", f"<Reasoning>\na\n</Reasoning><think>b</think>{ANSWER}", ANSWER],
)
def test_reasoning_is_never_shown_however_the_text_is_cut(text: str, size: int) -> None:
    draft, seen = shown_while_written(text, size)
    assert all(ANSWER.startswith(page) for page in seen)
    assert draft.shown == ANSWER.rstrip()


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_reasoning_without_a_beginning_goes_when_its_end_comes(size: int) -> None:
    draft, seen = shown_while_written(f"I must think.\n</think>\n\n{ANSWER}", size)
    assert draft.shown == ANSWER.rstrip()
    assert size > 4 or any("I must" in page for page in seen)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_an_unclosed_block_is_held_back_and_the_end_of_the_turn_shows_what_counts(size: int) -> None:
    draft, seen = shown_while_written(f"{ANSWER}\n<think>\nMore. {ANSWER}", size)
    assert draft.shown == ANSWER.rstrip()
    assert not any("More." in page for page in seen)
    (edit,) = draft.apply_event(finished(9, "passed", response=f"{ANSWER}\nWhole."))
    assert draft.shown == f"{ANSWER}\nWhole."
    assert edit.replacement is None


def test_a_new_attempt_begins_with_reasoning_again() -> None:
    draft, _ = shown_while_written("<think>never closed", 4)
    assert draft.apply_event(event(3, "attempt.started", **(START | {"delivery": 2}))) == []
    draft.apply_event(event(4, "attempt.output", attempt=1, text=f"<think>b</think>{ANSWER}"))
    assert draft.shown == ANSWER.rstrip()
