"""The files that one chat message passes, by a traced turn of a real installation."""

from pathlib import Path

from tests.house.__main__ import check_out
from tests.house.trace import STAGES, main_path
from tests.unit.test_documents import FILES, NAMED, STEPS

#: What the walk in docs/ARCHITECTURE.md names of other turns: those of the Claude CLI.
OTHER_TURNS = {"worker/runners/claude/completion_gate.py"}
#: What the walk names for a lost message. It looks about every second, so by chance also while the traced turn runs.
BY_THE_CLOCK = {"worker/turns/leases/reaper.py"}


def test_a_traced_turn_names_the_files_from_the_route_to_the_record_and_back(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    passed = main_path(check_out("", tmp_path / "copy"), tmp_path / "run")
    files, background = passed.files, passed.idle
    assert {"api_client/web/routes/completions.py", "api_client/turns/submitter.py"} <= set(files)
    assert {"worker/enforcement/policy.py", "worker/runners/scripted/runner.py"} <= set(files)
    assert passed.scripts >= 3
    assert all(passed.functions[stage] and passed.lines[stage] for stage in STAGES), "each stage was seen"
    assert passed.lines["all"] < passed.bodies
    assert background
    assert set(background) < set(files) - {"api_client/web/routes/completions.py"}
    assert not any(name.startswith("worker/cli/") for name in files), "the command line is not on it"
    walked = {
        file
        for _, text in STEPS
        for name, _ in NAMED.findall(text)
        for file in FILES
        if f"/{file}".endswith(f"/{name}")
    }
    named = {file for file in walked if file.endswith(".py")}
    assert named >= BY_THE_CLOCK
    assert named - BY_THE_CLOCK - set(files) == OTHER_TURNS, "the walk is the real path"
