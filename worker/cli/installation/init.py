"""Implement ``turns init``: write the settings file of an installation, and try its agent once."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from api_client.client import TurnsClient
from api_client.contract.settings import STATE_DIR, Settings, load_settings
from api_client.contract.settings.file import FILE_NAME
from api_client.contract.turn import Outcome, Turn
from api_client.private_file import write_private
from worker.cli import NO
from worker.cli.checks.models import list_obstacles
from worker.cli.installation.relay_binding import CannotStartError, RelayBinding
from worker.cli.installation.up import lock_installation, plan_installation, require_usable_settings
from worker.cli.output import fit_line, json_option, strip_control, write_json
from worker.cli.turns.turn import build_request
from worker.logs import configure_logging
from worker.processes import own_programs
from worker.processes.supervisor import Supervisor

_TEMPLATES = Path(__file__).parents[1] / "new_installation"
_TEST_SECONDS = 300.0
_DOCTOR = "`turns doctor` looks for the cause"
#: Variables that win over what the new file says.
_STRONGER = ("HELIX_MODELS", "HELIX_POLICY", "HELIX_PROMPT_TEMPLATE")


class Agent(NamedTuple):
    """An agent that ``turns init`` offers, with its runner, the option before the model, and its requirements."""

    runner: str
    prefix: str = ""
    needs: tuple[str, ...] = ()
    key_variable: str = ""


AGENTS = {
    "scripted": Agent("scripted"),
    "claude": Agent("claude_cli", key_variable="HELIX_CLAUDE_API_KEY"),
    "openai": Agent("openai_http", needs=("model", "url"), key_variable="HELIX_OPENAI_API_KEY"),
    "codex": Agent("codex", needs=("model", "url"), key_variable="HELIX_OPENAI_API_KEY"),
    **{
        name: Agent("acp", f"{name}:", ("model", "url"), "HELIX_OPENAI_API_KEY")
        for name in ("opencode", "qwen", "kimi", "gemini")
    },
}
#: Preset of rules -> the message that tries the agent.
PRESETS = {
    "consultant": "Say hello in one sentence.",
    "chat": "Say hello in one sentence.",
    "json": 'Answer with the JSON object {"hello": "world"} and nothing else.',
    "adr": "Write a decision record of ten lines on keeping settings in a TOML file: Status, Context, Decision.",
    "adr-madr": "Write a decision record of ten lines in the MADR form, on keeping settings in a TOML file.",
}


@click.command(epilog="Example: turns init --agent claude --rules chat --root ~/project")
@click.option("--agent", type=click.Choice([*AGENTS]), help="Which agent answers; scripted needs no key.")
@click.option("--rules", "preset", type=click.Choice([*PRESETS]), help="Which rules an answer must pass at first.")
@click.option("--root", type=click.Path(file_okay=False, path_type=Path), help="Folder that the agents work in.")
@click.option("--openwebui/--no-openwebui", "webui", default=None, help="Whether Open WebUI is in front of it.")
@click.option("--model", default="", metavar="NAME", help="The agent's own model, such as opus.")
@click.option("--url", default="", help="Address of the model's service, such as https://api.openai.com/v1.")
@click.option(
    "--key-file", type=click.Path(exists=True, dir_okay=False, resolve_path=True), help="File with the API key."
)
@click.option("--no-test", is_flag=True, help="Do not try the agent.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@json_option
def init(
    agent: str | None,
    preset: str | None,
    root: Path | None,
    webui: bool | None,
    no_test: bool,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Write a small settings file (ROOT/.helix/helix.toml), test the agent with a message, and say what to do next.

    On a terminal, asks for missing options and before it replaces a file. Exit code 1 if the agent did not
    answer.
    """
    asking = sys.stdin.isatty() and not as_json
    if os.environ.get("HELIX_CONFIG"):
        raise click.UsageError("HELIX_CONFIG names another settings file: edit that one, or unset HELIX_CONFIG")
    agent = agent or _ask_choice(asking, "agent", [*AGENTS], "claude")
    preset = preset or _ask_choice(asking, "rules", [*PRESETS], "chat")
    here = Path(os.environ.get("HELIX_ROOT") or ".").expanduser().absolute()
    root = (root or (Path(click.prompt("Folder that the agents work in", str(here))) if asking else here)).expanduser()
    for need in AGENTS[agent].needs:
        if not given[need] and not (need == "url" and os.environ.get("HELIX_OPENAI_URL")):
            if not asking:
                raise click.UsageError(f"the agent {agent} needs --{need}")
            given[need] = click.prompt({"model": "The agent's model", "url": "Address of its service"}[need])
    webui = click.confirm("Is Open WebUI in front of it?") if webui is None and asking else bool(webui)
    files = render_files(agent, preset, **given)
    root = root.absolute()
    environ = {name: value for name, value in os.environ.items() if name not in _STRONGER}
    with tempfile.TemporaryDirectory() as trial:  # a file that cannot be used replaces none
        _write_files(Path(trial) / STATE_DIR, files, replacing=False, asking=False)
        load_settings({**environ, "HELIX_ROOT": trial})
    _write_files(root / STATE_DIR, files, replacing=force, asking=asking)
    written = [str(root / STATE_DIR / name) for name in files]
    if not as_json:
        click.echo("\n".join(f"wrote {path}" for path in written))
    for name in filter(os.environ.get, _STRONGER):
        click.echo(f"note: {name} is set in this shell, where it wins over the new file", err=True)
    settings = load_settings({**environ, "HELIX_ROOT": str(root)})
    test = {} if no_test else _try_agent(settings, PRESETS[preset], quiet=as_json)
    following = list_next_commands(root, webui=webui)
    if as_json:
        write_json({"files": written, "test": test or None, "next": following})
    else:
        click.echo("\n".join([*([test["said"]] if test else []), "", "Next:", *(f"  {line}" for line in following)]))
    if test.get("answered") is False:
        raise click.exceptions.Exit(NO)


