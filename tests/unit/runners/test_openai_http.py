"""The OpenAI-compatible runner against a real HTTP server: what counts as whole, errors, feedback, stopping."""

import asyncio
import json
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.image import format_data_url, read_image
from api_client.contract.messages import explain_break
from api_client.contract.settings import Settings
from tests.runs import Asked, Played
from tests.support import processes_with, wait_for
from worker.runners.base import AgentEvent, Order
from worker.runners.http.runner import OpenAiHttpRunner
from worker.runners.sandbox.bubblewrap import find_obstacle
from worker.runners.sandbox.guard_client import AgentProcesses

#: Marks are found on the whole machine: each run of these tests has its own.
RUN = f"turn-{secrets.token_hex(4)}"


def piece(text: str = "", finish: str | None = None) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


DONE = "data: [DONE]"
#: How services say that the model refused, or that their filter stopped it.
REFUSING = {
    "finish_reason content_filter": (piece("halb"), piece(finish="content_filter"), DONE),
    "I can't.": (
        'data: {"choices": [{"index": 0, "delta": {"refusal": "I can\'t."}}]}',
        piece(finish="stop"),
        DONE,
    ),
}
USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}'
GOOD = (piece("Guten "), piece("Tag"), piece(finish="stop"), USAGE, DONE)


@dataclass
class Service:
    """Answers every request with these lines; a line may also be a number of seconds to wait."""

    lines: tuple[str | float, ...] = GOOD
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    seen: list[dict[str, str]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            service.seen.append({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}})
            service.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(service.status)
            for name, value in service.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for line in service.lines:
                if isinstance(line, float):
                    service.over.wait(line)
                else:
                    self.wfile.write(line.encode() + b"\n\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    service.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield service
    service.over.set()
    server.shutdown()
    server.server_close()


Ask = Callable[..., Played]


@pytest.fixture
def ask(service: Service, agents: AgentProcesses, order: Callable[..., Order], tmp_path: Path) -> Ask:
    def run(
        *, stop: Asked | None = None, url: str | None = None, sandbox: str = "off", more: Any = None, **values: Any
    ) -> Played:
        address = service.url if url is None else url
        settings = Settings(
            root=tmp_path, openai_url=address, openai_api_key="sk-hidden", sandbox=sandbox, **(more or {})
        )
        events: list[AgentEvent] = []
        values = {"option": "qwen", "turn_id": f"{RUN}-{tmp_path.name}", **values}
        result = asyncio.run(
            OpenAiHttpRunner(agents, settings).run_async(order(**values), events.append, stop or Asked())
        )
        return Played(result, events)

    return run


def test_an_answer_that_stops_and_is_done_is_complete(ask: Ask, service: Service) -> None:
    ran = ask()
    assert (ran.verdict, ran.result.text) == ("complete", "Guten Tag")
    assert [event.text for event in ran.events] == ["Guten ", "Tag"]
    assert ran.result.usage == {"input_tokens": 5, "output_tokens": 2}
    assert service.requests[0]["messages"] == [{"role": "user", "content": "Hallo"}]
    assert (service.requests[0]["model"], service.requests[0]["stream"]) == ("qwen", True)
    assert service.seen[0]["path"] == "/v1/chat/completions"
    assert service.seen[0]["authorization"] == "Bearer sk-hidden"


def test_parameters_of_the_model_go_into_each_request(ask: Ask, service: Service) -> None:
    ask(more={"parameters": {"temperature": 0.2, "model": "not this"}})
    assert (service.requests[0]["temperature"], service.requests[0]["model"]) == (0.2, "qwen")


def event(kind: str, **said: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **said})}"


def ended(status: str, reason: str = "") -> str:
    details = {"incomplete_details": {"reason": reason}} if reason else {}
    response = {"status": status, "usage": {"input_tokens": 5, "output_tokens": 2}, **details}
    return event(f"response.{status}", response=response)


