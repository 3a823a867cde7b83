"""A model's reasoning is separated from its answer, in whole texts and in growing ones alike."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api_client.contract.reasoning import ReasoningFilter, remove_reasoning

ANSWER = "# A title\n\nThe answer.\n\n```python\nprint()\n```\n"
PIECES = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<Reasoning>",
            "</reasoning>",
            "<thinking a='b'>",
            "</thinking >",
            "<thin",
            "king>",
            "<",
            "◁thi",
            "nk▷",
            "◁/think▷",
            "[THINK]",
            "[/THI",
            "NK]",
            "[T",
            "<|think|>",
            "<|/think|>",
            "<a:think>",
            "<|channel|>",
            "analysis",
            "final",
            "<|message|>",
            "<|start|>assistant",
            "<|end|>",
            "<|return|>",
            "<|chan",
            "<|channel>",
            "thought",
            "<channel|>",
            "<analysis>",
            "</analysis>",
            "Here is my ",
            "thought process:",
            "\nHere's my response:",
            "<scratchpad>",
            "</scratchpad>",
            "```\n",
            "`",
            "\n",
            " ",
            "> ",
            "x",
            "\ufeff",
            "\r\n",
            "An answer.\n",
            "~~~\n",
            "</",
        ]
    ),
    max_size=14,
)


@pytest.mark.parametrize(
    "text",
    [
        f"<think>I think.</think>{ANSWER}",
        f"\ufeff\n <thinking>\nI think.\n\n```yaml\nopen\n</thinking>\n\n{ANSWER}",
        f"<reasoning effort='high'>a</reasoning>\n<think>b</think >\n{ANSWER}",
        f"I think.\n</think>\n\n{ANSWER}",
        f"I think.</think>\n{ANSWER}",
        f"</think>{ANSWER}",
        f"<think>About the tag `</think>` and <think> in prose.</think>\n{ANSWER}",
        f"I think.\n</think>\n<think>More.</think>\n{ANSWER}",
        *(
            f"{opening}\n# Draft\n{closing}\n\n{ANSWER}"
            for opening, closing in (
                ("<|thinking|>", "<|/thinking|>"),
                ("<｜think｜>", "<｜/think｜>"),
                ("<seed:think>", "</seed:think>"),
                ("◁think▷", "◁/think▷"),
                ("[THINK]", "[/THINK]"),
                ("<thoughts>", "</thoughts>"),
                ("<scratchpad>", "</scratchpad>"),
                ("<scratch_pad>", "</scratch_pad>"),
                ("<antThinking>", "</antThinking>"),
                ("<reflection>", "</reflection>"),
                ("<analysis>", "</analysis>"),
                ("<|channel>thought", "<channel|>"),
                ("Here's my thought process:", "Here is my response:"),
                ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
                ("<|channel|>analysis<|message|>", "<|end|><|channel|>final json<|message|>"),
                ("<|start|>assistant<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"),
                (
                    "<|channel|>analysis<|message|>x<|end|>\n<|start|>assistant<|channel|>commentary to=functions.x "
                    "<|constrain|>json<|message|>{}<|call|>\n<|channel|>analysis<|message|>",
                    "<|end|><|start|>assistant<|channel|>final<|message|>",
                ),
            )
        ),
        f"<|channel|>final<|message|>{ANSWER}",
        f"<|channel|>final<|message|>{ANSWER}<|return|>",
        f"<|channel>thought\n<channel|>{ANSWER}",
        f"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}<|end|>\n",
    ],
)
def test_reasoning_before_an_answer_is_removed(text: str) -> None:
    assert remove_reasoning(text).text == ANSWER
    assert all(piece.closed for piece in remove_reasoning(text).removed)


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        f"[think](a.md) [THINKING] [THIN\n◁ x ▷ <| y |>\n{ANSWER}",
        "  \n\ufeff Leading blanks stay.\n",
        "The tag <think> opens a thought; </think> closes it.\n",
        "Models close their thoughts with `</think>`.\n",
        "Write </think> behind it, and go on.\n",
        "> </think>\n\nquoted\n",
        "```html\n<think>\n```\n\ntext\n\n```html\n</think>\n```\n",
        "First.\n\n<think>\nIn the middle.\n</think>\n\nSecond.\n",
        "`<think>` and `</think>`\n",
        *("<analysis>All of it.</analysis>\n", "<analysis>\nNever closed.\n", "`<analysis>` x `</analysis>` y\n"),
        *("Here is my thought process: I count.\n", "Here's my thought process: a. Here's my response: b.\n"),
        "I say it.\n\nHere is my thought process:\nHere is my response:\n",
        "The channel <|channel|>analysis<|message|> is hidden, <|channel|>final<|message|> is not.\n",
        "<|channel|>analysis is the channel of thoughts.\n",
        "```\n<|channel|>analysis<|message|>x<|end|>\n<analysis>\n</analysis>\n```\n",
        "Harmony ends an answer with <|return|>",
        "<channel|> closes the thoughts of Gemma.\n",
        "The tags <scratchpad> and </scratchpad>, or <antThinking> and </antThinking>, mark a draft.\n",
        "<thinker>No tag.</thinker>\n",
        "1 < 2",
        "<",
        "",
    ],
)
def test_any_other_text_stays_as_it_is(text: str) -> None:
    assert remove_reasoning(text).text == text
    assert not remove_reasoning(text).removed


def test_a_block_that_is_never_closed_is_removed_and_named() -> None:
    for text, left in (
        ("<think>All of it.\n# A title\n", ""),
        (f"{ANSWER}\n<think>\nMore thoughts", f"{ANSWER}\n"),
        ("<think>a</think>Text.\n<reasoning>\n`</reasoning>`", "Text.\n"),
        ("<scratchpad>All of it.\n# A title\n", ""),
        ("<|channel|>analysis<|message|>All of it, <|cha", ""),
        ("<|channel>thought\nAll of it.", ""),
    ):
        found = remove_reasoning(text)
        assert found.text == left
        assert not found.removed[-1].closed
        assert found.removed[-1].end == len(text)


def test_a_growing_text_shows_the_answer_as_it_comes() -> None:
    growing = ReasoningFilter()
    shown = [
        growing.feed(piece) for piece in ("<th", "ink>a", "b</thi", "nk>", "\n\nThe ", "answer <b", ">is", "\n<thi")
    ]
    assert shown == ["", "", "", "", "The ", "answer <b"[:-2], "<b>is", "\n"]
    assert growing.close() == "<thi"


@given(PIECES, st.integers(1, 9))
@example(["x", "</think>", "\n", "`", "<think>", "`"], 1)
def test_the_size_of_the_pieces_changes_nothing(pieces: list[str], size: int) -> None:
    text, growing, shown = "".join(pieces), ReasoningFilter(), ""
    for at in range(0, len(text), size):
        voids, more = growing.voids, growing.feed(text[at : at + size])
        shown = more if growing.voids > voids else shown + more
    voids, more = growing.voids, growing.close()
    shown = more if growing.voids > voids else shown + more
    whole = remove_reasoning(text)
    assert shown == whole.text
    assert tuple(growing.removed) == whole.removed
    assert remove_reasoning(shown) == type(whole)(shown)
    gone = "".join(text[piece.start : piece.end] for piece in whole.removed)
    assert len(gone) + len(shown) == len(text)
    assert whole.removed or shown == text
