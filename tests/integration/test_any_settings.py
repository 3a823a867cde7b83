"""Any allowed combination of settings takes turns, and ends them: each number at its least and at its most.

Every pair of values meets in some row, with every kind of budget, and in each row every kind of model is asked five
times with every kind of key: what one turn leaves behind may refuse the one after the next.
"""

import itertools
import json
import random
import re
from dataclasses import fields, replace

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.settings.load import load_settings
from tests.http_service import Asked, HttpService, Reply
from tests.installation import Installation, command, environ_of
from tests.integration.engine import GOOD

pytestmark = pytest.mark.long

#: What a row does not vary: ports, how many processes the machine has, and what bounds the processes of an agent.
_LEFT = re.compile("^claude_")
BUDGETS = ("", "all=1000000000", "all=0.000001", "owner:*=1000", "key:k0=0.5,all=9", "model:free=5", "model:dear=0.01")
KEYS = ("", "--per-minute 1", "--per-minute 1000000", "--at-once 1 --weight 100", "--at-once 1000000 --background")
#: How a submit may end that a limit refuses; anything else is a defect.
REFUSED = {"budget_exceeded", "rate_limited", "too_many_unfinished", "storage_full", "queue_full"}
MODELS = ("plain", "free", "dear")


def values() -> dict[str, tuple[str, ...]]:
    """The values of each setting that is a number: the least, and the most."""
    found: dict[str, tuple[str, ...]] = {}
    for field in fields(Settings):
        parse = field.metadata["parse"] if field.metadata["kind"] != "constant" else None
        if parse and not _LEFT.search(field.name):
            try:
                parse("x")
            except ValueError as said:
                if bounds := re.search(r"number from (\S+) to (\S+)", str(said)):
                    found[field.name] = (bounds[1], bounds[2])
    return found


def rows(choices: dict[str, tuple[str, ...]], rng: random.Random) -> list[dict[str, str]]:
    """Combinations in which each pair of values of two settings meets: of many random rows the one that adds most."""
    names = list(choices)
    missing = {
        (a, b, one, other)
        for a, b in itertools.combinations(names, 2)
        for one, other in itertools.product(choices[a], choices[b])
    }

    def pairs(row: dict[str, str]) -> set[tuple[str, str, str, str]]:
        return {(a, b, row[a], row[b]) for a, b in itertools.combinations(names, 2)}

    found = []
    while missing:
        tried = []
        for _ in range(200):
            a, b, one, other = rng.choice(sorted(missing))
            tried.append({name: rng.choice(choices[name]) for name in names} | {a: one, b: other})
        best = max(tried, key=lambda row: len(missing & pairs(row)))
        missing -= pairs(best)
        found.append(best)
    return found


def service(asked: Asked) -> Reply:
    """Answers, and reports what it used."""
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    ends = [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
    pieces = [{"choices": [{"index": 0, "delta": {"content": GOOD}, "finish_reason": None}]}, *ends]
    lines = [*(f"data: {json.dumps(each)}" for each in pieces), "data: [DONE]", ""]
    return Reply(200, "\n\n".join(lines).encode(), {"content-type": "text/event-stream"})


def settings_of(installation: Installation, row: dict[str, str], url: str) -> Settings:
    """The settings of a row, with a model that costs nothing, one whose price nobody knows, and one with a price."""
    used = installation.settings
    (used.root / "script.yaml").write_text(f"- attempts: [[say: {json.dumps(GOOD)}]]")
    blocks = [f'[model.plain]\nrunner = "scripted:{used.root}/script.yaml"']
    for name, more in (("free", ""), ("dear", "prices = { input = 1.0, output = 2.0 }")):
        blocks.append(f'[model.{name}]\nrunner = "openai_http:m"\nurl = "{url}/v1"\n{more}')
    folder = used.root / ".helix"
    folder.mkdir(exist_ok=True)
    (folder / "helix.toml").write_text("\n".join(blocks))
    kept = {name: value for name, value in environ_of(used).items() if name != "HELIX_MODELS"}
    return load_settings(kept | {f"HELIX_{name.upper()}": value for name, value in row.items()})


async def carry_out(plain: Settings, chosen: list[dict[str, str]]) -> tuple[int, int, list[str]]:
    """Carry turns out under each of these settings: how many were submitted, refused by a limit, and what is wrong."""
    tried, refused, wrong = 0, 0, list[str]()
    with HttpService(service) as upstream:
        for number, row in enumerate(chosen):
            root = plain.root / f"{number}"
            root.mkdir()
            installation = Installation(replace(plain, root=root, namespace=f"{plain.namespace}-{number}"))
            used = installation.settings = settings_of(installation, row, upstream.url)
            made = [command(used, "keys", "create", f"k{at}", *words.split()) for at, words in enumerate(KEYS)]
            assert all(each.returncode == 0 for each in made), made
            installation.worker()
            try:
                async with TurnsClient(used) as client, installation.web() as http:
                    for at in range(15):
                        tried += 1
                        model, secret = MODELS[at % 3], made[at % 5].stdout.strip()
                        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "session_id": f"s{at}"}
                        said = await http.post("/v1/turns", json=body, headers={"authorization": f"Bearer {secret}"})
                        if said.status_code == 202:
                            turn = await client.reader.await_result(said.json()["turn_id"], timeout=60)
                            wrong += [] if turn.outcome else [f"{row}: {turn.turn_id} does not end"]
                        elif (code := said.json()["error"]["code"]) in REFUSED:
                            refused += 1
                        else:
                            wrong.append(f"{row}: {said.status_code} {code} for {model}")
            finally:
                await installation.close()
    return tried, refused, wrong


async def test_any_allowed_settings_take_turns_and_end_them(settings: Settings) -> None:
    tried, refused, wrong = await carry_out(settings, rows(values() | {"budgets": BUDGETS}, random.Random(43)))
    assert not wrong, "\n".join(wrong)
    assert refused < tried / 2