WORDS = (event("response.output_text.delta", delta="Guten "), event("response.output_text.delta", delta="Tag"))
FAILED = event("response.failed", response={"error": {"code": "rate_limit_exceeded", "message": "slow"}})


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ((*WORDS, ended("completed")), "complete"),
        ((*WORDS, "data: not JSON", ended("completed")), "incomplete"),
        (WORDS, "incomplete"),
        ((*WORDS, ended("incomplete", "max_output_tokens")), "incomplete"),
        ((*WORDS, ended("incomplete", "content_filter")), "refused"),
        ((event("response.refusal.delta", delta="No."), ended("completed")), "refused"),
        ((*WORDS, FAILED), "transient"),
    ],
    ids=["whole", "unreadable", "cut", "limit", "filter", "refusal", "failed"],
)
def test_the_responses_api_is_asked_and_read_for_what_it_says(
    ask: Ask, service: Service, lines: tuple[str, ...], verdict: str
) -> None:
    service.lines = lines
    ran = ask(more={"api": "responses"})
    kind = ran.result.completion.kind
    assert (kind.value if kind else ran.verdict) == verdict, ran.result.completion
    assert service.seen[0]["path"] == "/v1/responses"
    assert service.requests[0]["input"] == [{"role": "user", "content": "Hallo"}]
    if verdict == "complete":
        assert ran.result.text == "Guten Tag"
        assert ran.result.usage == {"input_tokens": 5, "output_tokens": 2}
    assert ran.result.completion.busy == (lines[-1] is FAILED)


def test_a_service_that_is_to_go_on_finds_its_text_in_the_conversation(ask: Ask, service: Service) -> None:
    ran = ask(prompt="Setze fort", so_far="Halber Te")
    user, so_far, prompt = service.requests[0]["messages"]
    assert user == {"role": "user", "content": "Hallo"}
    assert (so_far, prompt) == (
        {"role": "assistant", "content": "Halber Te"},
        {"role": "user", "content": "Setze fort"},
    )

    for request, (locale, words) in enumerate(
        [("de", "Bitte korrigiere deine"), ("en", "Please correct your")], start=1
    ):
        ask(
            prompt="Nun fort",
            so_far="Halber Te",
            agent_session=ran.result.agent_session,
            delivery=request + 1,
            locale=locale,
        )
        sent = service.requests[request]["messages"]
        roles = [message["role"] for message in sent]
        assert roles == ["user", "assistant", "user", "assistant", "user", "assistant", "user"]
        assert sent[4]["content"] == f"{words} {'answer' if locale == 'en' else 'Antwort'}."


def test_it_can_ask_from_a_box_too(ask: Ask) -> None:
    if problem := find_obstacle():
        pytest.skip(problem)
    ran = ask(sandbox="required")
    assert (ran.verdict, ran.result.text) == ("complete", "Guten Tag")
    assert ran.result.completion.evidence["sandbox"] == "bubblewrap"


@pytest.mark.parametrize(
    "lines",
    [
        (piece("halb"),),
        (piece("halb"), piece(finish="stop")),
        (piece("halb"), DONE),
        (piece("halb"), piece(finish="length"), DONE),
        (piece(""), piece(finish="stop"), DONE),
        (DONE,),
        (),
        ("<html>",),
    ],
)
def test_anything_less_is_incomplete(ask: Ask, service: Service, lines: tuple[str, ...]) -> None:
    service.lines = lines
    assert ask().verdict == "incomplete"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "permanent"), (401, "permanent"), (404, "permanent"), (429, "transient"), (500, "transient"),
     (503, "transient")],
)  # fmt: skip
def test_an_http_error_passes_or_lasts_by_its_status(ask: Ask, service: Service, status: int, kind: str) -> None:
    service.status, service.lines, service.headers = status, ("nicht jetzt",), {"retry-after": "7"}
    completion = ask().result.completion
    assert (completion.kind, completion.reason) == (kind, f"HTTP {status}: nicht jetzt")
    assert completion.retry_after == 7


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [("7.5", 7.5, 7.5), ("soon", 0, 0), ("-3", 0, 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0), ("{date}", 60, 90)],
)
def test_a_wait_is_asked_for_in_seconds_or_by_a_date(
    ask: Ask, service: Service, asked: str, least: float, most: float
) -> None:
    date = formatdate(time.time() + 90, usegmt=True)
    service.status, service.lines, service.headers = 503, ("voll",), {"retry-after": asked.format(date=date)}
    assert least <= ask().result.completion.retry_after <= most


@pytest.mark.parametrize(("status", "busy"), [(429, True), (529, True), (503, False), (400, False)])
def test_a_service_that_limits_us_is_told_apart(ask: Ask, service: Service, status: int, busy: bool) -> None:
    service.status, service.lines = status, ("nicht jetzt",)
    assert ask().result.completion.busy is busy


