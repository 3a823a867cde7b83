"""The runner for OpenAI-compatible services (vLLM, Ollama, LiteLLM, OpenAI)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from api_client.contract.completion import Verdict
from api_client.contract.settings import Settings
from worker.runners.agent_sessions import find_continued_session, keep_session
from worker.runners.base import Emit, Order, RunResult, config_error
from worker.runners.event_reader import EventReader, judge_transcript
from worker.runners.guidance import read_instructions
from worker.runners.http.images import attach_images
from worker.runners.observed_calls import check_observed_calls
from worker.runners.pricing import compute_usage
from worker.runners.sandbox.destinations import AllowedDestinations, Upstream
from worker.runners.sandbox.guard_client import FAST_PYTHON, SOURCE_ROOT
from worker.runners.sandbox.launch import OUR_CODE, Launch
from worker.runners.sandbox.process_runner import PreparedRun, ProcessRunner
from worker.runners.sandbox.resource_usage import ResourceLimits
from worker.runners.sandbox.supervision import RunEnding, explain_own_stop
from worker.runners.sent_input import SentInput

Message = dict[str, str]

#: Replaces the feedback before the interrupted answer; many services require alternating speakers.
_AGAIN = {"de": "Bitte korrigiere deine Antwort.", "en": "Please correct your answer."}
#: Suffix and largest size of a stored conversation.
_ENDING, _MAX_KEPT = ".json", 64 * 2**20


class OpenAiHttpRunner(ProcessRunner):
    """Runs agents by sending one request per run to the OpenAI-compatible service at ``HELIX_OPENAI_URL``."""

    name = "openai_http"
    reads_files = False

    def find_config_problem(self, option: str, settings: Settings) -> str:
        if not settings.openai_url:
            return "HELIX_OPENAI_URL is not set, nor url in the model's block of the settings file"
        return "" if option else "the service's model is not named: write model=openai_http:MODEL in HELIX_MODELS"

    def listed_name(self, option: str, settings: Settings) -> str:
        return option

    def prepare_run(self, order: Order) -> PreparedRun | RunResult:
        settings = self._settings.for_model(order.model)
        if problem := self.find_config_problem(order.option, settings):
            return config_error(problem)
        messages, said = build_messages(order), read_instructions(order, settings)
        transcript = EventReader()
        rules: list[Message] = [{"role": "system", "content": said}] if said else []
        asked = {
            "url": settings.openai_url,
            "key": settings.openai_api_key,
            "model": order.option,
            "messages": [*rules, *attach_images(messages, order.workdir)],
            "api": settings.api,
            "parameters": settings.parameters,
            "timeouts": settings.timeouts,
        }
        sent = SentInput(system=said, messages=messages)
        launch = Launch(
            argv=[*FAST_PYTHON, "worker.runners.http.agent"],
            env={"LANG": "C.UTF-8", "PYTHONPATH": SOURCE_ROOT},
            stdin=json.dumps(asked).encode(),
            binds=OUR_CODE,
            sandbox=settings.sandbox,
            bounds=ResourceLimits.from_settings(settings),
            outbound=_allowed_destinations(settings, order.option),
            proxy_stdin=lambda address: json.dumps({**asked, "url": address, "key": ""}).encode(),
        )

        def conclude(ending: RunEnding, _emit: Emit) -> RunResult:
            evidence = {**ending.evidence, **transcript.evidence}
            completion = explain_own_stop(ending, order, evidence) or judge_transcript(
                transcript, ending.exit.code, evidence
            )
            if completion.verdict is Verdict.COMPLETE:  # other ends already have the provider's words
                completion = check_observed_calls(completion, ending.observed_calls)
            session = ""
            if completion.verdict is Verdict.COMPLETE:
                said = [*messages, {"role": "assistant", "content": transcript.text}]
                session = keep_session(order, _ENDING, lambda: json.dumps(said).encode())
            usage = compute_usage(transcript.usage, ending.counted_tokens, settings.prices)
            return RunResult(completion=completion, text=transcript.text, usage=usage, agent_session=session, sent=sent)

        return PreparedRun(launch=launch, take_line=transcript.take_line, conclude=conclude)


def _allowed_destinations(settings: Settings, model: str) -> AllowedDestinations:
    ours = {b"authorization": f"Bearer {settings.openai_api_key}"} if settings.openai_api_key else {}
    paths = frozenset({"/responses" if settings.api == "responses" else "/chat/completions"})
    # Our agent sends only what the installation configures, so all content is allowed.
    upstream = Upstream(url=settings.openai_url, paths=paths, ours=ours, models=(model,), allows=("*",))
    return AllowedDestinations(upstream=upstream)


def build_messages(order: Order) -> list[Message]:
    """Return the chat messages of a run: the conversation, an earlier unfinished or rejected answer, and the prompt."""
    feedback: list[Message] = [{"role": "user", "content": order.prompt}]
    if order.so_far:
        feedback.insert(0, {"role": "assistant", "content": order.so_far})
    found = find_continued_session(order, _ENDING, _MAX_KEPT, _parse_messages, history=False)
    if found and (kept := found[2]):
        again = _AGAIN["de" if order.locale.lower().startswith("de") else "en"]
        between: list[Message] = [{"role": "user", "content": again}] if order.so_far else []
        return [*kept, *between, *feedback]
    messages = _convert_conversation(order.messages)
    asked = order.messages[-1].get("content") if order.messages else None
    if order.rejected and not order.so_far:
        feedback.insert(0, {"role": "assistant", "content": order.rejected})
    return messages if asked == order.prompt else [*messages, *feedback]


def _convert_conversation(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation without what services refuse: empty messages, results of tools, two users in a row.

    A tool's result, which lacks the call that it answers, becomes the user's message.
    """
    converted: list[Message] = []
    for message in messages:
        role, content = message.get("role", ""), message.get("content", "")
        if role == "tool" and content:
            role, content = "user", f"Tool: {content}"
        if content and role == "user" and converted and converted[-1]["role"] == role:
            converted[-1] = {"role": role, "content": f"{converted[-1]['content']}\n\n{content}"}
        elif content:
            converted.append({"role": role, "content": content})
    return converted


def _parse_messages(content: bytes) -> list[Message]:
    kept: Any = json.loads(content)
    return kept if isinstance(kept, list) else []
