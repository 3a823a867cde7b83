"""Plain commands as agents: real processes, complete only where their declared rule says so."""

import signal
import textwrap
import zipfile
from pathlib import Path

import pytest

from api_client.contract.completion import Verdict
from tests.agents.running import Agent
from tests.runs import Asked
from worker.plugins.command.runner import parse_command
from worker.plugins.programs.declaration import DeclarationError
from worker.runners.base import AgentEvent, Order, ToolOrders
from worker.runners.sandbox.bubblewrap import PROXY_URL
from worker.runners.sandbox.guard_client import AgentProcesses

PLAIN = "complete: {exit_codes: [0]}"
LAST = "complete: {last_line: {type: result, ok: true}}\nanswer: {path: text, where: {type: say}}"


def declared(root: Path, agents: AgentProcesses, script: str, rules: str = PLAIN) -> Agent:
    """An agent that is a shell script, under these rules."""
    (root / "agent.sh").write_text(f"#!/bin/bash\n{script}\n")
    (root / "agent.sh").chmod(0o755)
    (root / "agent.yaml").write_text(f"program: {root}/agent.sh\n{textwrap.dedent(rules)}\n")
    return Agent(root=root, runner="command:agent.yaml", agents=agents)


def test_a_text_is_the_answer_with_its_empty_lines_and_comes_live(tmp_path: Path, agents: AgentProcesses) -> None:
    ran = declared(tmp_path, agents, r"printf 'one\n\n  two\n'").run()
    assert (ran.verdict, ran.result.text, ran.shown) == ("complete", "one\n\n  two", "one\n\n  two\n")


@pytest.mark.parametrize(
    ("script", "rules", "reason"),
    [
        ("echo half; exit 3", PLAIN, "the command ended with exit code 3; its rule takes 0"),
        ("echo half; exit 0", "complete: {exit_codes: [7]}", "the command ended with exit code 0; its rule takes 7"),
        ("echo half; kill -9 $$", PLAIN, "the command was killed by signal 9"),
        ("true", PLAIN, "the command finished but said nothing"),
        ("echo half", "complete: {marker: output/.ok}", "there is no output/.ok, which its rule takes"),
        ("ln -s /etc/hostname ok; echo x", "complete: {marker: ok}", "there is no ok, which its rule takes"),
        ("""echo '{"type": "say", "text": "half"}'""", LAST, "its last line is not the one that its rule takes"),
        ("""echo '{"type": "result", "ok": 1}'""", LAST, "its last line is not the one that its rule takes"),
        (
            """echo '{"type": "say", "text": "a"}'; echo '{"type": "result", "ok": true}'; echo bye""",
            LAST,
            "its last line is not the one that its rule takes",
        ),
        ("""echo '{"type": "result", "ok": true}'""", LAST, "the command finished but said nothing"),
    ],
)
def test_what_no_rule_declares_complete_is_incomplete(
    tmp_path: Path, agents: AgentProcesses, script: str, rules: str, reason: str
) -> None:
    ran = declared(tmp_path, agents, script, rules).run()
    assert (ran.verdict, ran.reason.startswith(reason)) == ("incomplete", True), ran.reason


def test_the_texts_of_json_lines_are_the_answer(tmp_path: Path, agents: AgentProcesses) -> None:
    script = """echo junk; for t in a b; do echo "{\\"type\\": \\"say\\", \\"text\\": \\"$t\\"}"; done
    echo '{"type": "think", "text": "no"}'; echo '{"type": "result", "ok": true, "more": 1}'"""
    ran = declared(tmp_path, agents, script, LAST).run()
    assert (ran.verdict, ran.result.text) == ("complete", "ab")


