"""The settings: name, default, meaning."""

from api_client.contract.settings.declaration import declared_fields, environment_name, spell_value
from api_client.contract.settings.load import (
    STORES,
    load_settings,
    merge_installation,
    read_running_installation,
    require_store,
    shared_environment,
)
from api_client.contract.settings.store_addresses import mask_password
from api_client.contract.settings.table import CONSTANTS, GROUPS, RUN_FILE, STATE_DIR, Settings

__all__ = [
    "CONSTANTS",
    "GROUPS",
    "RUN_FILE",
    "STATE_DIR",
    "STORES",
    "Settings",
    "declared_fields",
    "environment_name",
    "load_settings",
    "mask_password",
    "merge_installation",
    "read_running_installation",
    "require_store",
    "shared_environment",
    "spell_value",
]
