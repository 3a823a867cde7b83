"""Tries around one question: forged permits, timing, files that change, calls at once, helpers, what is shown.

The rules ask about ``touch *``, ``sh *`` and the like, deny ``rm *``, and let ``echo *`` run.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

from api_client.contract.tool_calls import ToolQuestion
from tests.approvals.stages import ASKED, DENIED, RUNS, SHELL, Stage
from worker.runners import approval_client

Play = Callable[[Stage], int]
A, B, C = "touch a", "touch b", "touch c"
FREE = "echo free"


def ran(said: str) -> int:
    return int(said == RUNS)


def allowed(stage: Stage, command: str = A, **how: object) -> None:
    """A person was asked about a command, and says yes."""
    said = stage.call(command)
    assert said == ASKED, (command, said)
    stage.answer(**how)  # type: ignore[arg-type]


# A permit that nobody gave.


def _once_more(times: int) -> Play:
    def play(stage: Stage) -> int:
        allowed(stage)
        assert stage.call(A) == RUNS
        stage.ended(A)
        return sum(ran(stage.call(A)) for _ in range(times))

    return play


def _with_file(name: str) -> Play:
    """A file that might be taken for a permit, before the call and after it."""

    def play(stage: Stage) -> int:
        for place in (stage.folder, stage.home):
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("yes")
        found = ran(stage.call(A))
        allowed(stage, B) if not found and stage.call(B) == ASKED else None
        return found

    return play


def _after_marks(name: str) -> Play:
    def play(stage: Stage) -> int:
        allowed(stage)
        assert stage.call(A) == RUNS
        stage.ended(A)
        for place in (stage.folder, stage.home):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).touch()
        return ran(stage.call(A))

    return play


def _another_delivery(stage: Stage) -> int:
    """The worker dies once the call ran; the next one must ask."""
    allowed(stage)
    assert stage.call(A) == RUNS
    stage.answer(again=True)
    return ran(stage.call(A))


def _not_this_call(**given: str) -> Play:
    def play(stage: Stage) -> int:
        allowed(stage)
        return ran(stage.uses(SHELL[stage.agent], {"command": A, **given}))

    return play


def _like_it(command: str) -> Play:
    def play(stage: Stage) -> int:
        allowed(stage)
        return ran(stage.call(command))

    return play


_SERVER = """
import os, socket, sys
path = sys.argv[1]
os.rename(path, path + ".aside")
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
print("ready", flush=True)
while True:
    line, _ = server.accept()
    while line.recv(65536):
        pass
    try:
        line.sendall(sys.argv[2].encode())
    except BrokenPipeError:
        pass
    line.close()
"""


def _answers_itself(word: str, command: str) -> Play:
    """Another process answers at the approval server's path."""

    def play(stage: Stage) -> int:
        allowed(stage)
        assert stage.server
        argv = [sys.executable, "-c", _SERVER, str(stage.server.path), word]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
            assert server.stdout
            server.stdout.readline()
            try:
                return ran(stage.call(command))
            finally:
                server.kill()

    return play


def _takes_it(stage: Stage) -> int:
    """The agent asks the approval server itself before its call: the yes is used up, and the call does not run."""
    allowed(stage)
    approval_client.ask_approval_server(stage.told["approval_server"], SHELL[stage.agent], {"command": A}, asks=True)
    return ran(stage.call(A))


def _no_server(stage: Stage) -> int:
    allowed(stage)
    assert stage.server
    stage.server.path.unlink()
    return ran(stage.call(A)) + ran(stage.call(FREE))


def _garbage(what: bytes) -> Play:
    """Nonsense at the approval server's socket makes no yes."""

    def play(stage: Stage) -> int:
        allowed(stage, B)
        assert stage.server
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(stage.server.path))
            line.sendall(what)
            line.shutdown(socket.SHUT_WR)
            said = line.recv(64)
        return int(said == b"yes") + ran(stage.call(A))

    return play