def test_an_account_without_money_is_no_limit_that_passes(ask: Ask, service: Service) -> None:
    service.status, service.lines = (
        429,
        ('{"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}',),
    )
    completion = ask().result.completion
    assert (completion.kind, completion.busy) == ("permanent", False)


def test_an_error_in_the_middle_passes(ask: Ask, service: Service) -> None:
    service.lines = (piece("halb"), 'data: {"error": {"message": "out of memory"}}')
    ran = ask()
    assert ran.result.completion.kind == "transient"
    assert "out of memory" in ran.reason


def test_a_service_that_is_not_there_passes(ask: Ask) -> None:
    assert ask(url="http://127.0.0.1:9/v1").result.completion.kind == "transient"


def test_lines_that_say_nothing_do_no_harm(ask: Ask, service: Service) -> None:
    service.lines = (
        ": comment",
        "event: x",
        "id: 3",
        "data: {}",
        'data: {"choices": [{}]}',
        'data: {"usage": 3}',
        *GOOD,
    )
    ran = ask()
    assert (ran.verdict, ran.result.text) == ("complete", "Guten Tag")


@pytest.mark.parametrize(
    "line",
    [
        "data: {",
        "data: 3",
        'data: {"choices": [{"delta": {"content": "wicht',
        'ata: {"choices": [{"delta": {"content": "wichtig"}}]}',
        'data: {"choices": [{"delta": {"content": {"a": 1}}}]}',
        'data: {"choices": [{"delta": "wichtig"}]}',
        "data: " + "[" * 99_999,
    ],
)
def test_a_line_that_cannot_be_read_may_have_been_a_piece_of_the_answer(ask: Ask, service: Service, line: str) -> None:
    service.lines = (piece("Guten "), line, piece("Tag"), piece(finish="stop"), DONE)
    ran = ask()
    assert (ran.verdict, ran.result.text) == ("incomplete", "Guten Tag")
    assert ran.result.completion.evidence["skipped_lines"] >= 1


@pytest.mark.parametrize(
    "lines",
    [
        ("\ufeff" + piece("Guten "), piece("Tag"), piece(finish="stop"), DONE),
        (piece("Guten "), piece("Tag"), 'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}', DONE),
        (piece("Guten "), piece("Tag"), 'data: {"choices": [{"delta": null, "finish_reason": "stop"}]}', DONE),
        (
            'data: {"choices": [{"delta":\ndata: {"content": "Guten "}}]}',
            'data: {"choices": [{"delta": {"content": [{"type": "thinking", "thinking": []},'
            ' {"type": "text", "text": "Tag"}]}}]}',
            piece(finish="stop"),
            DONE,
        ),
        (piece("Guten "), 'data: {"choices": [], "usage": {"prompt_tokens": null}}', piece("Tag", "stop"), DONE),
        (piece("Guten "), piece("Tag", "stop"), piece(finish="stop"), DONE, "danach"),
    ],
    ids=["bom", "no-delta", "null-delta", "two-lines-and-parts", "usage-in-between", "reason-twice"],
)
def test_a_whole_answer_counts_however_a_service_writes_it(ask: Ask, service: Service, lines: tuple[str, ...]) -> None:
    service.lines = lines
    ran = ask()
    assert (ran.verdict, ran.result.text) == ("complete", "Guten Tag")


def test_an_answer_that_was_cut_at_its_length_is_not_made_whole_by_a_later_stop(ask: Ask, service: Service) -> None:
    service.lines = (piece("halb", "length"), piece(finish="stop"), DONE)
    ran = ask()
    assert ran.verdict == "incomplete"
    assert [e.text for e in ran.events if e.kind == "note"] == ["the answer ended with finish_reason length, stop"]


def test_an_answer_in_one_large_piece_is_whole(ask: Ask, service: Service) -> None:
    service.lines = (piece("ä" * 2_000_000), piece(finish="stop"), DONE)
    ran = ask()
    assert (ran.verdict, len(ran.result.text)) == ("complete", 2_000_000)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, "permanent"), (429, "transient"), ("server_error", "transient"), ("insufficient_quota", "permanent")],
)
def test_an_error_in_the_middle_goes_by_its_number(ask: Ask, service: Service, code: object, kind: str) -> None:
    service.lines = (piece("halb"), "data: " + json.dumps({"error": {"message": "x", "code": code}}))
    completion = ask().result.completion
    assert (completion.kind, completion.busy) == (kind, code == 429)


