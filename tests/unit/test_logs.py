"""Log lines: ours and the libraries', in one form."""

import ast
import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

from api_client.api_keys import PREFIX
from api_client.contract.settings import Settings, load_settings
from api_client.contract.settings.redaction import make_redactor
from api_client.private_file import write_private
from worker.logs import build_plain_renderer, configure_logging

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream for the lines; the set-up of before is put back."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], _ = before
    root.setLevel(before[1])
    logging.captureWarnings(False)
    structlog.reset_defaults()


def json_settings(level: str = "info") -> Settings:
    return replace(load_settings({}), log_format="json", log_level=level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_our_events_and_the_libraries_come_in_one_form(stream: io.StringIO) -> None:
    configure_logging(json_settings(), stream)
    with structlog.contextvars.bound_contextvars(session_id="s1"):
        structlog.get_logger("worker.x").info("turn.started", turn_id="t1")
        logging.getLogger("uvicorn.error").info("Started %d", 7, extra={"color_message": "Started", "data": {}})
    ours, theirs = lines(stream)
    assert ours.pop("timestamp")
    assert ours == {
        "event": "turn.started",
        "turn_id": "t1",
        "session_id": "s1",
        "level": "info",
        "logger": "worker.x",
    }
    assert theirs.pop("timestamp")
    assert theirs == {"event": "Started 7", "session_id": "s1", "level": "info", "logger": "uvicorn.error"}


def test_an_exception_is_one_line_in_json(stream: io.StringIO) -> None:
    configure_logging(json_settings(), stream)
    try:
        raise ValueError("no")
    except ValueError:
        structlog.get_logger("x").exception("turn.crashed")
        logging.getLogger("celery").exception("Task raised")
    assert [line["event"] for line in lines(stream)] == ["turn.crashed", "Task raised"]
    assert all("ValueError" in json.dumps(line["exception"]) for line in lines(stream))


@pytest.mark.parametrize(
    "trouble", [ValueError("I/O operation on closed file"), OSError(28, "No space left on device")]
)
def test_a_line_that_cannot_be_written_hurts_nobody(
    trouble: Exception, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            tried.append(text)
            raise trouble

    monkeypatch.setattr(logging, "raiseExceptions", False)  # the standard library would print a traceback
    configure_logging(json_settings(), Broken())
    structlog.get_logger("worker").error("turn.broken")
    logging.getLogger("redis").error("a library's line")
    assert ["turn.broken" in tried[0], "a library's line" in tried[1]] == [True, True]


def test_less_severe_lines_are_left_out(stream: io.StringIO) -> None:
    configure_logging(json_settings("warning"), stream)
    for logger in (structlog.get_logger("x"), logging.getLogger("y")):
        logger.info("quiet")
        logger.warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud", "loud"]


def test_the_console_has_no_colours_when_nobody_watches(stream: io.StringIO) -> None:
    configure_logging(load_settings({}), stream)
    structlog.get_logger("x").info("turn.started", turn_id="t1")
    assert "turn.started" in stream.getvalue()
    assert "turn_id=t1" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20),
        st.one_of(
            st.text(max_size=40), st.none(), st.integers(), st.floats(), st.lists(st.text(max_size=5), max_size=3)
        ),
        max_size=5,
    ),
    st.sampled_from(["debug", "info", "warning", "error", "critical"]),
    st.text(max_size=45),
)
@example({"stack": "at line 1"}, "error", "with.stack")
@example(
    {"a": "two words", "b": "x=y", "c": "it's", "d": 'a "b"', "e": "one\ntwo", "f": "\t", "g": "\r"}, "info", "quoted"
)
@example({"exception": "ValueError: no"}, "error", "with.traceback")
@example({"logger_name": "other"}, "info", "of.two.loggers")
def test_a_plain_line_is_the_one_that_structlog_writes_without_colours(
    fields: dict[str, object], level: str, name: str
) -> None:
    console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    event = {**fields, "timestamp": "2026-11-22T22:49:11.849384Z", "level": level, "event": name, "logger": "worker.x"}
    assert build_plain_renderer(console)(None, level, dict(event)) == console(None, level, dict(event))


def test_setting_up_again_replaces_the_set_up_even_for_loggers_in_use(stream: io.StringIO) -> None:
    log = structlog.get_logger("x")
    configure_logging(json_settings(), stream)
    log.info("one")
    other = io.StringIO()
    configure_logging(json_settings(), other)
    log.info("two")
    assert [line["event"] for line in lines(stream) + lines(other)] == ["one", "two"]


