"""Admissions of policies: which policy, flow version and session template a turn has, and that the store has them."""

from __future__ import annotations

import time
from dataclasses import replace

from api_client.contract.admission import Admission, Submission
from api_client.contract.failpoints import reach
from api_client.contract.policy import AppliedPolicy
from api_client.contract.turn import TurnRequest
from api_client.contract.work import find_work
from api_client.policies import Policies
from api_client.policies.flows import Flows
from api_client.policies.kept import keep
from api_client.policies.prompts import Prompts
from api_client.store import Store
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: So often a template that is in use is put into the store again: none that a turn names is older than a finished turn.
_AGAIN_SECONDS = 60.0


class PolicyChoice(Admission):
    """Completes a request by its policy; a replay whose flow version is gone gets the one of today."""

    def __init__(self, policies: Policies, flows: Flows) -> None:
        self.policies, self.flows = policies, flows

    async def admit(self, turn: Submission) -> TurnRequest:
        """Return the request with its policy's rules and limits."""
        request = turn.request
        if turn.is_replay and request.flow and request.flow not in await self.flows.active():
            request = await self.renew(request)
        if self.policies.named:  # which one may be the flow version's
            request = self.policies.completed(await self.flows.given(request))
        return request

    async def renew(self, request: TurnRequest) -> TurnRequest:
        """Return a replay's request with the flow version and the policy of today."""
        request, applied = await self.flows.given(replace(request, flow="", template="")), request.applied
        if applied is None:
            return request
        named = {name for name in ("validators", "policy", "max_attempts") if name not in applied.filled}
        return self.policies.apply(
            replace(request, applied=None, policy={}), owner=request.key, named={*named, "locale"}
        )


class PolicyKeeper(Admission):
    """Puts a turn's policy and session template into the store. It writes, so it comes after the checks."""

    def __init__(self, store: Store, choice: PolicyChoice, check: Admission, prompts: Prompts) -> None:
        """``check`` is asked about a policy of today, too."""
        self._store, self._choice, self._check, self._prompts = store, choice, check, prompts
        self._policies, self._flows = choice.policies, choice.flows
        self._kept_at: dict[str, float] = {}  # when each template was put into the store

    async def admit(self, turn: Submission) -> TurnRequest:
        """Return the request with its flow version and template. Raises as ``Store.ask``."""
        request = turn.request
        if request.applied:
            request = await self._with_kept_policy(turn, request.applied)
        request = await self._with_flow(request)
        reach("policy.kept")
        return request

    async def _with_kept_policy(self, turn: Submission, applied: AppliedPolicy) -> TurnRequest:
        """Return the request, its policy being in the store. A replay whose policy is gone gets the one of today."""
        policy = applied.hash
        if await keep(self._store, policy, self._policies.text_of(policy)):
            return turn.request
        log.warning("policy.gone", policy=policy)
        turn = replace(turn, request=await self._choice.renew(turn.request))
        await self._check.admit(turn)
        anew = turn.request
        return await self._with_kept_policy(turn, anew.applied) if anew.applied else anew

    async def _with_flow(self, request: TurnRequest) -> TurnRequest:
        """Return the request with its flow version, and with its session template, if it needs one, now stored."""
        if request.template or not find_work(request).in_session:
            return await self._flows.given(request)
        flow = request.flow or await self._flows.of(request)
        prompt = self._prompts.of(request.model, flow, request.locale)
        now = time.monotonic()
        if prompt.text and now - self._kept_at.get(prompt.hash, -_AGAIN_SECONDS) >= _AGAIN_SECONDS:
            await keep(self._store, prompt.hash, prompt.text)
            self._kept_at[prompt.hash] = now
        return replace(request, flow=flow, template=prompt.hash)
