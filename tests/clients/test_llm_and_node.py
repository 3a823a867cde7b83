"""The command llm, and OpenAI's own client for Node."""

from __future__ import annotations

import json
from pathlib import Path

from tests.clients.conftest import CLIENTS, needs, ran

LLM, NODE = CLIENTS / "llm" / "bin" / "llm", CLIENTS / "node"

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


@needs(LLM)
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


@needs(NODE / "node_modules" / "openai")
def test_openai_for_node_answers_streams_and_says_what_was_used(url: str, tmp_path: Path) -> None:
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