@pytest.mark.parametrize("way", ["stdin", "argument", "file"])
def test_the_prompt_arrives_every_way(tmp_path: Path, agents: AgentProcesses, way: str) -> None:
    script = {"stdin": "cat", "argument": 'echo "$1"', "file": 'cat "$1"'}[way]
    more = 'arguments: ["{prompt_file}"]\n' if way == "file" else ""
    ran = declared(tmp_path, agents, script, f"prompt: {way}\n{more}{PLAIN}").run("Wie geht's?\n\n$(id) `id`")
    assert ran.result.text.endswith("Wie geht's?\n\n$(id) `id`")


def test_a_prompt_that_names_the_address_of_the_model_proxy_arrives_as_it_is(
    tmp_path: Path, agents: AgentProcesses
) -> None:
    agent = declared(tmp_path, agents, "cat", f"environment: {{AT: '{{url}}'}}\n{PLAIN}")
    agent.settings = {"openai_url": "http://127.0.0.1:9/v1"}
    assert agent.run(f"What is {PROXY_URL}?").result.text.endswith(f"What is {PROXY_URL}?")


def test_the_answer_can_be_a_file(tmp_path: Path, agents: AgentProcesses) -> None:
    rules = f"{PLAIN}\nanswer: {{file: output/a.md}}"
    ran = declared(tmp_path, agents, "echo chatter; echo whole > output/a.md", rules).run()
    assert (ran.verdict, ran.result.text) == ("complete", "whole")


def test_a_response_file_is_the_answer_whatever_was_said(tmp_path: Path, agents: AgentProcesses) -> None:
    ran = declared(tmp_path, agents, "echo see file; echo whole > output/response.md").run()
    assert (ran.result.text, ran.shown) == ("whole", "whole")


def test_its_environment_is_made_from_scratch(
    tmp_path: Path, agents: AgentProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.setenv("GIVEN", "2")
    agent = declared(tmp_path, agents, "env", f"environment: {{WHO: '{{model}}'}}\n{PLAIN}")
    agent.runner, agent.settings = "command:agent.yaml:big", {"agent_env": ("GIVEN",)}
    said = agent.run().result.text.splitlines()
    assert "GIVEN=2" in said
    assert "WHO=big" in said
    assert not [line for line in said if line.startswith("SECRET")]


def test_its_state_is_kept_for_the_session_and_nothing_else_of_its_home(tmp_path: Path, agents: AgentProcesses) -> None:
    script = "cat ~/.a/log ~/.other 2>/dev/null; echo seen; mkdir -p ~/.a; echo $RANDOM | tee ~/.a/log > ~/.other"
    agent = declared(tmp_path, agents, f"{script}; ln -s /etc/passwd ~/.a/link", f"state: [.a]\n{PLAIN}")
    first = agent.run()
    second = agent.run("again", agent_session=first.result.agent_session)
    assert (first.result.text, second.result.text.splitlines()[1:]) == ("seen", ["seen"])
    assert second.result.sent is not None
    assert second.result.sent.continues == "message"


def test_a_state_that_is_a_link_leads_nowhere(tmp_path: Path, agents: AgentProcesses) -> None:
    ran = declared(tmp_path, agents, "echo x; ln -s /etc/apt ~/.a", f"state: [.a]\n{PLAIN}").run()
    kept = tmp_path / "projects/sessions/s/agent" / f"{ran.result.agent_session}.zip"
    assert zipfile.ZipFile(kept).namelist() == ["helix-notes.json"]


def test_a_run_that_broke_off_leaves_no_state(tmp_path: Path, agents: AgentProcesses) -> None:
    ran = declared(tmp_path, agents, "mkdir ~/.a; echo x > ~/.a/y; exit 1", f"state: [.a]\n{PLAIN}").run()
    assert (ran.result.agent_session, list((tmp_path / "projects/sessions/s/agent").iterdir())) == ("", [])


def test_a_command_that_is_silent_or_cancelled_is_ended(tmp_path: Path, agents: AgentProcesses) -> None:
    agent = declared(tmp_path, agents, "echo begun; sleep 600")
    assert agent.run(idle_seconds=0.5).reason == "the agent was silent for 0.5 s"
    stop = Asked()

    def cancel(event: AgentEvent, _order: Order) -> None:
        stop.reason = "cancelled"

    assert agent.run(when=cancel, stop=stop).verdict == "cancelled"


def test_a_command_that_may_only_read_is_refused(tmp_path: Path, agents: AgentProcesses) -> None:
    ran = declared(tmp_path, agents, "echo x").run(read_only=True)
    assert (ran.verdict, "kept from writing" in ran.reason) == ("config", True)


def test_a_command_runs_no_turn_whose_tool_calls_have_rules(tmp_path: Path, agents: AgentProcesses) -> None:
    ran = declared(tmp_path, agents, "echo x").run(tools=ToolOrders(rules=({"do": "deny"},), root=tmp_path))
    assert (ran.verdict, "policy's tools" in ran.reason) == ("config", True)


def test_a_declaration_that_is_wrong_says_where(tmp_path: Path, agents: AgentProcesses) -> None:
    text = """\
        program: x
        argument: [a]
        arguments: ["{modle}"]
        state: [../y]
        complete: {exit_codes: [], marker: /etc}
        answer: {where: {a: 1}}
        prompt: mail
        """
    with pytest.raises(DeclarationError) as found:
        parse_command(textwrap.dedent(text), "agent.yaml")
    lines = str(found.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "agent.yaml:2:1",
        "agent.yaml:3:13",
        "agent.yaml:4:9",
        "agent.yaml:5:24",
        "agent.yaml:5:36",
        "agent.yaml:6:9",
        "agent.yaml:7:9",
    ], lines
    assert "did you mean 'arguments'?" in lines[0]
    ran = declared(tmp_path, agents, "echo x", "complete: 5").run()
    assert (ran.verdict, ran.reason.startswith(f"{tmp_path}/agent.yaml:2:")) == ("config", True), ran.reason


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('environment: {"A=B": x}', "environment: 'A=B' cannot be the name of a variable"),
        ('environment: {"": x}', "environment: '' cannot be the name of a variable"),
        ('environment: {A: "x\\0"}', "environment.A: must hold no NUL character"),
        ('arguments: ["x\\0"]', "arguments[1]: must hold no NUL character"),
    ],
)
def test_what_no_program_can_be_started_with_is_refused_as_the_declaration_is_read(more: str, says: str) -> None:
    with pytest.raises(DeclarationError) as found:
        parse_command(f"program: x\ncomplete: {{}}\n{more}\n", "agent.yaml")
    assert says in str(found.value)


