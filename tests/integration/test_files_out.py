"""Files of an answer on their way out: to their owner or a link's holder, never another file, and never alive."""

import asyncio
import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from api_client.contract.completion import Verdict
from api_client.contract.events import describe_end
from api_client.contract.owners import owner_of_key
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, Turn
from api_client.relay_state.signed_links import SignedLinks
from api_client.turns.turn_files import open_file
from api_client.web.app.relay_server import create_app
from api_client.web.bodies.models import StreamMode
from api_client.web.intake.turn_submission import SubmittedTurn
from api_client.web.openwebui.answer_additions import format_file_links, strip_additions
from api_client.web.openwebui.failure_text import format_failure
from api_client.web.relay.file_links import link_files
from api_client.web.streaming.chat_stream import stream_reply
from api_client.web.streaming.reply import Reply
from api_client.web.streaming.reply_forms import make_page_reply
from api_client.web.streaming.token_usage import TurnUsage
from api_client.web.streaming.turn_following import answer_whole
from tests.installation import web
from tests.integration.engine import GOOD, NO_MARKER, Bench, Play, ends, says
from tests.integration.test_content_guard import LACKING, MARKER, leaves
from tests.integration.test_pages import Browser, browser, read
from tests.unit.enforcement.samples import ADR
from tests.unit.web.openwebui import Reader
from worker.runners.base import Emit, Order, RunResult, Stop

__all__ = ["browser"]

KEYS = ("key-one", "key-two")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def makes(do: Callable[[Path], Any], said: str = GOOD) -> Play:
    """Does something in the output of its delivery and says something."""

    def run(order: Order, emit: Emit, stop: Stop) -> RunResult:
        do(order.directory / "output")
        return says(said)(order, emit, stop)

    return run


def writing(**files: bytes) -> Callable[[Path], None]:
    def do(output: Path) -> None:
        for name, content in files.items():
            (output / name.replace("_", ".")).write_bytes(content)

    return do


async def listed(http: httpx2.AsyncClient, turn: Turn) -> dict[str, dict[str, Any]]:
    answer = await http.get(f"/v1/turns/{turn.turn_id}/files")
    assert answer.status_code == 200, answer.text
    return {file["path"]: file for file in answer.json()["data"]}


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_what_an_answer_wrote_is_listed_and_sent_whole(bench: Bench, settings: Settings) -> None:
    def do(output: Path) -> None:
        (output / "data" / "raw").mkdir(parents=True)
        (output / "data" / "raw" / "größe & maß.csv").write_text("a;b\n")
        writing(chart_png=PNG, response_md=GOOD.encode())(output)
        (output / ".hidden").write_text("no")

    turn = await bench.outcome(makes(do))
    async with web(settings) as http:
        files = await listed(http, turn)
        shown = {path: (file["size"], file["type"]) for path, file in files.items()}
        assert shown == {"chart.png": (len(PNG), "image/png"), "data/raw/größe & maß.csv": (4, "text/csv")}
        assert (await http.get(f"/v1/turns/{turn.turn_id}/files/chart.png")).content == PNG
        answer = await http.get(files["data/raw/größe & maß.csv"]["link"])
        assert (answer.status_code, answer.text) == (200, "a;b\n")
        assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''gr%C3%B6%C3%9Fe")


async def test_a_turn_without_an_accepted_answer_has_no_files(bench: Bench, settings: Settings) -> None:
    failing = [makes(writing(chart_png=PNG), "Was willst du? <!-- STEP: nowhere -->")] * 3
    turn = await bench.outcome(*failing, policy={"step_marker": ("fail",)})
    assert turn.outcome is Outcome.FAILED
    async with web(settings) as http:
        assert await listed(http, turn) == {}
        assert code(await http.get(f"/v1/turns/{turn.turn_id}/files/chart.png")) == (404, "file_not_found")


async def test_a_file_stays_when_the_agent_was_asked_for_the_marker_alone(bench: Bench, settings: Settings) -> None:
    turn = await bench.outcome(makes(writing(chart_png=PNG), NO_MARKER), says(MARKER))
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    async with web(settings) as http:
        assert list(await listed(http, turn)) == ["chart.png"]


async def test_an_adr_is_sent_as_it_was_accepted_also_after_the_sessions_next_answer(
    bench: Bench, settings: Settings
) -> None:
    other = ADR.replace("Die Suche ist langsam.", "Anders.")
    turn = await bench.outcome(leaves(LACKING, f"Siehe Datei.\n\n{MARKER}"), leaves(other, f"Habe ich.\n\n{MARKER}"))
    await bench.outcome(leaves(other, f"Neu.\n\n{MARKER}"))
    async with web(settings) as http:
        answer = await http.get(f"/v1/turns/{turn.turn_id}/files/ADR-040.md")
        assert answer.text == ADR


