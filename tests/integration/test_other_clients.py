"""Other OpenAI clients, as people install them, before a real relay and a real worker. ``make e2e-clients``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from tests.conftest import WorkerProcess
from tests.relay import RelayProcess

CLIENTS = Path(os.environ.get("CLIENTS", ".helix-tools/clients")).absolute()
LLM, NODE = CLIENTS / "llm" / "bin" / "llm", CLIENTS / "node"
pytestmark = pytest.mark.skipif(
    not os.environ.get("CLIENTS"), reason="run by `make e2e-clients`: it installs the clients"
)

SCRIPT = """
- when: two attempts
  attempts:
    - - usage: {input_tokens: 5, output_tokens: 3}
      - say: "The answer."
    - - usage: {input_tokens: 5, output_tokens: 3}
      - say: "<!-- STEP: why -->"
- when: never ends
  attempts:
    - - say: "Half"
      - cut
"""
NODE_SCRIPT = """
import OpenAI from 'openai';
const client = new OpenAI({baseURL: process.argv[2], apiKey: 'none', maxRetries: 0});
const messages = [{role: 'user', content: 'two attempts'}];
const whole = await client.chat.completions.create({model: 'helix', messages});
const said = {whole: whole.choices[0].message.content, used: whole.usage.total_tokens, streamed: ''};
const options = {stream: true, stream_options: {include_usage: true}};
for await (const chunk of await client.chat.completions.create({model: 'helix', messages, ...options})) {
  said.streamed += chunk.choices[0]?.delta?.content ?? '';
  said.streamed_used = chunk.usage?.total_tokens ?? said.streamed_used;
}
const response = await client.responses.create({model: 'helix', input: 'two attempts'});
said.response = response.output_text;
said.response_used = response.usage.total_tokens;
try {
  await client.chat.completions.create({model: 'helix', messages: [{role: 'user', content: 'never ends'}]});
} catch (error) {
  said.error = error.code;
}
console.log(JSON.stringify(said));
"""


@pytest.fixture
def url(settings: Settings, tmp_path: Path, worker_process: Callable[..., WorkerProcess]) -> Iterator[str]:
    """A relay's address with /v1, a worker behind it."""
    script = tmp_path / "script.yaml"
    script.write_text(SCRIPT)
    used = replace(settings, models={"helix": f"scripted:{script}"})
    worker_process(settings=used)
    relay = RelayProcess(used)
    relay.start()
    yield f"{relay.url}/v1"
    relay.kill()


def ran(*command: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "LLM_USER_PATH": str(home)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_llm_answers_streams_goes_on_and_says_what_was_used(url: str, tmp_path: Path) -> None:
    models = f'- {{model_id: helix, model_name: helix, api_base: "{url}", api_key_name: helix}}\n'
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    (tmp_path / "keys.json").write_text('{"helix": "none"}')
    whole = ran(LLM, "-m", "helix", "--no-stream", "-u", "two attempts", home=tmp_path)
    assert (whole.returncode, whole.stdout.strip()) == (0, "The answer."), whole.stderr
    assert "10 input, 6 output" in whole.stderr
    streamed = ran(LLM, "-m", "helix", "two attempts", home=tmp_path)
    assert (streamed.returncode, streamed.stdout.strip()) == (0, "The answer."), streamed.stderr
    went_on = ran(LLM, "-m", "helix", "-c", "two attempts, again", home=tmp_path)
    assert (went_on.returncode, went_on.stdout.strip()) == (0, "The answer."), went_on.stderr
    failed = ran(LLM, "-m", "helix", "--no-stream", "never ends", home=tmp_path)
    assert failed.returncode == 1
    assert "nicht zu Ende gebracht" in failed.stderr


def test_openai_for_node_answers_streams_and_says_what_was_used(url: str, tmp_path: Path) -> None:
    if not shutil.which("node") or not (NODE / "node_modules" / "openai").is_dir():
        pytest.skip("no node here, or openai could not be installed for it")
    (NODE / "client.mjs").write_text(NODE_SCRIPT)
    done = ran("node", NODE / "client.mjs", url, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "whole": "The answer.",
        "used": 16,
        "streamed": "The answer.",
        "streamed_used": 16,
        "response": "The answer.",
        "response_used": 16,
        "error": "incomplete",
    }
