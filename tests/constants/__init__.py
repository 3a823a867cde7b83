"""Other values for the constants of a module: in this process, and in the processes that a test starts.

``tests/constants/site`` is put on their PYTHONPATH; its ``sitecustomize`` sets the values once the module is imported.
"""

import importlib
import json
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).with_name("site")
_VARIABLE = "TESTS_CONSTANTS"


def set_constants(environ: MutableMapping[str, str], module: str, **values: Any) -> None:
    """Have processes with this environment use these values for constants of a module."""
    known = json.loads(environ.get(_VARIABLE, "{}"))
    environ[_VARIABLE] = json.dumps({**known, module: {**known.get(module, {}), **values}})
    paths = [str(SITE), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


class Constants:
    """Changes constants here and in all processes that are started from now on, until the patch is undone."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(self, module: str, **values: Any) -> None:
        for name, value in values.items():
            self._patch.setattr(importlib.import_module(module), name, value)
        environ = dict(os.environ)
        set_constants(environ, module, **values)
        for name in (_VARIABLE, "PYTHONPATH"):
            self._patch.setenv(name, environ[name])
