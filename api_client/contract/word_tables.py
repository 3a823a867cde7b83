"""Tables of words: a TOML file beside the module that reads it, with each sentence in German and English."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def table_beside(module: str) -> dict[str, dict[str, Any]]:
    """Load the word table beside a module, given its ``__file__``: name -> language and more -> words."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))
