"""Check access to the relay: weak keys and untrusted proxies."""

from __future__ import annotations

import math
import string
import time
from collections.abc import Iterator

from api_client.api_keys import read_sound_keys
from api_client.contract.errors import HelixError, SettingsError
from api_client.contract.keys import UNTRUSTED_PROXY
from api_client.contract.settings import Settings
from worker.cli.checks.finding import Finding
from worker.cli.store_access import run_with_settings

_BITS, _DAY_SECONDS = 128, 86_400
_ALPHABETS = (string.digits, string.hexdigits.lower(), string.ascii_letters + string.digits + "-_")


def check_callers(settings: Settings) -> Iterator[Finding]:
    """Yield findings about weak API keys, their file, and client proxies that the settings do not trust."""
    try:
        read_sound_keys(settings.keys_path)
    except SettingsError as error:
        yield from (Finding("keys", "wrong", problem, "the relay does not start with it") for problem in error.problems)
    for name, keys in (("HELIX_API_KEYS", settings.api_keys), ("HELIX_FORWARDING_KEYS", settings.forwarding_keys)):
        if weak := sum(estimate_entropy(key) < _BITS for key in keys):
            message = f"{weak} of {len(keys)} in {name} have less than {_BITS} bits: somebody could guess them"
            yield Finding("keys", "warning", message, "make them with `turns keys create`, or `openssl rand -hex 32`")
    try:
        noted = (
            run_with_settings(settings, lambda client: client.store.read_fact(UNTRUSTED_PROXY))
            if settings.store_url
            else ""
        )
    except HelixError:
        return
    address, _, at = noted.partition(" ")
    if address and time.time() - float(at) < _DAY_SECONDS:
        message = f"{address} sends X-Forwarded headers to the relay and is not trusted: all its clients count as one"
        fix = f"if this is your proxy, set HELIX_TRUSTED_PROXIES={address} for the relay"
        yield Finding("proxy", "warning", message, fix)


def estimate_entropy(key: str) -> float:
    """Return an upper bound of a key's entropy in bits, or 0 for fewer than eight different characters."""
    letters = set(key)
    size = next((len(each) for each in _ALPHABETS if letters <= set(each)), len(_ALPHABETS[-1]))
    return len(key) * math.log2(size) if len(letters) >= 8 else 0.0