def _ask_choice(asking: bool, option: str, choices: list[str], default: str) -> str:
    if not asking:
        raise click.UsageError(f"no terminal to ask on: give --{option} {'|'.join(choices)}")
    return str(click.prompt(option.capitalize(), default, type=click.Choice(choices)))


def render_files(
    agent: str, preset: str, *, model: str = "", url: str = "", key_file: str | None = None
) -> dict[str, str]:
    """Return the files of a new installation by name: helix.toml, after the policy file that it names."""
    from jinja2 import Environment

    runner, prefix, _, key_variable = AGENTS[agent]
    template = Environment(trim_blocks=True, keep_trailing_newline=True, autoescape=False).from_string(  # noqa: S701 - TOML
        (_TEMPLATES / "helix.toml.j2").read_text(encoding="utf-8")
    )
    values = {"preset": preset, "runner": runner, "model": prefix + model, "url": url, "key_file": key_file}
    name = "helix-consultant" if preset == "consultant" and agent == "claude" else agent
    toml = template.render(**values, name=name, key_variable=key_variable)
    policy = _TEMPLATES / f"{preset}.yaml"
    rules = {policy.name: policy.read_text(encoding="utf-8")} if policy.exists() else {}
    return {**rules, Path(FILE_NAME).name: toml}


def _write_files(folder: Path, files: dict[str, str], *, replacing: bool, asking: bool) -> None:
    """Write the files, with the settings file last because it names the others. Keep files with equal text."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    differing = [
        name
        for name in files
        if (folder / name).exists() and (folder / name).read_text(encoding="utf-8", errors="replace") != files[name]
    ]
    if differing and not replacing:
        said = f"{' and '.join(str(folder / name) for name in differing)}: exists already"
        if not asking:
            raise click.UsageError(f"{said}; --force replaces it")
        click.confirm(f"{said}. Replace it?", abort=True)
    for name, text in files.items():
        write_private(folder / name, text.encode())


def list_next_commands(root: Path, *, webui: bool) -> list[str]:
    """Return the shell commands to run after ``turns init``, such as ``turns up``."""
    elsewhere = root != Path(os.environ.get("HELIX_ROOT") or ".").expanduser().absolute()
    export = [f"export HELIX_ROOT={shlex.quote(str(root))}"] if elsewhere else []
    front = ["turns keys create webui --forwards-users", "turns openwebui print env --key KEY > open-webui.env"]
    return [*export, *(front if webui else []), "turns up"]


def _try_agent(settings: Settings, message: str, *, quiet: bool) -> dict[str, Any]:
    configure_logging(replace(settings, log_level="error"))
    if not quiet:
        click.echo("asking the agent once ...", err=True)
    if obstacles := list_obstacles(settings):
        return {"answered": False, "said": f"the agent was not asked: {obstacles[0]}; {_DOCTOR}"}
    require_usable_settings(settings)
    try:
        with lock_installation(state := own_programs.ensure_state_dir(settings)):
            (state / "logs").mkdir(exist_ok=True)
            turn, seconds = asyncio.run(_ask_once(settings, message, state / "logs"))
    except CannotStartError as error:
        return {"said": f"the agent was not asked: {error}"}
    except TimeoutError:
        return {"answered": False, "said": f"the agent did not answer within {_TEST_SECONDS:.0f} s; {_DOCTOR}"}
    took = f"{seconds:.1f} s"
    data = {"turn_id": turn.turn_id, "outcome": turn.outcome, "seconds": round(seconds, 1)}
    if turn.outcome and turn.outcome.success:
        return {**data, "answered": True, "said": f"the agent answered in {took}: {turn.outcome.value}"}
    if turn.outcome is Outcome.FAILED:
        issues = "; ".join(strip_control(issue.message) for issue in turn.error.issues) if turn.error else ""
        return {
            **data,
            "answered": True,
            "said": f"the agent answered in {took}; the rules did not accept it: {issues}",
        }
    reason = turn.error.reason or turn.error.message if turn.error else turn.state
    return {**data, "answered": False, "said": f"the agent did not answer: {fit_line(reason, 300)}; {_DOCTOR}"}


async def _ask_once(settings: Settings, message: str, logs: Path) -> tuple[Turn, float]:
    """Start a worker, and a broker if none is configured, and run one turn."""
    installation = plan_installation(settings, RelayBinding(port=0), processes=1)
    started = [program for program in installation.programs if program.name != "web"]
    begun = time.monotonic()
    with Supervisor(started, logs=logs):
        async with TurnsClient(installation.settings) as client, asyncio.timeout(_TEST_SECONDS):
            options: dict[str, Any] = defaultdict(lambda: None, max_attempts=1)
            request = build_request(installation.settings, message, options)
            turn_id = await client.submitter.submit(await client.complete_request(request, ["max_attempts"]))
            turn = await client.reader.await_result(turn_id)
    return turn, time.monotonic() - begun
