"""README's own words work: the client's example after the step that makes keys."""

import re
import subprocess
import sys
from pathlib import Path

from tests.installation import Installation, environ_of

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_clients_example_works_after_the_key_step_with_the_key_it_says(
    installation: Installation, tmp_path: Path
) -> None:
    installation.play('- attempts: [[say: "Per Post. <!-- STEP: done -->"]]\n', validators=("step_marker",))
    relay = installation.relay()
    environment = environ_of(relay.settings)
    keys = {}
    for line in re.findall(r"^\$ turns (keys create [^#\n]*)", README, re.MULTILINE):
        words = line.split()
        command = [sys.executable, "-c", "from worker.cli import main; main()", *words]
        keys[words[2]] = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()
    assert list(keys) == ["webui", "me"]
    [example] = re.findall(r"```python\n(from openai .*?)```", README, re.DOTALL)
    example = example.replace("http://127.0.0.1:8765", relay.url).replace('"KEY"', repr(keys["me"]))
    installation.worker()
    ran = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=180, check=False)
    relay.kill()
    assert (ran.returncode, ran.stdout) == (0, "Per Post.\n"), ran.stderr
