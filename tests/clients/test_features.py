"""Clients by features, as docs/clients.md has them: structured output first, each in its library's own words."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import openai
import pytest

from tests.clients.conftest import CLIENTS, needs, ran
from tests.clients.features import cells_of, documented, keep
from tests.clients.test_litellm import LITELLM
from tests.clients.test_litellm import proxy as proxy

HERE, NODE = Path(__file__).parent, CLIENTS / "node"
PYTHONS = {"LangChain": "langchain", "instructor": "instructor", "pydantic-ai": "pydantic-ai"}


def check(client: str, command: Sequence[str | Path], home: Path) -> None:
    """The client's features are those of its column in the docs."""
    done = ran(*command, home=home)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    keep(CLIENTS, client, told)
    assert cells_of(told) == documented()[client], told


@needs(CLIENTS)
def test_openai_for_python_has_its_features(url: str, tmp_path: Path) -> None:
    check("openai, Python", [sys.executable, HERE / "ask.py", "openai", url], tmp_path)


@pytest.mark.parametrize("client", [pytest.param(name, marks=needs(CLIENTS / PYTHONS[name])) for name in PYTHONS])
def test_a_library_for_python_has_its_features(url: str, tmp_path: Path, client: str) -> None:
    python = CLIENTS / PYTHONS[client] / "bin" / "python"
    check(client, [python, HERE / "ask.py", PYTHONS[client], url], tmp_path)


@needs(NODE / "node_modules" / "openai")
def test_openai_for_node_has_its_features(url: str, tmp_path: Path) -> None:
    shutil.copy(HERE / "ask.mjs", NODE)
    check("openai, Node", ["node", NODE / "ask.mjs", url], tmp_path)


@needs(LITELLM)
def test_a_gateway_in_front_keeps_the_features(proxy: openai.OpenAI, tmp_path: Path) -> None:
    address, key = str(proxy.base_url), proxy.api_key
    check("LiteLLM in front", [sys.executable, HERE / "ask.py", "openai", address, key], tmp_path)
