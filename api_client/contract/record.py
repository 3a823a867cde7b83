"""Reading the stored records: what Redis returns becomes a ``Turn`` and its ``AttemptRecord``s.

A record may be of another version, or damaged: unknown fields are left alone, missing ones get their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api_client.contract.marker import read_spans
from api_client.contract.turn import AttemptRecord, Outcome, Turn, TurnRequest, TurnState


def _seconds(value: str) -> float:
    return int(value or 0) / 1000


def decode_turn(stored: Mapping[bytes, bytes]) -> Turn:
    """The turn in a stored hash.

    Raises:
        ValueError: the hash is no turn's record.
    """
    raw = {key.decode(): value.decode("utf-8", "replace") for key, value in stored.items()}
    try:
        return Turn(
            turn_id=raw["id"],
            epoch=raw["epoch"],
            state=TurnState(raw["state"]),
            request=TurnRequest.from_json(raw["request"]),
            attempt=int(raw.get("attempt", 1)),
            delivery=int(raw.get("delivery", 0)),
            next=raw.get("next", ""),
            outcome=Outcome(raw["outcome"]) if raw.get("outcome") else None,
            response=raw.get("response", ""),
            step=raw.get("step", ""),
            step_source=raw.get("step_source", ""),
            markers=read_spans(json.loads(raw.get("markers") or "null"), raw.get("response", "")),
            error=json.loads(raw.get("error") or "{}"),
            stop=raw.get("stop", ""),
            created_at=_seconds(raw.get("created_at", "0")),
            finished_at=_seconds(raw.get("finished_at", "0")),
            deadline_at=_seconds(raw.get("deadline_at", "0")),
            lease_until=_seconds(raw.get("lease_until", "0")),
            seq=int(raw.get("seq", 0)),
            strikes=int(raw.get("strikes", 0)),
            retries=int(raw.get("retries", 0)),
            transients=int(raw.get("transients", 0)),
            handed_over=int(raw.get("handed_over", 0)),
            best=int(raw.get("best", 0)),
            tokens_used=int(raw.get("tokens_used", 0)),
            cost_used=int(raw.get("cost_used", 0)),
            replay_of=raw.get("replay_of", ""),
            failing=json.loads(raw.get("failing") or "{}"),
            agent_session=raw.get("agent_session", ""),
            worker=raw.get("worker", ""),
            flow=raw.get("flow", ""),
            parked_at=_seconds(raw.get("parked_at", "0")),
            decide_by=_seconds(raw.get("decide_by", "0")),
            decide_default=raw.get("decide_default", ""),
            decision=json.loads(raw.get("decision") or "{}"),
            stage=int(raw.get("stage", 0)),
            allowed=int(raw.get("allowed", 0)),
            stage_model=raw.get("stage_model", ""),
            fresh_from=int(raw.get("fresh_from", 0)),
            unverified=int(raw.get("unverified", 0)),
        )
    except KeyError as error:
        raise ValueError(f"not a turn's record: {error.args[0]} is missing") from error
    except (AttributeError, TypeError) as error:  # JSON of another shape
        raise ValueError(f"not a turn's record: {error}") from error


def _attempt(number: int, raw: Mapping[str, str]) -> AttemptRecord:
    def parsed(name: str, empty: str) -> Any:
        return json.loads(raw.get(name) or empty)

    return AttemptRecord(
        number=number,
        prompt=raw.get("prompt", ""),
        text=raw.get("text", ""),
        answer=raw.get("answer", ""),
        completion=parsed("completion", "{}"),
        issues=tuple(parsed("issues", "[]")),
        decision=raw.get("decision", ""),
        feedback=raw.get("feedback", ""),
        goes_on=bool(raw.get("goes_on")),
        mended=raw.get("mended", ""),
        remaining=tuple(parsed("remaining", "[]")),
        changes=tuple(parsed("changes", "[]")),
        usage=parsed("usage", "{}"),
        verification=parsed("verification", "{}"),
        started_at=_seconds(raw.get("started_at", "0")),
        finished_at=_seconds(raw.get("finished_at", "0")),
        worker=raw.get("worker", ""),
        deliveries=int(raw.get("deliveries", 0)),
        last_delivery=int(raw.get("last_delivery", 0)),
    )


def decode_attempts(stored: Mapping[bytes, bytes]) -> list[AttemptRecord]:
    """The attempts in a stored hash, oldest first.

    Raises:
        ValueError: a field is not what we write.
    """
    by_number: dict[int, dict[str, str]] = {}
    for key, value in stored.items():
        number, _, name = key.decode().partition(":")
        by_number.setdefault(int(number), {})[name] = value.decode("utf-8", "replace")
    return [_attempt(number, by_number[number]) for number in sorted(by_number)]
