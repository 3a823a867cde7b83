"""The events of pauses, circuit breakers and limits of services."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from api_client.contract.clock_time import format_clock_time
from api_client.contract.event_kinds import HoldEvent
from api_client.contract.word_tables import load_word_table, translate_from

_say = partial(translate_from, load_word_table(__file__))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPaused(HoldEvent):
    """Reports that a pause, a circuit breaker or a rate limit holds the turn back until ``until`` (0: no known end)."""

    KIND = "turn.paused"
    BAR = ("pause", "is paused")
    what: str
    reason: str
    until: int

    def describe(self, locale: str, clean: Callable[[str], str]) -> str:
        if self.what == "breaker":  # the reason is a service error, which is for operators
            return _say("paused_by_errors", locale, until=describe_end(self.until, locale))
        if self.what == "limit":
            return _say("paused_by_limit", locale)
        return describe_pause(clean(self.reason), self.until, locale)

    def describe_for_terminal(self, clean: Callable[[str], str]) -> str:
        reason = f": {clean(self.reason)}" if self.reason else ""
        return f"waits{describe_end(self.until, 'en')}: {self.what} paused{reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResumed(HoldEvent):
    """Reports that nothing holds the turn back any longer."""

    KIND = "turn.resumed"

    def describe(self, locale: str, _clean: Callable[[str], str]) -> str:
        return _say("resumed", locale)

    def describe_for_terminal(self, _clean: Callable[[str], str]) -> str:
        return "goes on"


def describe_pause(reason: str, until: float, locale: str) -> str:
    """Describe a pause in a sentence, with its reason and its end (``until``: epoch seconds, 0 if open-ended)."""
    return _say("paused", locale, until=describe_end(until, locale), reason=f": {reason}" if reason else "")


def describe_end(until: float, locale: str) -> str:
    """Return the end of a pause as a phrase such as " until 14:30", or an empty string if ``until`` is 0."""
    return _say("until", locale, time=format_clock_time(until, time.time())) if until else ""
