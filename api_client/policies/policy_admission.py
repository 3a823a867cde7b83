"""Admissions that choose and store the policy, flow version and session template of a turn."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from api_client.contract.admission import Admission, Submission
from api_client.contract.errors import BadRequest
from api_client.contract.failpoints import pass_failpoint
from api_client.contract.policy import APPLIED, AppliedPolicy, settings_policy
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.contract.validator_names import (
    BUILT_IN,
    describe_unknown_validator,
    installed_validators,
    requestable_validators,
)
from api_client.contract.work import find_work
from api_client.policies.flows import FLOW, FlowVersions, set_flow
from api_client.policies.policy_files import PolicyFiles
from api_client.policies.prompts import SessionTemplates
from api_client.policies.stored_policies import store_policy
from api_client.store import Store
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: Seconds before a used template is stored again, so that it outlives every turn that names it.
_AGAIN_SECONDS = 60.0


class PolicyChoice(Admission):
    """Completes submitted requests with the rules and limits of their policy file."""

    def __init__(self, settings: Settings, policies: PolicyFiles, flows: FlowVersions) -> None:
        self._settings, self.policies, self.flows = settings, policies, flows

    async def admit(self, turn: Submission) -> TurnRequest:
        """Check a turn, and return its request with the rules and limits of its policy file filled in."""
        request = turn.request
        if self.policies.named:  # the flow version may determine the policy
            request = self.policies.complete_request(await self.flows.assign_flow(request))
        if AppliedPolicy.from_request(request) is None and request.validators != self._settings.validators:
            check_validators(request.validators, self._settings)
        return request


class PolicyKeeper(Admission):
    """Stores the policy and the session template of each submitted turn, so that workers can load them."""

    def __init__(self, store: Store, choice: PolicyChoice, check: Admission, prompts: SessionTemplates) -> None:
        """Create the admission. ``check`` validates a turn whose policy is replaced."""
        self._store, self._check, self._prompts = store, check, prompts
        self._policies, self._flows = choice.policies, choice.flows
        self._kept_at: dict[str, float] = {}  # when each template was stored last

    async def admit(self, turn: Submission) -> TurnRequest:
        """Store the turn's policy and template. Return the request with its flow version and template."""
        request = turn.request
        if applied := AppliedPolicy.from_request(request):
            request = await self._store_policy(turn, applied)
        flow, template = await self._flows.find_flow(request), request.template
        if not template and find_work(request).in_session:
            template = await self._store_template(request, flow)
        policy = hash_policy(request, self._store.settings)
        pass_failpoint("policy.kept")
        return replace(request, template=template, labels={**request.labels, FLOW: flow, "policy": policy})

    async def _store_policy(self, turn: Submission, applied: AppliedPolicy) -> TurnRequest:
        """Store the turn's policy and return the request. A turn whose policy is lost gets the current policy."""
        policy = applied.hash
        if await store_policy(self._store, policy, self._policies.find_text(policy)):
            return turn.request
        log.warning("policy.gone", policy=policy)
        turn = replace(turn, request=await renew_policy(turn.request, self._policies, self._flows))
        await self._check.admit(turn)
        anew = AppliedPolicy.from_request(turn.request)
        return await self._store_policy(turn, anew) if anew else turn.request

    async def _store_template(self, request: TurnRequest, flow: str) -> str:
        template = self._prompts.find_template(request.model, flow, request.locale)
        now = time.monotonic()
        if template.text and now - self._kept_at.get(template.hash, -_AGAIN_SECONDS) >= _AGAIN_SECONDS:
            await store_policy(self._store, template.hash, template.text)
            self._kept_at[template.hash] = now
        return template.hash


async def renew_policy(request: TurnRequest, policies: PolicyFiles, flows: FlowVersions) -> TurnRequest:
    """Return an earlier turn's request with a current flow version and a current policy."""
    request = await flows.assign_flow(set_flow(replace(request, template=""), ""))
    if AppliedPolicy.from_request(request) is None:
        return request
    named = {name for name in ("validators", "policy", "max_attempts") if name not in request.filled}
    request = replace(request.with_attachment(APPLIED, None), policy={})
    request = replace(request, filled=tuple(name for name in request.filled if name in request.attached))
    return policies.apply_policy(request, owner=request.key, named={*named, "locale"})


def hash_policy(request: TurnRequest, settings: Settings) -> str:
    """Return the hash of the policy that applies to a request, or an empty string if no policy applies."""
    applied = AppliedPolicy.from_request(request)
    if applied or not find_work(request).answers_in_text:
        return applied.hash if applied else ""
    own = settings.for_model(request.model)
    return settings_policy(own.validators, own.policy_orders, own.max_attempts).hash


def check_validators(names: Collection[str], settings: Settings) -> None:
    """Raise ``BadRequest`` if any name does not belong to an available validator."""
    for name in names:
        if not (name in BUILT_IN or name in settings.validators or name in installed_validators()):
            message = describe_unknown_validator(name, requestable_validators(settings.validators))
            raise BadRequest(message, param="validators", code="unknown_validator")