def test_a_file_that_a_declaration_writes_may_contain_nul() -> None:
    declared = parse_command('program: x\ncomplete: {}\nfiles: {a.bin: "x\\0"}\n', "agent.yaml")
    assert declared.program.files == {"a.bin": "x\0"}


def test_a_command_without_a_rule_is_refused() -> None:
    with pytest.raises(DeclarationError, match="needs 'complete'"):
        parse_command("program: x\n", "agent.yaml")


def test_a_missing_program_is_a_configuration_error(tmp_path: Path, agents: AgentProcesses) -> None:
    agent = declared(tmp_path, agents, "echo x")
    (tmp_path / "agent.sh").unlink()
    assert agent.run().verdict == "config"


def test_a_sigkill_that_others_sent_is_seen(tmp_path: Path, agents: AgentProcesses) -> None:
    ran = declared(tmp_path, agents, f"echo x; kill -{signal.SIGKILL.value} $$; sleep 5").run()
    assert ran.result.completion.killed_from_outside


def test_a_home_of_any_depth_costs_no_answer_and_goes(tmp_path: Path, agents: AgentProcesses) -> None:
    deep = "echo seen; cd; mkdir -p $(printf 'd/%.0s' {1..1500})"
    ran = declared(tmp_path, agents, deep).run()
    assert (ran.result.completion.verdict, ran.result.text) == (Verdict.COMPLETE, "seen")
    assert list(tmp_path.glob("projects/sessions/s/attempts/*/home")) == []
