"""Tables of words: one TOML file beside the module that reads it, with each sentence in German and English."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def table_beside(module: str) -> dict[str, dict[str, Any]]:
    """The table of a module (its ``__file__``): name -> language and more -> words, in the order of the file."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))