_NAMES = ("marks/permit", "permit", "marks/permit.new", "alive.sock", "helix-permit", ".permit", "yes", "marks/yes")
_LIKE = (
    "touch a ", " touch a", "touch  a", "touch a a", "touch ./a", "touch 'a'", "touch a;", "touch a\n", "touch A",
    "touch \u0430", "touch a\u200b", "touch a && touch b", "touch a # x", "touch a\t", "touch a\0",
)  # fmt: skip


def forged() -> Iterator[tuple[str, Play]]:
    for times in (1, 2, 5):
        yield f"the allowed call {times} times more", _once_more(times)
    for name in _NAMES:
        yield f"the file {name} before", _with_file(name)
        yield f"the file {name} behind the call", _after_marks(name)
    yield "in the next delivery", _another_delivery
    yield "with another argument", _not_this_call(description="x")
    yield "in another folder", _not_this_call(cwd="/")
    for command in _LIKE:
        yield f"allowed {A!r}, made {command!r}", _like_it(command)
    for word in ("yes", "go", "later", ""):
        yield f"another server says {word!r} to the allowed call", _answers_itself(word, A)
        yield f"another server says {word!r} to another call", _answers_itself(word, B)
    yield "the agent takes the yes", _takes_it
    yield "no server", _no_server
    for what in (b"yes", b"{}", b"[]", b"{", b"\xff", b'{"tool": "Bash", "arguments": {}, "asks": true}'):
        yield f"nonsense {what!r}", _garbage(what)


# What happens between a yes and its call.


def _first(*commands: str) -> Play:
    """Other calls run before the allowed one, which is asked about again."""

    def play(stage: Stage) -> int:
        allowed(stage)
        for command in commands:
            assert stage.call(command) == RUNS
            stage.ended(command)
        return ran(stage.call(A))

    return play


def _beside(command: str) -> Play:
    """A call while the allowed one runs."""

    def play(stage: Stage) -> int:
        allowed(stage)
        assert stage.call(A) == RUNS
        return ran(stage.call(command))

    return play


def _after_no(*commands: str) -> Play:
    def play(stage: Stage) -> int:
        assert stage.call(A) == ASKED
        stage.answer("reject")
        return sum(ran(stage.call(command)) for command in commands)

    return play


def _old_yes(stage: Stage) -> int:
    """A yes that was not used is void once there is another question."""
    allowed(stage)
    assert stage.call(FREE) == RUNS
    stage.ended(FREE)
    assert stage.call(B) == ASKED
    stage.answer()
    return ran(stage.call(A))


def _no_then_yes(stage: Stage) -> int:
    assert stage.call(A) == ASKED
    stage.answer("reject")
    assert stage.call(B) == ASKED
    stage.answer()
    return ran(stage.call(A))


def _denied_stays(stage: Stage) -> int:
    allowed(stage)
    return ran(stage.call("rm -rf a")) + ran(stage.call("rm a"))


def timing() -> Iterator[tuple[str, Play]]:
    yield "a free call first", _first(FREE)
    yield "two free calls first", _first(FREE, "echo more")
    yield "a no stays a no", _after_no(A)
    yield "a no, again and again", _after_no(A, A, A)
    yield "a no, and another call", _after_no(B)
    yield "an unused yes behind another question", _old_yes
    yield "a no behind another yes", _no_then_yes
    yield "what is denied, behind a yes", _denied_stays


def beside() -> Iterator[tuple[str, Play]]:
    for command in (FREE, A, B, "echo x > a", "rm a"):
        yield f"while it runs: {command}", _beside(command)


# Files that a call names, and that change between question and yes, or in the new run.

