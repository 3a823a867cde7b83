"""What is kept of what an agent was sent."""

from __future__ import annotations

from worker.runners.sent import MOST_CHARS, Sent


def test_secrets_are_masked_in_every_text() -> None:
    sent = Sent(system="key abc", messages=({"role": "user", "content": "my abc"},), continues="history")
    assert sent.to_dict(lambda text: text.replace("abc", "***")) == {
        "system": "key ***",
        "messages": [{"role": "user", "content": "my ***"}],
        "continues": "history",
    }


def test_of_a_very_long_conversation_the_newest_is_kept_and_what_is_missing_is_said() -> None:
    messages = [{"role": "user", "content": letter * MOST_CHARS} for letter in "ab"] + [
        {"role": "user", "content": "c"}
    ]
    kept = Sent(messages=messages).to_dict(str)["messages"]
    assert kept[2]["content"] == "c"
    assert kept[1]["content"] == "[1 characters are left out here]\n" + "b" * (MOST_CHARS - 1)
    assert kept[0]["content"] == f"[{MOST_CHARS} characters are left out here]\n"
