"""Secrets in texts: what looks like a credential is masked, whatever else stands there."""

from __future__ import annotations

import pytest

from api_client.contract.settings import Settings
from api_client.contract.values.redaction import redactor

_SECRET = "Ab1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uVwXyZ"


@pytest.mark.parametrize(
    "beginning", [f"{key}{sign}" for key in ("sk", "pk", "rk", "ghp", "gho", "xoxb", "xoxp") for sign in "-_"]
)
@pytest.mark.parametrize("before", ["", "key=", "ganz am Ende: "])
def test_a_key_is_masked_behind_its_beginning_in_a_text_without_any_other(beginning: str, before: str) -> None:
    assert redactor(Settings())(f"{before}{beginning}{_SECRET}") == f"{before}{beginning}***"


@pytest.mark.parametrize("word", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_a_bearer_token_is_masked_in_any_letter_case(word: str) -> None:
    assert redactor(Settings())(f"authorization: {word} {_SECRET}") == f"authorization: {word} ***"


def test_our_own_keys_and_logins_in_addresses_are_masked() -> None:
    redact = redactor(Settings())
    assert redact(f"helix-{_SECRET}") == "helix-***"
    assert redact("redis://user:hidden@db:6379") == "redis://user:***@db:6379"


@pytest.mark.parametrize(
    "text", ["", "turn_id=t0-8f3a", "risk-averse", "task_identifier", f"disk-{_SECRET}", "Bearer x"]
)
def test_ordinary_words_stay(text: str) -> None:
    assert redactor(Settings())(text) == text