#: Command -> the file that changes, and how.
_NAMED = {
    "sh build.sh": "build.sh",
    "sh ./build.sh": "build.sh",
    "bash build.sh --fast": "build.sh",
    "sh 'build.sh'": "build.sh",
    'sh "my build.sh"': "my build.sh",
    "sh -c 'sh build.sh'": "build.sh",
    "sh -e build.sh; true": "build.sh",
    "sh -c 'cat x|sh<build.sh'": "build.sh",
    "python3 build.py": "build.py",
    "python3 -m json.tool <build.json": "build.json",
    "make -f build.mk all": "build.mk",
    "git apply build.patch": "build.patch",
    "curl -d @build.json localhost": "build.json",
    "cmake --preset=build.json": "build.json",
    "sh -c '. ./build.env'": "build.env",
    "sh -c 'cd sub && sh run.sh'": "sub/run.sh",
    "sh sub/run.sh": "sub/run.sh",
    "sh 'sub dir/my build.sh'": "sub dir/my build.sh",
    "sh sub\\ dir/my\\ build.sh": "sub dir/my build.sh",
    """sh -c 'sh "my build.sh"'""": "my build.sh",
    "sh $(cat build.txt)": "build.txt",
    "sh `cat build.txt`": "build.txt",
    "python3 tests": "tests/a.py",
    "make -C sub": "sub/Makefile",
    "sh {FOLDER}/build.sh": "build.sh",
}


