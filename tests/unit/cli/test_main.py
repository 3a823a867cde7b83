"""The command line's frame: help, errors, exit codes, and what it imports."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.installation import turns
from worker.cli import cli, main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("HELIX_ROOT", str(tmp_path))


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 0
    assert out == run(capsys, "--help")[1]


def test_help_imports_none_of_the_heavy_libraries() -> None:
    script = (
        "import sys; sys.argv = ['turns', '--help']\n"
        "from worker.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print({'celery', 'redis', 'fastapi', 'rich', 'structlog', 'asyncio'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"


@pytest.mark.long
def test_each_command_loads_alone_in_a_fresh_process() -> None:
    script = (
        "import os, sys\n"
        "from worker.cli import main\n"
        "from worker.cli.commands import COMMANDS, find_plugin_commands\n"
        "for path in [*COMMANDS, *find_plugin_commands()]:\n"
        "    if not (child := os.fork()):\n"
        "        sys.argv = ['turns', *path.split(), '--help']\n"
        "        main()\n"
        "    if os.waitpid(child, 0)[1]:\n"
        "        print('broken:', path, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["submt"], "turns: no command 'submt'; did you mean 'submit'?"),
        (["list"], "turns: no command 'list'; did you mean 'turn list'?"),
        (["turn", "shwo"], "turns: no command 'turn shwo'; did you mean 'turn show'?"),
        (["xyzzy"], "turns: no command 'xyzzy'; see `turns --help`"),
        (["turn", "show"], "turns: Missing argument 'TURN_ID'. (see `turns turn show --help`)"),
        (
            ["turn", "show", "x", "--jsno"],
            "turns: No such option '--jsno'. Did you mean '--json'? (see `turns turn show --help`)",
        ),
        (
            ["stats", "retry-rate", "--since", "soon"],
            "turns: Invalid value for '--since': 'soon' is not a span of time",
        ),
        (["stats", "retry-rate", "--every", "week"], "turns: Invalid value for '--every': 'week' is not one of"),
        (["stats", "retry-rate", "--since", "0h"], "turns: Invalid value for '--since': '0h' is not a span of time"),
        (["stats", "retry-rate", "--since", "٣h"], "turns: Invalid value for '--since': '٣h' is not a span of time"),
        (["data", "audit", "--since", "3651d"], "turns: Invalid value for '--since': '3651d' is too long a span"),
        (["turn", "watch", "x", "--after", "-1"], "turns: Invalid value for '--after'"),
        (
            ["turn", "show", "x"],
            "turns: no broker: set REDIS_URL=redis://host:6379/0, or start one here with `turns up`",
        ),
        (["submit", "  "], "turns: the message is empty"),
        (["submit", "x", "--tool-server", "nope"], "turns: tool_servers: no server 'nope' for this request; there is:"),
        (["turn", "replay", f"turn-{'0' * 32}", "--message", ""], "turns: --message: the message is empty"),
        (["pause", "start"], "turns: Missing argument '{intake|model|queue|key|owner}'. Choose from: intake, model,"),
        (["openwebui", "print"], "turns: Missing argument '{env|docker|compose|models}'. Choose from: env, docker,"),
        (["policy", "new-rule", "import"], "turns: import is a keyword of Python"),
        (["policy", "replay", "--policy", "p.yaml", "--show", "-1"], "turns: Invalid value for '--show': -1 is not"),
        (["submit", "\udcff"], "turns: argument 2 is not UTF-8 text: '\\udcff'"),
        (["validate", "/dev/zero"], "turns: /dev/zero is longer than 64 MiB"),
        (["validate", "x.md", "--root", "/nope"], "turns: Invalid value for '--root': Directory '/nope' does not"),
        (["inbox", "edit", "x", "--text", sys.executable], f"turns: {sys.executable} is not UTF-8 text (byte "),
    ],
)
def test_wrong_use_is_one_line_on_stderr_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(says)
    assert err.count("\n") == 1


def test_every_wrong_setting_is_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_LOCALE", "fr")
    monkeypatch.setenv("HELIX_MAX_ATTEMPT", "1")
    monkeypatch.setenv("HELIX_LEASE_SECONDS", "soon")
    code, _, err = run(capsys, "config")
    assert code == 2
    assert err.splitlines() == [
        "turns: HELIX_MAX_ATTEMPT: no such setting; did you mean 'HELIX_MAX_ATTEMPTS'? [invalid_settings]",
        "turns: HELIX_LOCALE='fr': must be one of de, en [invalid_settings]",
        "turns: HELIX_LEASE_SECONDS='soon': must be a number from 0.5 to 600 [invalid_settings]",
    ]


def test_a_store_that_does_not_answer_is_told_within_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REDIS_URL", f"unix://{tmp_path}/nobody.sock")
    code, _, err = run(capsys, "turn", "show", "turn-" + "0" * 32)
    assert code == 2
    assert err.startswith("turns: the store does not answer")
    assert "`turns doctor` says more" in err


def test_an_address_that_cannot_be_listened_on_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REDIS_URL", f"unix://{tmp_path}/nobody.sock")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, out, err = run(capsys, "run", "relay", "--port", port)
    assert (code, out) == (2, "")
    assert err.startswith(f"turns: cannot listen on 127.0.0.1:{port} (Address already in use); --port names another")
    code, _, err = run(capsys, "run", "relay", "--host", "no such host")
    assert (code, err.count("\n")) == (2, 1)
    assert "--host must be an address of this machine" in err


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        turns("turn", "explain"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, EOFError, click.Abort])
def test_ctrl_c_is_quiet_and_has_its_own_exit_code(
    error: type[BaseException], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Abort is what click raises at a question."""

    def interrupted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "invoke", interrupted)
    assert run(capsys, "config") == (130, "", "\n")  # behind the ^C a terminal shows


def test_a_terminal_that_cannot_show_a_letter_gets_a_question_mark() -> None:
    environ = {"PYTHONIOENCODING": "latin-1:strict", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(turns("grün日"), env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, "turns: no command 'grün?'; see `turns --help`\n".encode("latin-1"))


def test_a_narrow_terminal_is_no_error() -> None:
    done = subprocess.run(turns("submit", "--help"), env={"COLUMNS": "20"}, capture_output=True, check=True)
    assert b"Usage: turns" in done.stdout


def test_files_of_ours_are_read_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "HELIX_ROOT": str(tmp_path)}
    environ["REDIS_URL"] = f"unix://{tmp_path}/nobody.sock"
    done = subprocess.run(turns("turn", "list"), env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("turns: the store does not answer")) == (2, True), done.stderr
