"""The policy files as they are for one caller of the relay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from api_client.contract.turn import TurnRequest
from api_client.contract.values.policy import Asker
from api_client.policies.files import Policies
from api_client.web.bodies.ask import PolicyFor
from api_client.web.identity.access import Caller
from api_client.web.relay import Relay


@dataclass(frozen=True, slots=True)
class CallersPolicy(PolicyFor):
    """What the policy files say for a caller and a route."""

    policies: Policies
    asker: Asker

    def askable(self, model: str) -> tuple[str, ...]:
        """As the base says. Raises ``SettingsError``: the file was never usable."""
        source = self.policies.of(model, self.asker.owner)
        return source.askable if source else ()

    def apply(self, request: TurnRequest, named: Collection[str]) -> TurnRequest:
        """As the base says. Raises as ``Policies.apply``."""
        return self.policies.apply(request, self.asker, named=named)


def policy_for(relay: Relay, caller: Caller, route: str) -> CallersPolicy:
    """The policy files as they are for this caller on this route: chat, responses or turns."""
    return CallersPolicy(relay.client.policies, Asker(owner=caller.holder, route=route))