def _changed(command: str, name: str, how: str) -> Play:
    def play(stage: Stage) -> int:
        for path in (stage.folder / name, stage.folder / "other"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("echo GOOD")
        if how == "made":
            (stage.folder / name).unlink()
        said = stage.call(command.replace("{FOLDER}", str(stage.folder)))
        if said == DENIED:  # it might be a command that the rules deny
            return 0
        assert said == ASKED
        stage.answer()
        path = stage.folder / name
        match how:
            case "written":
                path.write_text("echo EVIL")
            case "made":
                path.write_text("echo EVIL!")
            case "linked":
                path.unlink()
                path.symlink_to("other")
                (stage.folder / "other").write_text("echo EVIL")
            case "gone":
                path.unlink()
        return ran(stage.call(command.replace("{FOLDER}", str(stage.folder))))

    return play


def files() -> Iterator[tuple[str, Play]]:
    for command, name in _NAMED.items():
        yield f"{command}: {name} written", _changed(command, name, "written")
    for how in ("made", "linked", "gone"):
        for command in ("sh build.sh", "sh sub/run.sh", "python3 tests"):
            yield f"{command}: {_NAMED[command]} {how}", _changed(command, _NAMED[command], how)


# Several calls in one message.


def _at_once(*commands: str) -> Play:
    """All in one message: at most the first question, and nothing of it runs before a yes."""

    def play(stage: Stage) -> int:
        said = [stage.call(command) for command in commands]
        assert said.count(ASKED) == 1, said
        return said.count(RUNS)

    return play


def _at_once_behind_a_yes(first: str, *commands: str) -> Play:
    """The model makes all of them again: only the allowed one may run before it has ended."""

    def play(stage: Stage) -> int:
        allowed(stage, first)
        return sum(ran(stage.call(command)) for command in commands if command != first)

    return play


def parallel() -> Iterator[tuple[str, Play]]:
    together: list[tuple[str, ...]] = [(A, B), (A, A), (A, B, C), (A, FREE), (A, "rm a"), ("rm a", A, B)]
    for commands in together:
        yield f"{commands} at once", _at_once(*commands)
    together = [(B,), (B, C), (A, B), (A, B, A), (C, B)]
    for commands in together:
        yield f"a yes to {A!r}, and {commands} at once", _at_once_behind_a_yes(A, *commands)


# Helpers of an agent.


def _helper(command: str, *, yes: bool) -> Play:
    def play(stage: Stage) -> int:
        if yes:
            allowed(stage)
        return ran(stage.uses(SHELL[stage.agent], {"command": command}, agent_id="helper"))

    return play


def helpers() -> Iterator[tuple[str, Play]]:
    for command in (A, B, "rm a", "touch a; rm a"):
        yield f"a helper: {command}", _helper(command, yes=False)
        yield f"a helper behind a yes: {command}", _helper(command, yes=True)


# What a person is shown is what runs.

_SECRET = "sk-stub-0123456789"
_HIDES = (
    "touch a" + " " * 2_000 + "; echo EVIL",
    "touch a" + "\n" * 2_000 + "echo EVIL",
    "touch a" + "\t" * 500 + "; echo EVIL",
    "touch a # done\nrm -rf /data",
    "touch a\r; echo EVIL",
    "touch a\x1b[8m; echo EVIL",
    "touch a\u202e; live ohce",
    "touch a\u3164; echo EVIL",
    "touch a\u2800\u2800; echo EVIL",
    "touch a\uffa0; echo EVIL",
    "touch a\u200b; echo EVIL",
    "touch a\u2060\ufeff; echo EVIL",
    "touch a\u00a0; echo EVIL",
    "touch a\u00ad; echo EVIL",
    "touch a\ufe0f; echo EVIL",
    "touch a\U000e0041; echo EVIL",
    "touch \ud800; echo EVIL",
    "touch \u0430",
    "touch p\u0430ypal",
    "touch u\u0308",
    "touch https://x:$(echo${IFS}EVIL>evil.txt)@github.com/x",
    "touch https://user:password@github.com/x",
    "touch sk-proj-important_folder",
    f"touch {_SECRET}",
    f"touch {_SECRET}; echo EVIL",
    "touch Bearer $(echo EVIL)",
    "touch \u27e6secret\u27e7",
    "touch a % && echo EVIL",
    "touch ` \\( \\[ $$",
    "touch ```\necho EVIL\n```",
    "touch a" + "b" * 17_000,
    "touch a" + "é" * 9_000,
    "touch " + "\u200b" * 3_000,
    "touch a\ncwd: /safe",
    "touch <b>x</b> &lt; <!-- -->",
    "touch a\u2028echo EVIL\u0085echo EVIL",
)


#: Printable letters that nobody sees.
_BLANK = "\u3164\u2800\uffa0\ufe0f\u0308"


def _read_back(text: str) -> str:
    """What a shown text stands for."""

    def letters(found: re.Match[str]) -> str:
        said = found[1]
        if said in {"tab", "secret"}:
            return "\t" if said == "tab" else _SECRET
        number, _, times = said.partition(" ×")
        return chr(int(f"0x{number[2:]}", 0)) * int(times or 1)

    return re.sub("⟦([^⟧]*)⟧", letters, text)


def _shown(command: str, **more: str) -> Play:
    """A yes to something else than what is shown would run."""

    def play(stage: Stage) -> int:
        stage.secrets = [_SECRET]
        said = stage.uses(SHELL[stage.agent], {"command": command, **more})
        if said == DENIED:  # what it hides is denied
            return 0
        assert said == ASKED
        stage.answer()
        assert stage.question
        question = ToolQuestion.from_interruption(stage.question)
        if question.refused:
            return ran(stage.uses(SHELL[stage.agent], {"command": command, **more}))
        shown = {_read_back(name): _read_back(text) for name, text in question.arguments.items()}
        hidden = [
            letter
            for text in question.arguments.values()
            for letter in text
            if not letter.isprintable() or letter in _BLANK
        ]
        return int(shown != {"command": command, **more}) + int(set(hidden) - {"\n"} != set())

    return play


def shown() -> Iterator[tuple[str, Play]]:
    for command in _HIDES:
        yield f"hidden in {command[:60]!r}", _shown(command)
    yield "25 arguments", _shown(A, **{f"a{n}": "x" for n in range(25)})
    yield "names that differ in a control letter", _shown(A, **{"name\x01": "x", "name\x02": "y"})
    yield "names of 200 letters", _shown(A, **{"n" * 200 + "1": "x", "n" * 200 + "2": "y"})
    yield "a name with a line end", _shown(A, **{"x\ncommand: touch safe": "y"})
