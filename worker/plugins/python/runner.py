"""Runs the user's own Python agent, a function such as ``my_package.agents:consultant``, in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from api_client.contract.settings import Settings
from worker.plugins.programs.declaration import AgentProgram, DeclarationError
from worker.plugins.programs.runner import ChildEventReader, ProgramRun, ProgramRunner, find_program
from worker.runners.event_reader import json_object
from worker.runners.sandbox.bubblewrap import SandboxMount
from worker.runners.sandbox.launch import OUR_CODE, build_environment

_CHILD = Path(__file__).with_name("agent.py")
#: Time limit for importing the agent, in seconds.
_TO_IMPORT = 60.0
#: Variables that clients of OpenAI-compatible services read.
_SERVICE = {"OPENAI_BASE_URL": "{url}", "OPENAI_API_KEY": "{key}"}


class PythonRunner(ProgramRunner):
    """Runs a Python function as an agent. Settings name it as ``MODULE:FUNCTION`` or ``MODULE:FUNCTION:MODEL``."""

    name = "python"
    needs_sandbox = False
    can_only_read = False
    needs_observed_call = False
    needs_every_call = True
    remembers = False  # a function begins anew, whatever it keeps in its state

    def __init__(self, module: str = "", **given: Any) -> None:
        super().__init__(**given)
        self._module = module

    def load_program(self, option: str, settings: Settings) -> AgentProgram:
        """Return the Python interpreter that has the agent's packages, as the program to run."""
        if not self._split_option(option)[1]:
            raise DeclarationError("name the agent's function: my_package.agents:consultant")
        service = _SERVICE if settings.openai_url else {}
        return AgentProgram(program=sys.executable, environment=service, state=("state",))

    def try_agent(self, option: str, settings: Settings) -> str:
        """Import the agent function in a separate process. Return the error text, or an empty string."""
        module, function, _ = self._split_option(option)
        asked = json.dumps({"module": module, "function": function, "root": str(settings.root)})
        try:
            with tempfile.TemporaryDirectory() as home:
                done = subprocess.run(
                    [find_program(self.load_program(option, settings), settings), "-P", str(_CHILD), "--check"],
                    input=asked.encode(),
                    env=build_environment(Path(home), settings.agent_env),
                    capture_output=True,
                    timeout=_TO_IMPORT,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            return f"{module} cannot be imported: it took longer than {_TO_IMPORT:g} s"
        except OSError as error:
            return f"{module} cannot be imported: {error}"
        said = json_object(done.stdout) or {"text": f"{module} cannot be imported: it ended its process"}
        return str(said.get("text", ""))

    def requested_model(self, option: str) -> str:
        return self._split_option(option)[2]

    def create_reader(self, run: ProgramRun) -> ChildEventReader:
        return ChildEventReader()

    def build_command(self, run: ProgramRun) -> tuple[Sequence[str], Sequence[SandboxMount]]:
        python = Path(run.path)
        folders = dict.fromkeys((python.parent.parent, python.resolve().parent.parent, _CHILD))
        return [run.path, "-P", "-u", str(_CHILD)], [*OUR_CODE, *(SandboxMount(path) for path in folders)]

    def build_input(self, run: ProgramRun) -> bytes:
        """Return the function's name and its input for the agent process, as JSON."""
        module, function, model = self._split_option(run.order.option)
        state = run.home / "state"
        state.mkdir(exist_ok=True)
        given = {"module": module, "function": function, "root": str(run.settings.root)}
        return json.dumps({**given, "context": _build_context(run, model, state)}).encode()

    def _split_option(self, option: str) -> tuple[str, str, str]:
        """Split an option ``MODULE:FUNCTION:MODEL`` into its three parts.

        A runner for a fixed module expects ``FUNCTION:MODEL``.
        """
        names = [*([self._module] if self._module else []), *option.split(":"), "", ""]
        return names[0], names[1], names[2]


def _build_context(run: ProgramRun, model: str, state: Path) -> Mapping[str, Any]:
    order = run.order
    asked = order.messages[-1].get("content", "") if order.messages else order.prompt
    return {
        "prompt": order.prompt,
        "messages": order.messages,
        "feedback": order.prompt != asked,
        "answer_so_far": order.so_far,
        "model": model,
        "language": "de" if order.locale.lower().startswith("de") else "en",
        "turn_id": order.turn_id,
        "session_id": order.session_id,
        "attempt": order.attempt,
        "directory": str(order.directory),
        "state": str(state),
        "instructions": run.instructions,
    }