def test_feedback_follows_the_answer_it_is_about(ask: Ask, service: Service) -> None:
    first = ask()
    ask(prompt="Marker fehlt", agent_session=first.result.agent_session, attempt=2, delivery=2)
    assert [message["content"] for message in service.requests[1]["messages"]] == ["Hallo", "Guten Tag", "Marker fehlt"]


def test_feedback_without_the_answer_follows_the_message(ask: Ask, service: Service) -> None:
    ask(prompt="Noch einmal", agent_session="00000000-0000-0000-0000-000000000000")
    ask(prompt="Noch einmal", rejected="Guten Tag", attempt=2, delivery=2)
    told = [[message["content"] for message in request["messages"]] for request in service.requests]
    assert told == [["Hallo", "Noch einmal"], ["Hallo", "Guten Tag", "Noch einmal"]]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_service_gets_no_message_that_services_refuse(ask: Ask, service: Service, api: str) -> None:
    """Another model's call of a tool is an empty message, and its result names no call; Stop leaves an empty one.

    Many services take no two messages of the same speaker in a row.
    """
    said = [("user", "Wie spät?"), ("assistant", ""), ("tool", "12:00"), ("assistant", "Zwölf."), ("user", "Danke")]
    messages = tuple({"role": role, "content": text} for role, text in said)
    ask(prompt="Danke", messages=messages, more={"api": api})
    sent = service.requests[0]["messages" if api == "chat" else "input"]
    told = [("user", "Wie spät?\n\nTool: 12:00"), ("assistant", "Zwölf."), ("user", "Danke")]
    assert [(each["role"], each["content"]) for each in sent] == told
    ask(prompt="Danke", messages=(*messages, {"role": "assistant", "content": ""}, messages[-1]), more={"api": api})
    sent = service.requests[1]["messages" if api == "chat" else "input"]
    assert [(each["role"], each["content"]) for each in sent] == [*told[:-1], ("user", "Danke\n\nDanke")]


def test_the_rules_of_the_session_come_first(ask: Ask, service: Service, tmp_path: Path) -> None:
    (tmp_path / "CLAUDE.md").write_text("Regeln")
    ask()
    assert service.requests[0]["messages"][0]["role"] == "system"
    assert service.requests[0]["messages"][0]["content"].startswith("Regeln")


def test_what_was_sent_is_what_the_service_heard(ask: Ask, service: Service, tmp_path: Path) -> None:
    (tmp_path / "CLAUDE.md").write_text("Regeln")
    first = ask()
    second = ask(prompt="Marker fehlt", agent_session=first.result.agent_session, attempt=2, delivery=2)
    for ran, heard in zip((first, second), service.requests, strict=True):
        assert ran.result.sent
        told = ran.result.sent.to_dict(str)
        system = {"role": "system", "content": told["system"]}
        assert [system, *told["messages"]] == heard["messages"]


def test_a_service_that_hangs_is_left_by_the_idle_watchdog(ask: Ask, service: Service) -> None:
    service.lines = (piece("halb"), 30.0)
    ran = ask(idle_seconds=2.5)
    assert (ran.verdict, ran.result.text) == ("incomplete", "halb")


@pytest.mark.parametrize(
    ("lines", "timeouts", "said"),
    [
        ((60.0,), {"first": 1.0}, "it sent nothing for 1 s"),
        (
            (": still there", 0.6, ": still there", 0.6, ": still there", 60.0),
            {"first": 1.0},
            "it sent nothing for 1 s",
        ),
        ((piece("Guten "), 60.0), {"first": 60.0, "next": 1.0}, "it sent nothing for 1 s"),
        ((piece("Guten "), 60.0), {"next": 1.0}, "it sent nothing for 1 s"),
    ],
    ids=["no event", "comments alone", "no further event", "only a further one is bounded"],
)
def test_a_service_that_says_nothing_for_the_time_of_its_model_has_failed(
    ask: Ask, service: Service, lines: tuple[str | float, ...], timeouts: dict[str, float], said: str
) -> None:
    service.lines = lines
    ran = ask(more={"timeouts": timeouts})
    completion = ran.result.completion
    assert (completion.kind, completion.fault) == ("transient", "overloaded")
    assert said in completion.reason
    assert ran.result.text == ("Guten " if piece("Guten ") in lines else "")


