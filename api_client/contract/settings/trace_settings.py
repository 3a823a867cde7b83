"""The settings of traces."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_setting
from api_client.contract.settings.setting_values import parse_web_address

#: What represents the trace's id (32 hexadecimal digits) in the address of its page.
TRACE_ID = "{trace_id}"


def parse_trace_address(value: str) -> str:
    """Check the address of a web page for traces, which must be empty or contain ``{trace_id}``."""
    if value and TRACE_ID not in parse_web_address(value):
        raise ValueError(f"must hold {TRACE_ID}, as in http://127.0.0.1:16686/trace/{TRACE_ID}")
    return value


@dataclass(frozen=True, kw_only=True)
class TraceSettings(SettingsGroup):
    """Settings of traces: the address of the web page that shows a trace."""

    trace_page: str = declare_setting(
        "",
        parse_trace_address,
        "Address of a trace's page, with {trace_id} in it; then the page of a finished turn links there.",
    )
