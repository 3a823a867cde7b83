"""The highest values that a turn's limits may have."""

from __future__ import annotations

#: Most agent runs: ADR-038's max_retries plus one.
MAX_ATTEMPTS = 20
#: Longest wall time over all attempts, in seconds: a week.
MAX_DEADLINE_SECONDS = 604_800
MAX_TOKENS = 10**9
#: Highest cost of a turn, in US dollars.
MAX_COST_USD = 10**6
