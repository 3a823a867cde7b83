"""All settings: name, default, meaning. ``load`` reads them from the environment and the settings file.

Each group has its own module; ``table`` puts the groups together.
"""

from api_client.contract.settings.declaration import declared, name_of, spelled
from api_client.contract.settings.load import STORES, load, require_store, running, shared, with_installation
from api_client.contract.settings.store_addresses import masked
from api_client.contract.settings.table import CONSTANTS, GROUPS, RUN_FILE, STATE_DIR, Settings

__all__ = [
    "CONSTANTS",
    "GROUPS",
    "RUN_FILE",
    "STATE_DIR",
    "STORES",
    "Settings",
    "declared",
    "load",
    "masked",
    "name_of",
    "require_store",
    "running",
    "shared",
    "spelled",
    "with_installation",
]
