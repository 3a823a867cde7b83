"""What a person is shown of a tool call: all of it, and nothing that looks like something else."""

import pytest

from api_client.contract.call_display import MAX_SHOWN_BYTES, CallNotShowable, display_call, escape_invisible
from api_client.contract.interruption import Interruption
from api_client.contract.tool_calls import ToolQuestion, WaitingCall


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("git push -u 'origin' \"x\" && echo $HOME | tee a > b", None),
        ("größer als Łódź, кот и пёс, 日本語", None),
        ("a\n\n  b\n", None),
        (" " * 39 + "x", None),
        (" " * 40 + "x", "⟦U+0020 ×40⟧x"),
        ("x" + "\n" * 50, "x⟦U+000A ×50⟧"),
        ("a\tb\rc\0", "a⟦tab⟧b⟦U+000D⟧c⟦U+0000⟧"),
        ("\u202e\u200b\u3164\u2800\uffa0\u00a0\ud800", "⟦U+202E⟧⟦U+200B⟧⟦U+3164⟧⟦U+2800⟧⟦U+FFA0⟧⟦U+00A0⟧⟦U+D800⟧"),
        ("\U000e0041u\u0308\ufe0f", "⟦U+E0041⟧u⟦U+0308⟧⟦U+FE0F⟧"),
        ("p\u0430ypal", "p⟦U+0430⟧ypal"),
        ("⟦secret⟧", "⟦U+27E6⟧secret⟦U+27E7⟧"),
    ],
)
def test_what_nobody_would_see_is_written_out_and_the_rest_is_as_it_is(text: str, seen: str | None) -> None:
    assert escape_invisible(text) == (text if seen is None else seen)


def question(secrets: tuple[str, ...] = (), **given: object) -> ToolQuestion:
    return ToolQuestion.from_interruption(
        WaitingCall(call="c", tool="Bash", arguments=given, digest="d").to_interruption(secrets)
    )


def test_a_known_secret_alone_is_masked_and_never_what_only_looks_like_one() -> None:
    found = question(("sk-stub-1234",), command="push https://x:$(evil)@host sk-proj-folder 'sk-stub-1234'")
    assert found.arguments == {"command": "push https://x:$(evil)@host sk-proj-folder '⟦secret⟧'"}


@pytest.mark.parametrize("secret", ["pass word", "a$(b)cdef", "`abcdef`", "abc;def", "abc'def", "geheimnisß"])
def test_a_secret_that_a_shell_would_read_is_not_masked_and_nobody_is_asked(secret: str) -> None:
    found = question((secret,), command=f"push {secret}")
    assert (found.refused, found.arguments) == ("with_secret", {})


def test_all_arguments_are_shown_or_nobody_is_asked() -> None:
    given: dict[str, object] = {f"a{n}": "x" * 200 for n in range(60)}
    assert len(question(**given).arguments) == 60
    assert question(**given, more="y" * MAX_SHOWN_BYTES).refused == "too_long"
    assert question(x="\u200b" * 2_000).refused == "too_long", "by what is shown"
    with pytest.raises(CallNotShowable):
        display_call("B" * (MAX_SHOWN_BYTES + 1), {}, ())


def test_values_that_are_no_texts_and_names_are_told_apart() -> None:
    found = question(**{"a": ["x"], "b": '["x"]', "c\x01": "1", "c\x02": 1, "d: e\nf": None})
    assert found.arguments == {
        "a": '⟦JSON⟧ ["x"]',
        "b": '["x"]',
        "c⟦U+0001⟧": "1",
        "c⟦U+0002⟧": "⟦JSON⟧ 1",
        "d⟦U+003A⟧ e⟦U+000A⟧f": "⟦JSON⟧ null",
    }


def test_no_value_can_look_like_another_argument() -> None:
    found = question(command="true\ncwd: /safe", cwd="/")
    assert found.text == "Bash\ncommand: true\n    cwd: /safe\ncwd: /"
    assert found.words == "Bash (command: true⟦U+000A⟧cwd: /safe, cwd: /)"
    assert ToolQuestion.from_interruption(Interruption(kind="tool_call", asked=found.to_dict())) == found