def test_a_slow_answer_has_the_time_for_each_of_its_events(ask: Ask, service: Service) -> None:
    service.lines = (0.7, *(part for piece in GOOD for part in (piece, 0.4)))
    assert ask(more={"timeouts": {"first": 60.0, "next": 30.0}}).verdict == "complete"


def test_a_cancelled_run_is_gone_at_once_and_its_key_was_never_seen(ask: Ask, service: Service, tmp_path: Path) -> None:
    service.lines = (piece("halb"), 90.0)
    stop, seen, asked = Asked(), [], []

    def cancel() -> None:
        found = wait_for(lambda: service.requests and processes_with(f"HELIX_AGENT_MARK={RUN}-{tmp_path.name}."))
        asked.append(time.monotonic())
        seen.extend(Path(f"/proc/{pid}/environ").read_text() + command for pid, command in found.items())
        stop.reason = "cancelled"

    threading.Thread(target=cancel).start()
    assert ask(stop=stop).verdict == "cancelled"
    assert time.monotonic() - asked[0] < 60
    assert seen
    assert "hidden" not in "".join(seen)
    assert processes_with(f"HELIX_AGENT_MARK={RUN}-{tmp_path.name}.") == {}


@pytest.mark.parametrize("values", [{"url": ""}, {"option": ""}])
def test_without_an_address_or_a_model_it_is_a_matter_of_set_up(ask: Ask, values: dict[str, str]) -> None:
    assert ask(**values).result.completion.kind == "config"


def test_a_service_sees_the_images_that_messages_name_and_feedback_holds_them_once(
    ask: Ask, service: Service, order: Callable[..., Order]
) -> None:
    image = read_image("data:image/png;base64," + b64encode(b"\x89PNG\r\n\x1a\n...").decode())
    folder = order().workdir / "input"
    folder.mkdir(parents=True)
    (folder / image.name).write_bytes(image.content)
    told = f"Was ist das? [Bild des Nutzers: {image.path}] und [Bild: input/image-{'0' * 16}.png], input/../secret.png"
    ran = ask(prompt=told, messages=({"role": "user", "content": told},))
    [seen] = service.requests[0]["messages"]
    assert seen["content"] == [
        {"type": "text", "text": told},
        {"type": "image_url", "image_url": {"url": format_data_url(image.name, image.content)}},
    ]
    ask(prompt="Noch einmal", agent_session=ran.result.agent_session, delivery=2)
    first, *rest = service.requests[1]["messages"]
    assert first == seen
    assert all(isinstance(message["content"], str) for message in rest)


def test_each_model_asks_the_service_of_its_block_with_its_own_key_and_is_charged_its_prices(
    service: Service, agents: AgentProcesses, order: Callable[..., Order], tmp_path: Path
) -> None:
    blocks = {
        "small": {"openai_url": service.url, "openai_api_key": "sk-small", "prices": {"input": 2.0, "output": 5.0}},
        "large": {"openai_url": f"{service.url}/large", "openai_api_key": "sk-large"},
    }
    settings = Settings(root=tmp_path, openai_url="http://127.0.0.1:9/v1", sandbox="off", model_settings=blocks)
    used = []
    for number, model in enumerate(blocks, 1):
        asked = order(option="qwen", model=model, turn_id=f"{RUN}-blocks-{number}")
        used.append(OpenAiHttpRunner(agents, settings).run(asked, lambda _: None, Asked()).usage)
    assert [(seen["path"], seen["authorization"]) for seen in service.seen] == [
        ("/v1/chat/completions", "Bearer sk-small"),
        ("/v1/large/chat/completions", "Bearer sk-large"),
    ]
    assert used[0]["cost_usd"] == (5 * 2.0 + 2 * 5.0) / 1e6
    assert "cost_usd" not in used[1]


@pytest.mark.parametrize("said", REFUSING)
def test_a_refusal_of_the_provider_is_a_verdict_of_its_own(ask: Ask, service: Service, said: str) -> None:
    service.lines = REFUSING[said]
    played = ask()
    assert (played.verdict, played.reason.partition(": ")[2]) == ("refused", said)


def test_a_question_that_the_service_s_filter_takes_as_a_bad_request_is_refused(ask: Ask, service: Service) -> None:
    service.status, service.lines = 400, ('{"error": {"code": "content_filter", "message": "filtered"}}',)
    assert ask().verdict == "refused"
    service.lines = ('{"error": {"code": "bad", "message": "no content filter was asked for"}}',)
    assert ask().verdict == "error"


