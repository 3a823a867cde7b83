"""The settings of notifications, and their parsers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from api_client.contract.notification import KINDS
from api_client.contract.plugins import WATCHER, why_missing
from api_client.contract.settings.declaration import SettingsGroup, declare_setting
from api_client.contract.settings.setting_values import choice_parser, names, parse_web_address


def parse_web_addresses(value: str) -> tuple[str, ...]:
    """Parse comma-separated web addresses, which must not contain a user name or password."""
    found = names(value)
    for each in found:
        parse_web_address(each)
        if "@" in urlsplit(each).netloc:
            raise ValueError("must not hold a user or password")
    return found


def parse_webhook_key(value: str) -> str:
    """Check a key for signing webhooks: ``whsec_`` followed by base64, or any other text."""
    if value.startswith("whsec_"):
        try:
            base64.b64decode(value.removeprefix("whsec_"), validate=True)
        except ValueError:
            raise ValueError("must be base64 behind whsec_") from None
    return value


def parse_notification_kinds(value: str) -> tuple[str, ...]:
    """Parse comma-separated kinds of notifications; ``response.*`` selects all kinds with this prefix."""
    found = names(value)
    for each in found:
        if not any(kind == each or (each.endswith("*") and kind.startswith(each[:-1])) for kind in KINDS):
            raise ValueError(f"no kind of notification {each!r}; there are: {', '.join(KINDS)}")
    return found


@dataclass(frozen=True, kw_only=True)
class NotificationSettings(SettingsGroup):
    """Settings of notifications: which events are reported to people and programs, and how (docs/webhooks.md)."""

    webhook_urls: tuple[str, ...] = declare_setting(
        (),
        parse_web_addresses,
        "Addresses that get notifications, each signed as OpenAI signs its webhooks.",
        secret=True,
    )
    webhook_secret: str = declare_setting(
        "",
        parse_webhook_key,
        "Signs them: whsec_ and base64, as `turns notifications secret` makes one; none: unsigned.",
        secret=True,
    )
    webhook_internal: str = declare_setting(
        "refused",
        choice_parser("refused", "allowed"),
        "Whether those addresses may lead to this machine or an inner network.",
    )
    notification_command: str = declare_setting(
        "",
        str,
        "A shell command that is run for each notification, which it gets as JSON on standard input.",
        masked=True,
    )
    notification_kinds: tuple[str, ...] = declare_setting(
        ("*",), parse_notification_kinds, "The kinds of notifications that are sent: turn.failed,response.*; * for all."
    )

    def find_problems(self) -> Iterator[str]:
        """Yield a message if notifications are configured but the plug-in that sends them is missing."""
        yield from super().find_problems()
        missing = why_missing(WATCHER, "notifier")
        for name, asked in {
            "HELIX_WEBHOOK_URLS": self.webhook_urls,
            "HELIX_NOTIFICATION_COMMAND": self.notification_command,
        }.items():
            if asked and missing:
                yield f"{name}: {missing}"
