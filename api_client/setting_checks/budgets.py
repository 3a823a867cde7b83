"""The check for budgets that apply to nobody."""

from __future__ import annotations

from collections.abc import Iterator

from api_client.contract.errors import SettingsError
from api_client.contract.owners import LOCAL_OWNER, parse_owner
from api_client.contract.settings import Settings
from api_client.contract.settings.setting_faults import SettingFault


def find_unmatched_budgets(settings: Settings) -> dict[str, str]:
    """Return the entries of HELIX_BUDGETS that apply to nobody, each with the reason."""
    if not settings.budgets:  # then the store's client is not loaded: a supervisor stays small
        return {}
    from api_client.api_keys import read_keys

    try:
        owners = {key.owner for key in read_keys(settings.keys_path)}
    except SettingsError:  # who needs the keys says so
        owners = set()
    known = {"owner": owners | {LOCAL_OWNER} if owners else owners, "key": owners, "model": set(settings.models)}
    found = {}
    for entry in settings.budgets:
        kind, _, name = entry.partition(":")
        holder = name if kind == "model" else name.partition("/")[0]
        hashed = kind == "owner" and parse_owner(name) == name
        if known.get(kind) and name != "*" and not hashed and holder not in known[kind]:
            names = f"`turns keys list` has the owners {', '.join(sorted(owners))}"
            found[entry] = names if kind != "model" else f"HELIX_MODELS has {', '.join(sorted(settings.models))}"
    return found


def find_faults(settings: Settings) -> Iterator[SettingFault]:
    for entry, why in find_unmatched_budgets(settings).items():
        yield SettingFault("budgets", f"HELIX_BUDGETS={entry!r} matches nobody: {why}", "correct the name")