#: An error in the stream or as the whole answer -> kind, whether the service is busy, its fault, and its wait.
DIALECTS: dict[str, tuple[dict[str, Any], tuple[str, bool, str | None, float]]] = {
    "LiteLLM 400": ({"message": "bad", "type": "None", "param": "None", "code": "400"}, ("permanent", False, None, 0)),
    "LiteLLM 429": ({"message": "try again in 20s", "code": "429"}, ("transient", True, "limit", 20)),
    "LiteLLM 422": ({"message": "no", "code": "422"}, ("permanent", False, None, 0)),
    "LiteLLM window": (
        {"message": "litellm.ContextWindowExceededError: too long", "code": "400"},
        ("permanent", False, "context_length", 0),
    ),
    "float": ({"message": "x", "code": 413.0}, ("permanent", False, "context_length", 0)),
    "Gemini": (
        {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "x", "details": [{"retryDelay": "36s"}]},
        ("transient", True, "limit", 36),
    ),
    "Anthropic": ({"type": "overloaded_error", "message": "Overloaded"}, ("transient", True, "overloaded", 0)),
    "word": ({"type": "invalid_request_error", "message": "no"}, ("permanent", False, None, 0)),
    "nested": ({"message": "x", "error": {"code": "404"}}, ("permanent", False, None, 0)),
    "metadata": ({"message": "x", "metadata": {"code": "503"}}, ("transient", False, "overloaded", 0)),
    "key": ({"message": "x", "code": "invalid_api_key"}, ("permanent", False, "auth", 0)),
    "no money": ({"message": "x", "code": "insufficient_quota"}, ("permanent", False, "limit", 0)),
    "credits": ({"message": "Insufficient credits. Add more.", "code": "402"}, ("permanent", False, "limit", 0)),
    "nothing": ({"message": "x"}, ("transient", False, "overloaded", 0)),
}


@pytest.mark.parametrize("over_http", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_means_the_same_in_the_stream_and_over_http_as_a_number_and_as_a_text(
    ask: Ask, service: Service, dialect: str, over_http: bool
) -> None:
    error, meant = DIALECTS[dialect]
    body = json.dumps({"error": error})
    service.lines = (body,) if over_http else (piece("halb"), f"data: {body}")
    service.status = 500 if over_http else 200
    if over_http and meant[0] == "transient":  # then the HTTP status says which
        service.status = 429 if meant[2] == "limit" else 529 if meant[1] else 503
    done = ask().result.completion
    assert (done.kind, done.busy, done.fault, done.retry_after) == meant
    assert done.out_of_credit is (meant[2] == "limit" and not meant[1])
    assert "{" not in done.reason


@pytest.mark.parametrize("word", ["stop", "STOP", "eos", "eos_token", "stop_sequence", "end_turn", "COMPLETE"])
def test_a_good_end_is_known_by_any_of_its_documented_words(ask: Ask, service: Service, word: str) -> None:
    service.lines = (piece("ganz"), piece(finish=word), DONE)
    assert ask().verdict == "complete"


@pytest.mark.parametrize(
    ("word", "shown"),
    [("tool_calls", "tool_calls"), ("", "missing"), (None, "missing"), ("length", "length"), ("odd", "odd"),
     ("MAX_TOKENS", "MAX_TOKENS"), ("stop_odd", "stop_odd"), ("abort", "abort"), ("x" * 999, "x" * 64)],
)  # fmt: skip
def test_another_end_is_told_by_its_word(ask: Ask, service: Service, word: str | None, shown: str) -> None:
    service.lines = (piece("halb"), piece(finish=word), DONE)
    played = ask()
    assert (played.verdict, played.reason) == ("incomplete", f"the answer ended with finish_reason {shown}")
    assert f"finish_reason {shown}" in explain_break("broke_off", "de", played.reason)
    assert f"finish_reason {shown}" in explain_break("broke_off", "en", played.reason)


@pytest.mark.parametrize("said", ["<html><head><title>x</title></head><h1>502 Bad Gateway</h1></html>", '{"a": [1]}'])
def test_people_read_neither_the_json_nor_the_html_of_a_service(ask: Ask, service: Service, said: str) -> None:
    service.status, service.lines = 502, (said,)
    reason = ask().reason
    assert not set("<{") & set(reason)
    assert explain_break("transient", "en", reason) == "The agent's service was temporarily not available."
