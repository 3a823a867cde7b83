"""The holes of an append-only file: found only where a full disk leaves them, and cut out so that nothing is lost."""

import os
from pathlib import Path

import pytest

from worker.processes import append_only_file
from worker.processes.append_only_file import remove_holes, repair_files


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


SET, LONG, EMPTY = command(b"SET", b"a", b"1"), command(b"SET", b"b", b"x" * 5000), command(b"SET", b"c", b"")
ZEROS = b"\0" * 17
#: A text that looks like a hole between two commands.
TRAP = command(b"SET", b"d", SET + ZEROS + SET)
HOLES = {
    "between two": [SET, ZEROS, SET],
    "before the first": [ZEROS, SET],
    "one zero": [LONG, b"\0", SET],
    "longer than a page": [SET, b"\0" * 9000, LONG],
    "several": [SET, ZEROS, SET, b"\0", EMPTY, ZEROS, SET],
    "beside a text that looks like one": [TRAP, ZEROS, TRAP],
    "and then the file ends in mid command": [SET, ZEROS, SET, LONG[:-9]],
    "and all behind it is the head of a command": [SET, ZEROS, b"*3\r"],
    "and the last text is cut off before its end of line": [SET, ZEROS, LONG[:-1]],
}
WHOLE = {
    "nothing": [],
    "commands": [SET, LONG, EMPTY],
    "a text that looks like a hole": [TRAP, SET],
    "a text of zeros": [command(b"SET", b"a", ZEROS), command(b"SET", b"a", b"\r\n" + ZEROS + b"*")],
    "zeros at the end": [SET, ZEROS],
    "zeros within a command": [SET[:9], ZEROS, SET[9:], SET],
    "zeros before what is none": [SET, ZEROS, b"SET a 1\r\n"],
    "zeros before a damaged command": [SET, ZEROS, SET.replace(b"$3", b"$4"), SET],
    "zeros before a star that begins none": [SET, ZEROS, b"*x" + SET],
    "a damaged command before it": [SET.replace(b"$3", b"$4"), ZEROS, SET],
    "zeros behind a command without its end": [SET[:-2], ZEROS, SET],
    "a cut command": [SET, LONG[:-9]],
}


@pytest.mark.parametrize("name", HOLES)
def test_zeros_between_two_commands_are_cut_out(name: str) -> None:
    assert remove_holes(b"".join(HOLES[name])) == b"".join(piece for piece in HOLES[name] if piece.strip(b"\0"))


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_else_is_taken_for_a_hole(name: str) -> None:
    assert remove_holes(b"".join(WHOLE[name])) == b"".join(WHOLE[name])


def damaged(directory: Path) -> Path:
    (directory / "appendonlydir").mkdir()
    (directory / "appendonlydir" / "a.1.incr.aof").write_bytes(SET + LONG)
    file = directory / "appendonlydir" / "a.2.incr.aof"
    file.write_bytes(b"".join(HOLES["several"]))
    return file


@pytest.mark.parametrize("stops_at", ["open", "link", "replace", ""])
def test_a_repair_may_stop_anywhere_and_is_done_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: str
) -> None:
    file = damaged(tmp_path)
    before = file.read_bytes()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        for owner, name in ((os, "fsync"), (os, "link"), (Path, "replace")):
            if stops_at == {"fsync": "open"}.get(name, name):
                patched.setattr(owner, name, stop)
        if stops_at:
            with pytest.raises(KeyboardInterrupt):
                repair_files(tmp_path)
            assert file.read_bytes() == before
    for _ in range(2):
        repair_files(tmp_path)
        assert file.read_bytes() == before.replace(b"\0", b"")
    assert (tmp_path / "appendonlydir" / "a.1.incr.aof").read_bytes() == SET + LONG
    kept = list(tmp_path.glob("a.2.incr.aof.*"))
    assert {each.read_bytes() for each in kept} == {before}, "the file of before is kept"


def test_a_start_says_that_a_hole_cannot_be_cut_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SystemExit, match=r"a hole cannot be cut out: .*No space left.*Make room"):
        append_only_file.main(str(tmp_path), ["/bin/false", "--unixsocket", "x"])