async def test_only_the_owner_reads_a_file_and_nobody_by_anothers_link(bench: Bench, settings: Settings) -> None:
    owners = [owner_of_key(key) for key in KEYS]
    mine = await bench.outcome(makes(writing(a_txt=b"mine")), session_id="one", owner=owners[0])
    other = await bench.outcome(makes(writing(a_txt=b"other")), session_id="two", owner=owners[1])
    async with web(replace(settings, api_keys=KEYS), host="203.0.113.7") as http:
        one, two = ({"authorization": f"Bearer {key}"} for key in KEYS)
        assert (await http.get(f"/v1/turns/{mine.turn_id}/files/a.txt", headers=one)).text == "mine"
        for address in (f"/v1/turns/{mine.turn_id}/files", f"/v1/turns/{mine.turn_id}/files/a.txt"):
            assert code(await http.get(address, headers=two)) == (404, "turn_not_found")
            assert code(await http.get(address)) == (401, "invalid_api_key")
        found = (await http.get(f"/v1/turns/{mine.turn_id}/files", headers=one)).json()["data"]
        link = found[0]["link"]
        assert (await http.get(link)).text == "mine", "anyone who has the link"
        assert code(await http.get(link.replace(mine.turn_id, other.turn_id))) == (403, "link_invalid")
        assert code(await http.get(link.replace("a.txt", "b.txt"))) == (403, "link_invalid")
        assert code(await http.get(link.partition("?")[0])) == (403, "link_invalid")
        assert all(key not in link for key in KEYS)


async def test_a_link_expires_and_cannot_be_given_more_time(bench: Bench, settings: Settings) -> None:
    turn = await bench.outcome(makes(writing(a_txt=b"a")))
    links = SignedLinks(bench.client.store)
    past = int(time.time()) - 1
    signature = await links.sign_link("file", turn.turn_id, "a.txt", until=past)
    async with web(settings) as http:
        address = f"/files/{turn.turn_id}/a.txt"
        for until in (past, past + 3600, "", "x", "9" * 400, "²"):
            answer = await http.get(address, params={"until": until, "signature": signature})
            assert code(answer) == (403, "link_invalid")
        right = await links.sign_link("file", turn.turn_id, "a.txt", until=past + 3600)
        asked = {"until": past + 3600, "signature": right}
        assert (await http.get(address, params=asked)).text == "a"
        assert code(await http.get(address, params={**asked, "signature": right[:-1]})) == (403, "link_invalid")
        await links.sign_link("other", turn.turn_id, "a.txt", until=past + 3600)
        page = await http.get(address, params=asked | {"signature": "ä"}, headers={"accept": "text/html"})
        assert (page.status_code, page.headers["content-type"]) == (403, "text/html; charset=utf-8")


async def test_no_name_leads_out_of_the_folder(bench: Bench, settings: Settings) -> None:
    for name in ("secret.txt", "secret-2.txt"):
        (settings.root / name).write_text("secret")

    def do(output: Path) -> None:
        (output / "link.txt").symlink_to(settings.root / "secret-2.txt")
        (output / "folder").symlink_to(settings.root)
        os.link(settings.root / "secret.txt", output / "other-name.txt")
        os.mkfifo(output / "fifo.txt")
        (output / "fine.txt").write_text("fine")

    turn = await bench.outcome(makes(do))
    attempts = await bench.client.reader.read_attempts(turn.turn_id)
    wrong = ["link.txt", "folder/secret-2.txt", "other-name.txt", "fifo.txt", "folder", ".", "", "/etc/passwd"]
    wrong += ["../../../../../secret.txt", "..%2F..%2F..%2Fsecret.txt", "x/../fine.txt", "./fine.txt", "fine.txt/"]
    wrong += ["a\0b", "fine.txt\0", "..", "\udcff", "x" * 5000, "../output/fine.txt", "response.md"]
    async with web(settings) as http:
        assert list(await listed(http, turn)) == ["fine.txt"]
        for path in wrong:
            with pytest.raises(Exception, match="no such file"):
                open_file(settings, turn, attempts, path)
        for path in ("..%2f..%2fsecret.txt", "%2e%2e/%2e%2e/secret.txt", "link.txt", "folder%2fsecret.txt", "a%00b"):
            answer = await http.get(f"/v1/turns/{turn.turn_id}/files/{path}")
            assert answer.status_code == 404
            assert "secret" not in answer.text.replace("secret.txt", "")


