"""Catalogue entries for the tool gateway."""

from api_client.contract.counter_declaration import CounterDeclaration

COUNTERS = {
    "tool.called": CounterDeclaration(
        meaning="Tool calls through the gateway that ended: done, error (the tool's own), failed, recorded, unknown,"
        " asked, denied.",
        labels=("server", "tool", "outcome"),
    ),
    "time.tool": CounterDeclaration(
        meaning="From sending a tool call to its server until its result, or until nobody waits any longer.",
        labels=("server", "tool"),
    ),
    "cost.tools": CounterDeclaration(
        meaning="Cost of tool calls in US dollars, as their servers report it; no part of helix_cost_usd_total.",
        labels=("server",),
    ),
}
ADMISSIONS = {"tools": "api_client.tools.server_choice:ToolChoice"}
PLUGINS = {
    "equipment": {"tools": "tools"},
    "commands": {"secrets": "tools", "turn.calls": "tools"},
    "checks": {"secrets": "tools", "tools": "tools"},
}
