"""Checks that the credentials of MCP servers are stored and readable, without showing any."""

from __future__ import annotations

from collections.abc import Iterator

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError, SettingsError
from api_client.contract.settings import Settings
from api_client.secrets.secret_store import SecretStore, StoredSecret
from worker.cli.checks.finding import Finding
from worker.cli.output import count_noun
from worker.cli.store_access import run_with_settings


def secrets(settings: Settings) -> Iterator[Finding]:
    """Check the key file, and the stored secrets that the MCP servers in the settings need. Yield the findings."""
    named = {str(block.get("credentials") or "") for block in settings.tools_settings.values()} - {""}
    if not settings.store_url:
        return

    async def read_secrets(client: TurnsClient) -> list[StoredSecret]:
        return await SecretStore(client.store).list_secrets()

    try:
        found = run_with_settings(settings, read_secrets)
    except SettingsError as error:
        yield Finding("secrets", "wrong", str(error), "restore the key file that the secrets were encrypted with")
        return
    except HelixError:
        return  # reported by the checks of the store
    lost = sorted({each.secret_id.name for each in found if each.value is None})
    if lost:
        fix = f"restore the key in {settings.secrets_key_path}, or store each again with `turns secrets set`"
        yield Finding("secrets", "wrong", f"no key decrypts {', '.join(lost)}", fix)
    if missing := sorted(named - {each.secret_id.name for each in found}):
        fix = f"`turns secrets set {missing[0]}`"
        yield Finding("secrets", "warning", f"[tools] names credentials that are not stored: {', '.join(missing)}", fix)
    if found and not lost:
        yield Finding("secrets", "ok", f"{count_noun(len(found), 'secret')}, all readable")
