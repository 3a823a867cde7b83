"""The settings of policies, templates and flow versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from api_client.contract.plugins import WATCHER, why_missing
from api_client.contract.session_paths import NONE, SHIPPED
from api_client.contract.settings.declaration import declare_file_value, declare_setting
from api_client.contract.settings.model_blocks import ModelBlocks
from api_client.contract.settings.setting_values import names, parse_path

#: ADR-034's feature flag. Its flow is the only one left, so the flag may be set, and only to true.
FLAG = "HELIX_USE_LLM_FLOW"


def find_flag_problems(environ: Mapping[str, str]) -> list[str]:
    """Return an error message if the environment turns off HELIX_USE_LLM_FLOW, which must stay on."""
    if environ.get(FLAG, "true").lower() in {"true", "1", ""}:
        return []
    return [f"{FLAG}: only true; the flow before ADR-034 is not here. HELIX_FLOW_VERSION compares flows"]


def parse_template(value: str) -> str:
    """Parse the name or path of a session template. Paths become absolute."""
    return value if value in (*SHIPPED, NONE) else parse_path(value)


def parse_flow_weights(value: str) -> dict[str, int]:
    """Parse flow versions with their weights, in the form ``version=weight,...``. The default weight is 1."""
    flows = {}
    for item in names(value):
        version, given, weight = (part.strip() for part in item.partition("="))
        valid = version.isascii() and version.replace(".", "").replace("-", "").replace("_", "").isalnum()
        if not valid or len(version) > 32 or (given and not (weight.isascii() and weight.isdecimal())):
            raise ValueError("must look like version or version=weight,version=weight")
        flows[version] = int(weight) if given else 1
    if not any(flows.values()):
        raise ValueError("must name a version with a weight above 0")
    return flows


@dataclass(frozen=True, kw_only=True)
class PolicySettings(ModelBlocks):
    """Settings of policies: rules for answers, instructions for agents, and their versions.

    Attributes:
        policy_orders: validator -> what is tried for its errors, where a request says nothing (``TurnRequest.policy``).
        owner_settings: owner -> what its block sets.
        flow_settings: flow version -> what its block sets.
    """

    owner_settings: dict[str, dict[str, Any]] = declare_file_value(dict)
    flow_settings: dict[str, dict[str, Any]] = declare_file_value(dict)
    policy_orders: dict[str, tuple[str, ...]] = declare_file_value(dict)
    policy: str = declare_setting(
        "",
        parse_path,
        "Policy file (policy.md): its rules apply instead of HELIX_VALIDATORS; none: the three validators.",
        per_model=True,
    )
    prompt_template: str = declare_setting(
        "",
        parse_template,
        "Template of CLAUDE.md: a path, de, en, or none for no CLAUDE.md; not set: the turn's language (sessions.md).",
        per_model=True,
    )
    flow_version: dict[str, int] = declare_setting(
        lambda: {"v2": 1},
        parse_flow_weights,
        "Versions of prompts and rules: v2=9,v3=1 spreads sessions over two (flow-versions.md).",
    )

    def find_policy(self, model: str, owner: str = "", flow: str = "") -> str:
        """Return the path of the policy file for a turn, chosen by owner, flow version or model."""
        blocks = self.owner_settings.get(owner, {}), self.flow_settings.get(flow, {})
        named = (str(block.get("policy", "")) for block in blocks)
        return next(filter(None, named), "") or self.for_model(model).policy

    def find_template(self, model: str, flow: str = "") -> str:
        """Return the session template for a turn, chosen by flow version or model."""
        return str(self.flow_settings.get(flow, {}).get("prompt_template", "")) or self.for_model(model).prompt_template

    @property
    def policy_files(self) -> tuple[str, ...]:
        """Return the paths of all policy files in these settings, without duplicates."""
        blocks = [*self.owner_settings.values(), *self.flow_settings.values(), *self.model_settings.values()]
        named = [self.policy, *(str(block.get("policy", "")) for block in blocks)]
        return tuple(dict.fromkeys(filter(None, named)))

    def find_problems(self) -> Iterator[str]:
        """Yield a message for each setting of an unknown flow version, and if the plug-in ``flow-guard`` is missing."""
        yield from super().find_problems()
        versions = ", ".join(self.flow_version)
        for flow in self.flow_settings:
            if flow not in self.flow_version:
                yield f"[flow.{flow}]: HELIX_FLOW_VERSION has no such version ({versions}); {flow}=0 keeps it off"
        bounded = any("max_failure_rate" in block for block in self.flow_settings.values())
        if bounded and (missing := why_missing(WATCHER, "flow-guard")):
            yield f"max_failure_rate: {missing}"
