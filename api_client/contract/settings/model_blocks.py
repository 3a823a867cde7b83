"""The settings that a model's block of the settings file can contain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from api_client.contract.settings.declaration import SettingsGroup, declare_file_value


@dataclass(frozen=True, kw_only=True)
class ModelBlocks(SettingsGroup):
    """Settings that the settings file can give for each model.

    Attributes:
        model_settings: model -> settings of its block; ``for_model`` applies them.
        vision: the model sees images. stream: ``live``, ``draft`` or ``validated``; empty for the caller's default.
        prices: US dollars for a million tokens (``worker/runners/pricing.py``).
        proxy_models: further models that an agent may ask for. proxy_allows: what else its calls may contain.
        api: API of ``openai_http``: ``chat`` or ``responses``. parameters: what it sends besides.
        timeouts: longest wait for the ``first`` and each ``next`` event of an answer, in seconds.
        fallbacks: ``ProviderFault`` -> the models that may take over, in order.
    """

    model_settings: dict[str, dict[str, Any]] = declare_file_value(dict)
    prices: dict[str, Any] = declare_file_value(dict)
    proxy_models: tuple[str, ...] = declare_file_value(())
    proxy_allows: tuple[str, ...] = declare_file_value(())
    api: str = declare_file_value("chat")
    parameters: dict[str, Any] = declare_file_value(dict)
    timeouts: dict[str, float] = declare_file_value(dict)
    fallbacks: dict[str, tuple[str, ...]] = declare_file_value(dict)
    vision: bool = declare_file_value(False)
    stream: str = declare_file_value("")

    def for_model(self, model: str) -> Self:
        """Return the settings that apply to a model, including the model's own block."""
        if model not in self.model_settings:
            return self
        if model not in self._of_models:
            self._of_models[model] = replace(self, **self.model_settings[model])
        return self._of_models[model]

    @cached_property
    def _of_models(self) -> dict[str, Self]:
        return {}

    def list_named_models(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each setting that refers to a fallback model, together with the model."""
        yield from super().list_named_models()
        for name, block in self.model_settings.items():
            for kind, models in block.get("fallbacks", {}).items():
                yield from ((f"[model.{name}] fallbacks.{kind}", model) for model in models)
