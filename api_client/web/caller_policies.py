"""The policy files as they are for one caller of the relay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from api_client.contract.turn import TurnRequest
from api_client.contract.values.flow import flow_of
from api_client.contract.values.policy import Asker
from api_client.policies.files import Policies
from api_client.web.bodies.ask import PolicyFor
from api_client.web.identity.access import Caller
from api_client.web.relay import Relay


@dataclass(frozen=True, slots=True)
class CallersPolicy(PolicyFor):
    """What the policy files say for a caller and a route; ``flows``: the versions that get turns now."""

    policies: Policies
    asker: Asker
    flows: Mapping[str, int]

    def askable(self, model: str) -> tuple[str, ...]:
        """As the base says. Raises ``SettingsError``: the file was never usable."""
        sources = (self.policies.of(model, self.asker.owner, flow) for flow in self.flows)
        return tuple(dict.fromkeys(name for source in sources if source for name in source.askable))

    def apply(self, request: TurnRequest, named: Collection[str]) -> TurnRequest:
        """As the base says. Raises as ``Policies.apply``."""
        request = replace(request, flow=flow_of(request.session_id, self.flows))
        return self.policies.apply(request, self.asker, named=named)


async def policy_for(relay: Relay, caller: Caller, route: str) -> CallersPolicy:
    """The policy files as they are for this caller on this route: chat, responses or turns.

    Raises:
        StoreUnavailable: the store does not answer, and is asked which flow versions were rolled back.
    """
    asker = Asker(owner=caller.holder, route=route)
    return CallersPolicy(relay.client.policies, asker, await relay.client.flows.active())