def test_celery_leaves_our_set_up_alone() -> None:
    script = (
        "import logging, celery; from worker.logs import configure_logging\n"
        "from api_client.contract.settings import load_settings\n"
        "configure_logging(load_settings({'HELIX_LOG_FORMAT': 'json'}))\n"
        "app = celery.Celery('x', set_as_current=False); app.log.setup('INFO', redirect_stdouts=True)\n"
        "logging.getLogger('celery.worker').info('here'); print('out')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["here"]
    assert done.stdout == "out\n"


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_secret_of_the_settings_gets_into_a_line_whoever_says_it(stream: io.StringIO, log_format: str) -> None:
    password = 'päss"word/1'
    settings = load_settings(
        {
            "REDIS_URL": f"redis://relay:{quote(password, safe='')}@db:6379/0",
            "HELIX_API_KEYS": "key-of-a-team",
            "HELIX_LOG_FORMAT": log_format,
        }
    )
    configure_logging(settings, stream)
    structlog.get_logger("x").warning("store.away", address=settings.store_url, keys=["key-of-a-team"], own=password)
    logging.getLogger("kombu").error("Cannot connect to %s", settings.broker_url)
    logging.getLogger("other").error("with Authorization: Bearer abcdefghijkl0123456789")
    logging.getLogger("other").error("with %s", PREFIX + "kfj2" * 10)
    try:
        raise ConnectionError(f"refused: {settings.store_url} {password}")
    except ConnectionError:
        structlog.get_logger("x").exception("store.crashed")
    said = stream.getvalue()
    assert said.count("***") >= 6
    for secret in (password, "word/1", quote(password, safe=""), "key-of-a-team", "abcdefghijkl0123456789", "kfj2kfj2"):
        assert secret not in said, secret


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of a logger in our source, with its place."""
    for file in [*(ROOT / "api_client").rglob("*.py"), *(ROOT / "worker").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "logger"), attr=level)) if level in LEVELS:
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node


def test_every_event_has_a_static_name_of_a_thing_and_what_became_of_it() -> None:
    found = dict(calls())
    assert len(found) > 60
    for place, call in found.items():
        match call.args:
            case [ast.Constant(value=str(name))]:
                assert re.fullmatch(r"[a-z_]+\.[a-z_]+", name), f"{place}: {name}"
            case _:
                pytest.fail(f"{place}: {ast.unparse(call)}: the name must be a literal, and the only argument")


def test_no_line_carries_what_users_and_agents_wrote() -> None:
    for place, call in calls():
        fields = {keyword.arg for keyword in call.keywords}
        assert not fields & {"prompt", "message", "messages", "text", "answer", "response", "feedback"}, place


def test_the_standard_librarys_loggers_are_left_to_libraries() -> None:
    for file in [*(ROOT / "api_client").rglob("*.py"), *(ROOT / "worker").rglob("*.py")]:
        if file.name not in {"logs.py", "module_log.py"}:
            assert "logging.getLogger" not in file.read_text(), file


_LIBRARY = """
import logging, sys
import api_client.client
from api_client.store.module_log import ModuleLog
log = ModuleLog("api_client.turns.submitter")
log.info("turn.submitted", turn_id="t1"); log.error("store.away", error="gone")
print("silent")
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
log.info("turn.submitted", turn_id="t1", name="50 %s")
try:
    raise OSError("gone")
except OSError:
    log.exception("watcher.failed")
import structlog
structlog.configure(processors=[structlog.processors.JSONRenderer(sort_keys=True)])
log.info("turn.submitted", turn_id="t2")
"""


def test_a_program_that_imports_the_client_gets_its_lines_where_it_set_logging_up_and_nowhere_else() -> None:
    done = subprocess.run([sys.executable, "-c", _LIBRARY], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["silent", '{"event": "turn.submitted", "turn_id": "t2"}']
    first, failed, *_, last = done.stderr.splitlines()
    assert first == "api_client.turns.submitter INFO turn.submitted turn_id='t1' name='50 %s'"
    assert (failed, last) == ("api_client.turns.submitter ERROR watcher.failed", "OSError: gone")


def test_no_module_of_the_client_logs_past_it() -> None:
    package = ROOT / "api_client"
    for file in package.rglob("*.py"):
        inside = file.relative_to(package)
        if inside.parts[0] != "web" and file.name != "module_log.py":  # the relay is a program: it sets structlog up
            assert "structlog" not in file.read_text(), file


# Secrets in texts: what looks like a credential is masked, whatever else stands there.

_SECRET = "Ab1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uVwXyZ"


@pytest.mark.parametrize(
    "beginning", [f"{key}{sign}" for key in ("sk", "pk", "rk", "ghp", "gho", "xoxb", "xoxp") for sign in "-_"]
)
@pytest.mark.parametrize("before", ["", "key=", "ganz am Ende: "])
def test_a_key_is_masked_behind_its_beginning_in_a_text_without_any_other(beginning: str, before: str) -> None:
    assert make_redactor(Settings())(f"{before}{beginning}{_SECRET}") == f"{before}{beginning}***"


@pytest.mark.parametrize("word", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_a_bearer_token_is_masked_in_any_letter_case(word: str) -> None:
    assert make_redactor(Settings())(f"authorization: {word} {_SECRET}") == f"authorization: {word} ***"


def test_our_own_keys_and_logins_in_addresses_are_masked() -> None:
    redact = make_redactor(Settings())
    assert redact(f"helix-{_SECRET}") == "helix-***"
    assert redact("redis://user:hidden@db:6379") == "redis://user:***@db:6379"


@pytest.mark.parametrize(
    "text", ["", "turn_id=turn-8f3a", "risk-averse", "task_identifier", f"disk-{_SECRET}", "Bearer x"]
)
def test_ordinary_words_stay(text: str) -> None:
    assert make_redactor(Settings())(text) == text


# One way to write a private file: whole or not at all.


def test_a_private_file_is_replaced_whole_readable_by_its_user_alone_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_goes_where_a_link_leads_and_into_a_pipe_or_device_without_replacing_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("keys.json")
    write_private(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "keys.json").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_private(tmp_path / "pipe", b"piped")
    assert os.read(reader, 10) == b"piped"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_write_that_fails_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    path.write_text("old")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="cannot be written: No space left on device") as caught:
        write_private(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
