"""``turns openwebui check`` against a real relay, a real worker, and what an Open WebUI sent."""

import json
from typing import Any

import httpx2

from tests.installation import Installation, RelayProcess, run


def check(relay: RelayProcess, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run(relay.settings, "openwebui", "check", "--url", relay.url, *arguments, "--json", "--timeout", "120")
    assert not done.stderr, done.stderr
    return done.returncode, {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_the_check_says_what_is_wrong_here_and_over_there(installation: Installation) -> None:
    installation.play('- attempts: [[{say: "Hallo. <!-- STEP: done -->"}]]\n', api_keys=("right",))
    installation.worker()
    relay = installation.relay()
    code, found = check(relay)
    assert (code, {name: finding["state"] for name, finding in found.items()}) == (
        0,
        {"address": "ok", "models": "ok", "background requests": "ok", "turn": "ok", "Open WebUI": "warning"},
    )
    assert "has not sent a request yet" in found["Open WebUI"]["message"]
    title = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "tools": [{}] * 36}
    headers = {"authorization": "Bearer right", "x-openwebui-chat-id": "c", "x-openwebui-user-id": "u"}
    httpx2.post(f"{relay.url}/v1/chat/completions", json=title, headers=headers, timeout=60)
    code, found = check(relay)
    assert (code, found["Open WebUI"]["state"], found["tools"]["state"]) == (1, "wrong", "warning")
    assert "X-Owui-Task" in found["Open WebUI"]["message"]
    code, found = check(relay, "--key", "wrong")
    assert (code, list(found)) == (1, ["address"])
    assert "401" in found["address"]["message"]
    assert "turns keys create" in found["address"]["fix"]