@pytest.mark.parametrize("where", ["output", "delivery", "attempts"])
async def test_a_link_in_the_place_of_a_folder_above_leads_nowhere(
    bench: Bench, settings: Settings, tmp_path: Path, where: str
) -> None:
    turn = await bench.outcome(makes(writing(a_txt=b"a")))
    [output] = (settings.sessions_dir / "s" / "attempts").glob("*/output")
    swapped = {"output": output, "delivery": output.parent, "attempts": output.parents[1]}[where]
    moved = tmp_path / "moved"
    swapped.rename(moved)
    swapped.symlink_to(moved)
    async with web(settings) as http:
        assert await listed(http, turn) == {}
        assert code(await http.get(f"/v1/turns/{turn.turn_id}/files/a.txt")) == (404, "file_not_found")


@pytest.mark.parametrize("name", ["evil.svg", "evil.html", "evil.xhtml", "evil.xml", "evil.js", "evil.png.htm", "evil"])
async def test_a_page_that_an_agent_wrote_is_never_opened_here(bench: Bench, settings: Settings, name: str) -> None:
    turn = await bench.outcome(makes(lambda output: (output / name).write_bytes(SVG)))
    async with web(settings) as http:
        link = (await listed(http, turn))[name]["link"]
        for address in (link, f"/v1/turns/{turn.turn_id}/files/{name}"):
            headers = (await http.get(address)).headers
            assert headers["content-type"] == "application/octet-stream"
            assert headers["content-disposition"].startswith("attachment;")
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-security-policy"].startswith("sandbox;"), "without rights or an origin"


async def test_a_file_name_cannot_add_a_header_or_markup(bench: Bench, settings: Settings, browser: Browser) -> None:
    name = '"><script>x.txt'
    turn = await bench.outcome(makes(lambda output: (output / name).write_text("x")))
    page = await read(await browser(), f"/turns/{turn.turn_id}")
    [section] = page.all("section", **{"aria-labelledby": "files"})
    assert name in section.text
    async with web(settings) as http:
        answer = await http.get((await listed(http, turn))[name]["link"])
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''%22%3E%3Cscript%3Ex.txt"


async def test_a_file_of_a_gigabyte_is_sent_in_bounded_memory(bench: Bench, settings: Settings) -> None:
    size = 2**30

    def do(output: Path) -> None:
        with (output / "big.zip").open("wb") as file:
            file.truncate(size)
            file.seek(size - 4)
            file.write(b"last")

    turn = await bench.outcome(makes(do))
    async with web(settings) as http:
        link = (await listed(http, turn))["big.zip"]["link"]
    app = create_app(settings)
    sent, tail = 0, b""

    async def send(message: Any) -> None:
        nonlocal sent, tail
        assert len(message.get("body", b"")) <= 2**20
        sent, tail = sent + len(message.get("body", b"")), message.get("body", b"")[-4:] or tail

    async def receive() -> Any:
        await asyncio.Event().wait()  # the client sends nothing more, and stays

    path, _, query = link.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1:8765")],
        "client": ("127.0.0.1", 5000),
        "server": ("127.0.0.1", 8765),
        "scheme": "http",
        "http_version": "1.1",
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with app.router.lifespan_context(app):
        await app(scope, receive, send)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (sent, tail) == (size, b"last")
    assert grown < 64 * 1024, "kB: far less than the file"


@pytest.mark.parametrize(
    ("asked", "status", "body", "said"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=-99", 200, b"0123456789", None),
        ("bytes=0-99", 200, b"0123456789", None),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=a-b", 200, b"0123456789", None),
    ],
)
async def test_a_part_of_a_file_is_sent_where_one_is_asked_for(
    bench: Bench, settings: Settings, asked: str, status: int, body: bytes, said: str | None
) -> None:
    turn = await bench.outcome(makes(writing(a_txt=b"0123456789")))
    async with web(settings) as http:
        answer = await http.get(f"/v1/turns/{turn.turn_id}/files/a.txt", headers={"range": asked})
    assert (answer.status_code, answer.content, answer.headers.get("content-range")) == (status, body, said)
    assert answer.headers["content-length"] == str(len(body))


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=5-4", "bytes=-0"])
async def test_a_part_that_is_not_there_is_refused(bench: Bench, settings: Settings, asked: str) -> None:
    turn = await bench.outcome(makes(writing(a_txt=b"0123456789")))
    async with web(settings) as http:
        answer = await http.get(f"/v1/turns/{turn.turn_id}/files/a.txt", headers={"range": asked})
    assert code(answer) == (416, "range_not_satisfiable")


