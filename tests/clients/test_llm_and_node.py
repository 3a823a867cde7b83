"""The command llm, and OpenAI's own client for Node."""

import asyncio
import json
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from tests.clients.conftest import CLIENTS, IMAGE, agent_writes, is_accepted, needs, ran, selected, started
from tests.installation import RelayProcess
from worker.cli.installation.openwebui import draw_icon

LLM, NODE = CLIENTS / "llm" / "bin" / "llm", CLIENTS / "node"

NODE_SCRIPT = """
import OpenAI from 'openai';
const client = new OpenAI({baseURL: process.argv[2], apiKey: 'none', maxRetries: 0});
if (process.argv[4]) {
  const patient = new OpenAI({baseURL: process.argv[2], apiKey: 'none', maxRetries: 20});
  const held = {model: 'helix', messages: [{role: 'user', content: 'a held answer'}]};
  let told = '';
  try {
    if (process.argv[4] == 'stream') {
      for await (const chunk of await patient.chat.completions.create({...held, stream: true})) {
        told += chunk.choices[0]?.delta?.content ?? '';
      }
    } else told = (await patient.chat.completions.create(held)).choices[0].message.content;
  } catch (error) {
    told = `error: ${error.message}`;
  }
  console.log(told);
  process.exit(0);
}
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
const ask = (content, asker = client) =>
  asker.chat.completions.create({model: 'helix', messages: [{role: 'user', content}]});
said.draft = (await ask('two drafts')).choices[0].message.content;
const picture = [{type: 'text', text: 'What is this?'}, {type: 'image_url', image_url: {url: process.argv[3]}}];
for (const [name, content] of [['error', 'never ends'], ['image', picture]]) {
  try {
    await ask(content);
  } catch (error) {
    said[name] = error.code;
  }
}
const impatient = new OpenAI({baseURL: process.argv[2], apiKey: 'none', maxRetries: 20, timeout: 2000});
said.retried = (await ask('slow answer', impatient)).choices[0].message.content;
console.log(JSON.stringify(said));
"""


def set_up(home: Path, url: str) -> None:
    """The relay as a model of llm, as docs/clients.md says."""
    model = f'{{model_id: helix, model_name: helix, api_base: "{url}", api_key_name: helix, vision: true}}'
    (home / "extra-openai-models.yaml").write_text(f"- {model}\n")
    (home / "keys.json").write_text('{"helix": "none"}')


@needs(LLM)
def test_llm_answers_streams_goes_on_and_says_what_was_used(url: str, tmp_path: Path) -> None:
    set_up(tmp_path, url)
    picture = tmp_path / "ring.png"
    picture.write_bytes(draw_icon("a"))
    whole = ran(LLM, "-m", "helix", "--no-stream", "-u", "two attempts", home=tmp_path)
    assert (whole.returncode, whole.stdout.strip()) == (0, "The answer."), whole.stderr
    assert "10 input, 6 output" in whole.stderr
    streamed = ran(LLM, "-m", "helix", "two attempts", home=tmp_path)
    assert (streamed.returncode, streamed.stdout.strip()) == (0, "The answer."), streamed.stderr
    went_on = ran(LLM, "-m", "helix", "-c", "two attempts, again", home=tmp_path)
    assert (went_on.returncode, went_on.stdout.strip()) == (0, "The answer."), went_on.stderr
    retracted = ran(LLM, "-m", "helix", "two drafts", home=tmp_path)
    assert is_accepted(retracted.stdout), retracted.stderr
    image = ran(LLM, "-m", "helix", "-a", str(picture), "What is this?", home=tmp_path)
    assert image.returncode == 1
    assert "This model does not read images." in image.stderr
    failed = ran(LLM, "-m", "helix", "--no-stream", "never ends", home=tmp_path)
    assert failed.returncode == 1
    assert "The agent did not finish its answer" in failed.stderr


@needs(LLM)
@pytest.mark.parametrize("streams", ["--no-log", "--no-stream"])
def test_llm_says_that_its_relay_died_and_is_answered_when_asked_again(
    relay: RelayProcess, url: str, gate: Path, tmp_path: Path, streams: str
) -> None:
    set_up(tmp_path, url)
    asked = (LLM, "-m", "helix", streams, "a held answer")
    waits = started(*asked, home=tmp_path)
    asyncio.run(agent_writes(relay.settings))
    relay.kill()
    _, said = waits.communicate(timeout=240)
    assert waits.returncode == 1
    assert "Error: " in said
    relay.start()
    gate.touch()
    again = ran(*asked, home=tmp_path)
    assert (again.returncode, again.stdout.strip()) == (0, "Held no more."), again.stderr


def placed() -> Path:
    client = NODE / "client.mjs"
    client.write_text(NODE_SCRIPT)
    return client


@needs(NODE / "node_modules" / "openai")
def test_openai_for_node_answers_streams_joins_its_turn_again_and_says_what_was_used(
    url: str, relay_settings: Settings, tmp_path: Path
) -> None:
    done = ran("node", placed(), url, IMAGE, home=tmp_path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert is_accepted(seen.pop("draft"))
    assert seen == {
        "whole": "The answer.",
        "used": 16,
        "streamed": "The answer.",
        "streamed_used": 16,
        "response": "The answer.",
        "response_used": 16,
        "error": "incomplete",
        "image": "image_not_read",
        "retried": "The slow answer.",
    }
    made = asyncio.run(selected(relay_settings))
    assert len(made) == 6, "a request that is repeated after its time-out joins its turn, and a refused one makes none"


@needs(NODE / "node_modules" / "openai")
@pytest.mark.parametrize("form", ["whole", "stream"])
def test_openai_for_node_never_takes_a_part_for_the_whole_when_its_relay_died(
    relay: RelayProcess, url: str, gate: Path, tmp_path: Path, form: str
) -> None:
    waits = started("node", placed(), url, IMAGE, form, home=tmp_path)
    asyncio.run(agent_writes(relay.settings))
    relay.kill()
    relay.start()
    gate.touch()
    said, wrong = waits.communicate(timeout=240)
    assert said.startswith("error: ") if form == "stream" else said.strip() == "Held no more.", wrong
    assert len(asyncio.run(selected(relay.settings))) == 1, "its own retry joins the turn"
