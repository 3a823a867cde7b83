"""Constants of the program: values no installation had a reason to change. Tests change them."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaring import constant
from api_client.contract.settings.setting_values import choice, integer, number, text


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of the program: values no installation had a reason to change. Tests change them."""

    store_wait_seconds: float = constant(
        30.0, number(0, 3600), "How long a start waits for a store or broker that does not answer."
    )
    reap_seconds: float = constant(1.0, number(0.05, 60), "How often each worker looks for turns that need attention.")
    announce_seconds: float = constant(5.0, number(0.2, 600), "An unclaimed turn is announced again; doubles.")
    transient_delay_seconds: float = constant(1.0, number(0, 3600), "First delay after a passing error; doubles.")
    busy_delay_seconds: float = constant(
        15.0, number(0, 3600), "First delay where the service is too busy or limits us (429, 529); doubles three times."
    )
    transient_retries: int = constant(4, integer(0, 100), "Passing errors (429, 5xx, network) forgiven per attempt.")
    kill_grace_seconds: float = constant(5.0, number(0, 600), "Time between SIGTERM and SIGKILL for an agent.")
    stalled_seconds: float = constant(
        60.0,
        number(0, 86_400),
        "A worker that takes no message for this long, though it could, is restarted; 0: never.",
    )
    minute_metrics_seconds: float = constant(
        2 * 86_400.0, number(3600, 10**9), "How long counters by the minute are kept; then hours answer."
    )
    hour_metrics_seconds: float = constant(
        40 * 86_400.0, number(86_400, 10**9), "How long counters by the hour are kept; then days answer."
    )
    day_metrics_seconds: float = constant(
        400 * 86_400.0, number(86_400, 10**9), "How long counters by the day are kept."
    )
    ping_seconds: float = constant(10.0, number(0.05, 300), "Longest silence on a stream before a keep-alive.")
    stuck_reader_seconds: float = constant(
        60.0, number(0, 86_400), "A reader of the relay that takes nothing for this long is dropped (Linux); 0: never."
    )
    rejoin_seconds: float = constant(
        900.0, number(0, 86_400), "A finished answer nobody received is given to a Regenerate for this long."
    )
    parked_seconds: float = constant(
        300.0, number(0, 86_400), "How long a caller waits for a parked turn; then it gets the error turn_parked."
    )
    strikes: int = constant(5, integer(2, 100), "Deliveries that may end in a dead worker before the turn is dead.")
    validation_seconds: float = constant(10.0, number(0.1, 3600), "A validator that takes longer has failed.")
    verifier_seconds: float = constant(300.0, number(1, 3600), "A verifier that takes longer has not verified.")
    max_connections: int = constant(
        4_096, integer(1, 10**6), "Connections a relay serves at once; one more gets 503 and is closed.", was=True
    )
    max_unfinished: int = constant(
        10_000, integer(0, 10**7), "Unfinished turns with which the relay takes in no more: 429 queue_full.", was=True
    )
    max_messages: int = constant(2_000, integer(1, 10**5), "Messages a conversation may have.")
    max_message_chars: int = constant(2**20, integer(1, 2**24), "Characters one message may have.")
    stop_grace_seconds: float = constant(
        20.0, number(0, 86_400), "A turn whose Open WebUI reader left is cancelled after this long; 0: never."
    )
    witness: str = constant("", text, "File in which the scripted agent records what it really executed (tests).")
    failpoint: str = constant("", text, "Where this process dies or freezes on purpose (tests); see failpoints.py.")
    audit_seconds: float = constant(400 * 86_400.0, number(3600, 10**9), "How long lines of the audit log are kept.")
    escalation_runs: int = constant(1, integer(0, 10), "How often that model is run at most; 0: no stage 1.")
    escalation_default: str = constant(
        "reject",
        choice("reject", "approve"),
        "What is decided on a parked turn when nobody does in time.",
    )
    breaker_errors: int = constant(
        10,
        integer(0, 10**6),
        "Errors of a model's service in a row (5xx, network) after which its turns wait.",
        was=True,
    )
    breaker_seconds: float = constant(
        60.0, number(0.1, 86_400), "An open breaker lets one turn try after this long; doubles up to 10 minutes."
    )
