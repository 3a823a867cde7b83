"""Real relays and workers of two releases beside each other: there and back, in the order of docs/operations.md.

Chats go on while each part is replaced, and are asked again by their idempotency key when their relay ends.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fault.staged import Seen
from tests.installation import fetch_status
from tests.ports import free_port
from tests.support import json_lines, wait_for
from worker.processes.embedded_broker import EmbeddedBroker

_ROOT = Path(__file__).parents[3]
#: The commits to upgrade from, oldest first: none is older than version 0.1.0. This checkout comes after them.
_LANDED = ("78d6676a",)
_HERE = "this checkout"
#: How long a chat waits for its answer.
_SECONDS = 240.0
_ANSWER = "Eine Antwort, die etwas dauert.\n\n"
_SCRIPT = """
- when: ""
  attempts:
    - - say: {text: "Eine Antwort, die etwas dauert.\\n\\n<!-- STEP: done -->", pieces: 8, seconds: 1.5}
"""
_TURNS = [sys.executable, "-c", "from worker.cli import main; main()"]


@dataclass
class _Site:
    """An installation whose parts are of different releases. ``sources`` are the folders of their code."""

    folder: Path
    sources: dict[str, Path]
    port: int = field(default_factory=free_port)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.folder / "root"
        self.root.mkdir(parents=True)
        (self.folder / "script.yaml").write_text(_SCRIPT)
        self.broker = EmbeddedBroker(self.folder / "broker")
        self.broker.start()
        plain = {name: text for name, text in os.environ.items() if not name.startswith("HELIX_")}
        self.environ = plain | {
            "REDIS_URL": self.broker.url,
            "HELIX_ROOT": str(self.root),
            "HELIX_NAMESPACE": f"rolling-{secrets.token_hex(4)}",
            "HELIX_MODELS": f"scripted=scripted:{self.folder}/script.yaml",
            "HELIX_LOG_FORMAT": "json",
        }

    def put(self, part: str, release: str) -> None:
        """Have a part (``web``, ``worker``) be of a release: end the one that runs, and start it."""
        self.end(part)
        with (self.folder / f"{part}.log").open("ab") as log:
            environ = self.environ | {"PYTHONPATH": str(self.sources[release])}
            options = ["--port", str(self.port)] if part == "web" else []
            words = [part] if release in _LANDED else ["run", "relay" if part == "web" else part]
            command = [*_TURNS, *words, *options]
            self.running[part] = subprocess.Popen(command, env=environ, cwd=self.folder, stdout=log, stderr=log)
        if part == "web":
            wait_for(lambda: fetch_status("127.0.0.1", self.port, "/healthz", seconds=10.0) == 200)

    def end(self, part: str) -> None:
        if process := self.running.pop(part, None):
            process.terminate()
            process.wait(120)

    def close(self) -> None:
        for part in list(self.running):
            self.end(part)
        self.broker.stop()

    @property
    def crashed(self) -> int:
        """Streams that a relay broke off because it could not go on."""
        return sum(line.get("event") == "relay.stream_crashed" for line in json_lines(self.folder / "web.log"))


def stage(long: bool) -> Seen:
    """Upgrade and go back; wrong is a chat that did not get its answer, or a stream that a relay could not read on."""
    known = [f"{commit}^{{commit}}" for commit in _LANDED]
    if any(subprocess.run(["git", "cat-file", "-e", each], cwd=_ROOT, check=False).returncode for each in known):
        pytest.skip("the history with the landed releases is not here")
    ways = [(_LANDED[-1], _HERE)]
    if long:
        ways = [(each, _HERE) for each in _LANDED]
    tried, broken, crashed, beside = 0, list[str](), 0, list[str]()
    with tempfile.TemporaryDirectory() as name:
        old_ones = {release for way in ways for release in way} - {_HERE}
        sources = {commit: _unpacked(commit, Path(name) / commit) for commit in old_ones} | {_HERE: _ROOT}
        for number, (old, new) in enumerate(ways):
            site = _Site(Path(name) / str(number), sources)
            try:
                found = asyncio.run(_there_and_back(site, old, new, 4 if long else 2))
                tried, broken, crashed = (
                    tried + len(found),
                    broken + [f"{old}: {each}" for each in found if each],
                    crashed + site.crashed,
                )
                if long:
                    site.put("web", old)
                    site.put("worker", new)
                    wrong_way = asyncio.run(_chats(site, "wrong way", 4))
                    beside.append(
                        f"workers first, {old} to {new}: {sum(map(bool, wrong_way))} of {len(wrong_way)} broken"
                    )
            finally:
                site.close()
    return Seen(
        tried, "chats while releases changed", len(broken) + crashed, "; ".join([*sorted(set(broken)), *beside])
    )


def _unpacked(commit: str, folder: Path) -> Path:
    packed = subprocess.run(
        ["git", "archive", commit, "api_client", "worker"], cwd=_ROOT, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


async def _there_and_back(site: _Site, old: str, new: str, lanes: int) -> list[str]:
    """Relay first, then the worker; back the other way round. What each chat got wrong, or empty."""
    for part in ("web", "worker"):
        site.put(part, old)
    found = await _chats(site, "before", lanes)
    for part, release in (("web", new), ("worker", new), ("worker", old), ("web", old)):
        meanwhile = asyncio.create_task(_chats(site, f"while {part} becomes {release}", lanes))
        await asyncio.to_thread(site.put, part, release)
        found += await meanwhile
        found += await _chats(site, f"{part} is {release}", lanes)
    return found


async def _chats(site: _Site, when: str, lanes: int) -> list[str]:
    return await asyncio.gather(*(_chat(site, f"lane {lane}", f"{when}, lane {lane}") for lane in range(lanes)))


async def _chat(site: _Site, conversation: str, when: str) -> str:
    """Ask once, and again by the same key while nobody is there to answer; why the answer is not right, or empty."""
    try:
        return await _asked(site, conversation, when)
    except TimeoutError:
        return f"{when}: no answer within {_SECONDS:g} s"


async def _asked(site: _Site, conversation: str, when: str) -> str:
    headers = {"Idempotency-Key": secrets.token_hex(8), "X-Conversation-ID": conversation}
    body = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": when}]}
    url = f"http://127.0.0.1:{site.port}/v1/chat/completions"
    async with asyncio.timeout(_SECONDS), httpx2.AsyncClient(timeout=60) as http:
        while True:
            try:
                async with http.stream("POST", url, json=body, headers=headers) as reply:
                    frames = [
                        line.removeprefix("data: ") async for line in reply.aiter_lines() if line.startswith("data: ")
                    ]
            except httpx2.HTTPError:
                frames = []
            if frames and frames[-1] == "[DONE]":
                told = [json.loads(frame) for frame in frames[:-1]]
                errors = [each["error"].get("code") for each in told if "error" in each]
                if errors != ["stream_lost"]:
                    return f"{when}: {errors or _differs(told)}" if errors or _differs(told) else ""
            await asyncio.sleep(0.1)


def _differs(told: Sequence[dict[str, Any]]) -> str:
    """The answer, where it is not the right one."""
    text = "".join(choice["delta"].get("content") or "" for each in told for choice in each.get("choices", ()))
    return "" if text.strip() == _ANSWER.strip() else repr(text[:80])
