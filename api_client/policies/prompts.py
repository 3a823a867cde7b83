"""Session templates: chooses the template of a turn, and reads changed template files again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from api_client.contract.errors import SettingsError
from api_client.contract.session_paths import NONE, SHIPPED, read_shipped_template
from api_client.contract.settings import Settings
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class SessionTemplate:
    """The text of a session template and its hash. Without a template, the text is empty and the hash ``none``."""

    hash: str
    text: str

    @classmethod
    def of_text(cls, text: str) -> SessionTemplate:
        return cls(hashlib.sha256(text.encode()).hexdigest()[:16], text)


class SessionTemplates:
    """Provides session templates. Changed files are read again, and unreadable files keep their last text."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: dict[str, tuple[tuple[int, ...], SessionTemplate]] = {}
        self._shipped = {name: SessionTemplate.of_text(read_shipped_template(name)) for name in SHIPPED}

    def find_template(self, model: str, flow: str, locale: str) -> SessionTemplate:
        """Return the session template for a model and flow version, or the built-in one for the language.

        Raises ``SettingsError`` if the template's file was never readable.
        """
        named = self._settings.find_template(model, flow)
        if named == NONE:
            return SessionTemplate(NONE, "")
        return self._shipped.get(named or locale) or (self._read_file(named) if named else self._shipped["en"])

    def check_templates(self) -> None:
        """Read the templates of all models and flow versions. Raises ``SettingsError`` listing unreadable files."""
        problems: dict[str, None] = {}
        for model in self._settings.models:
            for flow in self._settings.flow_version:
                try:
                    self.find_template(model, flow, "en")
                except SettingsError as error:
                    problems |= dict.fromkeys(error.problems)
        if problems:
            raise SettingsError(list(problems))

    def _read_file(self, path: str) -> SessionTemplate:
        seen = self._seen.get(path)
        try:
            stat = Path(path).stat()
            stamp = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
            if seen and seen[0] == stamp:
                return seen[1]
            if stat.st_size > MAX_BYTES:
                raise ValueError(f"longer than {MAX_BYTES} bytes")
            prompt = SessionTemplate.of_text(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            if seen is None:
                raise SettingsError([f"prompt_template {path}: cannot be read ({error})"]) from None
            log.exception("prompt.unreadable", path=path, kept=seen[1].hash)
            return seen[1]
        self._seen[path] = stamp, prompt
        return prompt
