"""The check that sign-in with a provider has the packages that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from api_client.contract.settings import Settings
from api_client.contract.settings.setting_faults import SettingFault

_PACKAGES = ("cryptography", "httpx2")


def find_faults(settings: Settings) -> Iterator[SettingFault]:
    """Yield a fault if people are to sign in with a provider and a package is missing."""
    missing = [name for name in _PACKAGES if find_spec(name) is None] if settings.oidc_issuer else []
    if missing:
        said = f"HELIX_OIDC_ISSUER: sign-in needs {' and '.join(missing)}"
        yield SettingFault("sign-in", said, "pip install 'helix-turns[oidc]'")
