"""One answer everywhere, but for its own marker: relay streamed or not, both APIs, /v1/turns and response.md."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.integration.test_up import Up
from tests.support import wait_for
from worker.files.session import digest_conversation

CODE = "Beispiel:\n\n    <!-- STEP: what -->\n\n> Zitat <!-- STEP: why -->\n\nEnde"
#: The body of an answer; behind it stands its own marker.
BODIES = {
    "code": CODE,
    "middle": "Erst so.\n<!-- STEP: what -->\nDann so.",
    "spaces": "Text  \n\n\tmit\r\nResten  ",
    "fence": "```md\n<!-- STEP: what -->\n```",
}
OWN = "\n\n<!-- STEP: done -->\n"


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    root = tmp_path_factory.mktemp("root")
    script = [
        {"when": f"[{name}]", "attempts": [[{"say": {"text": body + OWN, "pieces": 7}}]]}
        for name, body in BODIES.items()
    ]
    (root / "script.yaml").write_text(json.dumps(script))
    started = Up(root, HELIX_MODELS="scripted=scripted:script.yaml")
    yield started
    started.end()
    wait_for(lambda: not started.processes())


def chat(name: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": f"[{name}]"}], **more}


def response_md(installation: Up, session: str) -> str:
    folder = Path(installation.root) / "projects" / "sessions" / session
    return (folder / "output" / "response.md").read_bytes().decode()


@pytest.mark.parametrize("name", BODIES)
def test_all_ways_to_the_answer_say_the_same(installation: Up, name: str) -> None:
    answer = BODIES[name].replace("\r\n", "\n")  # a normaliser's edit
    body = answer.rstrip()  # blanks before the own marker belong to it
    url = installation.told["web_url"]
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client,
        httpx2.Client(base_url=url, timeout=60) as web,
    ):
        whole = client.chat.completions.with_raw_response.create(**chat(name))
        assert whole.parse().choices[0].message.content == body
        for mode in ("validated", "draft"):
            chunks = client.chat.completions.create(**chat(name), stream=True, extra_body={"stream_mode": mode})
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == body
        assert client.responses.create(model="scripted", input=f"[{name}]").output_text == body
        with client.responses.stream(model="scripted", input=f"[{name}]") as events:
            assert events.get_final_response().output_text == body

        turn = web.get(f"/v1/turns/{whole.headers['x-turn-id']}").json()
        assert turn["response"] == answer + OWN
        assert turn["step"] == "done"
        assert response_md(installation, turn["session_id"]) == turn["response"]


@pytest.mark.parametrize(
    ("name", "drawn"), [("code", CODE), ("middle", "Erst so.\nDann so."), ("fence", BODIES["fence"])]
)
def test_a_page_of_open_webui_draws_no_marker_but_those_in_code_and_goes_on_in_its_session(
    installation: Up, name: str, drawn: str
) -> None:
    page = {"X-OpenWebUI-Chat-Id": f"chat-{name}", "X-Owui-Message-Id": "m"}
    with httpx2.Client(base_url=installation.told["web_url"], timeout=60) as web:
        first = web.post("/v1/chat/completions", json=chat(name), headers=page)
        assert first.json()["choices"][0]["message"]["content"] == drawn
        frames = web.post(
            "/v1/chat/completions", json=chat(name, stream=True), headers=page | {"X-Owui-Message-Id": "n"}
        )
        done = [json.loads(line[6:]) for line in frames.text.splitlines() if line.startswith("data: {")]
        (whole,) = [frame for frame in done if frame.get("type") == "response.completed"]
        assert whole["response"]["output"][0]["content"][0]["text"] == drawn
        # The page sends back what it drew; the worker knows that as the answer it gave.
        session = web.get(f"/v1/turns/{frames.headers['x-turn-id']}").json()["session_id"]
    status = json.loads((installation.root / "projects" / "sessions" / session / "status.json").read_text())
    messages = [*chat(name)["messages"], {"role": "assistant", "content": drawn}]
    assert status["conversation"] == digest_conversation(messages)
