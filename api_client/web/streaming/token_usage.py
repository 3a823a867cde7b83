"""Sums the usage of all attempts of a turn, also of rejected and lost runs, in the formats of OpenAI's two APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api_client.contract import event_kinds
from api_client.contract.events import Event
from api_client.web.streaming.payload import Payload


class TurnUsage:
    """Adds up the token usage of all of a turn's attempts from its events."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._input = self._output = self._attempts = self._failed_tokens = self._last_run_tokens = 0
        self._cost = 0.0

    def add_event(self, event: Event) -> None:
        """Add the usage in an event. Tokens of rejected and broken runs also count as failed."""
        match event.body:
            case event_kinds.AttemptCompleted() as body:
                self._last_run_tokens = self._add_run(body.usage or {})
                self._failed_tokens += 0 if body.verdict in {"complete", "asks"} else self._last_run_tokens
            case event_kinds.AttemptLost() as body:
                self._failed_tokens += self._add_run(body.usage or {})
            case event_kinds.AttemptRejected():
                self._failed_tokens, self._last_run_tokens = self._failed_tokens + self._last_run_tokens, 0
            case event_kinds.AttemptStarted(attempt=number):
                self._attempts = max(self._attempts, number)
            case event_kinds.LogReset():
                self._reset()
            case _:
                pass

    def _add_run(self, used: Mapping[str, Any]) -> int:
        given, made = int(used.get("input_tokens", 0)), int(used.get("output_tokens", 0))
        self._input += given
        self._output += made
        self._cost += float(used.get("cost_usd", 0.0))
        return given + made

    def _make_details(self) -> Payload:
        return {"attempts": self._attempts, "failed_tokens": self._failed_tokens, "cost_usd": round(self._cost, 6)}

    def chat_usage(self) -> Payload:
        """Return the usage in the format of OpenAI's chat completions."""
        return {
            "prompt_tokens": self._input,
            "completion_tokens": self._output,
            "total_tokens": self._input + self._output,
            "turn_details": self._make_details(),
        }

    def response_usage(self) -> Payload:
        """Return the usage in the format of OpenAI's Responses API."""
        return {
            "input_tokens": self._input,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self._output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._input + self._output,
            "turn_details": self._make_details(),
        }
