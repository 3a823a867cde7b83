"""Parts that capabilities add by modules of a package: each is there, and none twice."""

import pytest

from api_client.contract.package_parts import collect_parts
from api_client.figures.statistics import REACTIONS
from api_client.web.bodies.models import ResponseBody, TurnBody
from api_client.web.routes.phases import PhasesBody


@pytest.mark.parametrize(
    ("package", "attribute", "names"),
    [
        ("api_client.interruptions", "KIND", ["tool_call", "tool_sign_in", "verdict"]),
        ("api_client.turn_actions", "ACTION", ["cancel", "drop", "replay"]),
        ("api_client.web.bodies.body_fields", "FIELD", ["escalation", "tool_servers"]),
        ("worker.turns.interruptions", "KIND", ["tool_call", "verdict"]),
    ],
)
def test_a_port_has_the_parts_that_come_along(package: str, attribute: str, names: list[str]) -> None:
    assert sorted(part.name for part in collect_parts(package, attribute)) == names


def test_every_body_takes_the_fields_of_capabilities() -> None:
    assert all("escalation" in body.model_fields for body in (TurnBody, ResponseBody, PhasesBody))


def test_what_follows_from_a_rejected_answer_is_counted_by_its_name() -> None:
    assert dict(REACTIONS) == {"escalate": ("escalated", "handed on")}
