"""Check that the relay can use the provider with which people sign in to the pages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from api_client.contract.settings import Settings
from api_client.contract.settings.setting_faults import find_setting_faults
from api_client.oidc.person import SignInRefused
from api_client.oidc.provider import OidcProvider
from worker.cli.checks.finding import Finding


def check_sign_in(settings: Settings) -> Iterator[Finding]:
    """Yield a finding about the provider's discovery document, if there is a provider."""
    if not settings.oidc_issuer or any(fault.check == "sign-in" for fault in find_setting_faults(settings)):
        return
    try:
        asyncio.run(OidcProvider(settings).discover())
        yield Finding("sign-in", "ok", f"{settings.oidc_issuer} signs people in; they return to {settings.public_url}")
    except SignInRefused as error:
        yield Finding("sign-in", "wrong", str(error), "correct HELIX_OIDC_ISSUER, or repair the provider")
