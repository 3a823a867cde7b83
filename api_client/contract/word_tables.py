"""Tables of texts for users: a TOML file beside a module, with each sentence in German and English."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def load_word_table(module: str) -> dict[str, dict[str, Any]]:
    """Load the TOML file with texts for users next to a module, given the module's ``__file__``."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))


def translate_from(table: Mapping[str, Mapping[str, Any]], name: str, locale: str, **values: object) -> str:
    """Return the sentence ``name`` of a table in German or English, with ``values`` filled in."""
    texts = table[name]
    return str(texts.get(locale, texts["en"])).format(**values)