async def test_no_descriptor_is_left_open(bench: Bench, settings: Settings) -> None:
    turn = await bench.outcome(makes(writing(a_txt=b"a" * 10)))
    address = f"/v1/turns/{turn.turn_id}/files/a.txt"
    async with web(settings) as http:
        await http.get(address)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(20):
            await http.get(address)
            await http.head(address)
            await http.get(address, headers={"range": "bytes=50-"})
            await listed(http, turn)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


async def test_a_chat_gets_links_that_open_and_sends_them_back_unread(bench: Bench, settings: Settings) -> None:
    turn = await bench.outcome(makes(writing(chart_png=PNG, report_csv=b"a;b\n", evil_svg=SVG)))
    settings = replace(settings, public_url="https://turns.example.com")
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        added = format_file_links(await link_files(app.state.relay, turn.turn_id, None), settings.public_url)
    assert "![chart.png](https://turns.example.com/files/" in added
    assert "![evil.svg]" not in added
    assert "- [report.csv](https://turns.example.com/files/" in added
    for answer in (GOOD, "", "a\n", "- [x](y)"):
        assert strip_additions(answer + added) == answer
        assert strip_additions(f"{answer}{added}And more.") == f"{answer}And more."
    assert format_file_links([], settings.public_url) == ""


@pytest.mark.parametrize("mode", list(StreamMode))
@pytest.mark.parametrize("pages", ["https://turns.example.com", ""])
async def test_the_links_are_below_the_answer_on_every_kind_of_page(
    bench: Bench, settings: Settings, mode: StreamMode, pages: str
) -> None:
    turn = await bench.outcome(ends(Verdict.INCOMPLETE), makes(writing(chart_png=PNG)))
    app = create_app(replace(settings, public_url=pages, chat_note="yes" if pages else "no"))
    reply = Reply(
        turn_id=turn.turn_id,
        model="m",
        created=0,
        locale="de",
        from_open_webui=True,
        pages_url=pages,
        owner="local",
        has_page=True,
    )
    async with app.router.lifespan_context(app):
        frames = [
            each
            async for each in stream_reply(app.state.relay, make_page_reply(reply, mode), SubmittedTurn(turn.turn_id))
        ]
    sent = [json.loads(frame[6:]) for frame in b"".join(frames).split(b"\n\n") if frame.startswith(b"data: {")]
    page = Reader().read(sent)
    said = GOOD.partition("\n\n<!--")[0]
    assert page.text.startswith(said), "the draft was taken back"
    assert strip_additions(page.text) == said
    assert ("*Aufwand: 2 Durchläufe*\n" in page.text) is bool(pages), "a note, where it is set"
    assert ("![chart.png](https://turns.example.com/files/" in page.text) is bool(pages)
    assert not page.completed or page.completed == [page.text], "what is stored"


async def test_an_answer_that_does_not_stream_has_the_links_and_the_words_of_a_page_too(
    bench: Bench, settings: Settings
) -> None:
    good = await bench.outcome(makes(writing(chart_png=PNG)))
    bad = await bench.outcome(says(NO_MARKER), session_id="t", policy={"step_marker": ("fail",)})
    app = create_app(replace(settings, public_url="https://turns.example.com", chat_note="yes"))
    asking = Request({"type": "http"}, asyncio.Event().wait)  # nobody leaves
    page = {"model": "m", "created": 0, "locale": "de", "from_open_webui": True, "owner": "local", "has_page": True}
    said: list[str] = []

    def keep_text(turn: Turn, _used: TurnUsage) -> dict[str, Any] | None:
        said.append(reply.format_answer(turn.response, turn.markers))
        return {} if turn.success else None

    async with app.router.lifespan_context(app):
        for turn in (good, bad):
            reply = Reply(turn_id=turn.turn_id, pages_url="https://turns.example.com", **page)
            answer = await answer_whole(asking, app.state.relay, reply, keep_text, new=False)
    assert strip_additions(said[0]) == GOOD.partition("\n\n<!--")[0]
    assert "![chart.png](https://turns.example.com/files/" in said[0]
    assert "*Aufwand: 1 Durchlauf*\n" in said[0]
    words = json.loads(answer.body)["error"]["message"]
    assert words == format_failure(describe_end(bad), "de", bad.turn_id)
    assert "\n" not in words
