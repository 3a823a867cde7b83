"""Nothing that is stored, logged or shown has a credential, though its server tells it wherever it can."""

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from api_client.contract.turn import Outcome
from tests.installation import Installation, run
from tests.ports import answers_on, free_port
from tests.support import wait_for
from tests.tools.running import HERE, PYTHON, block, call, equip, told
from tests.tools.stored_secrets import CANARY, find_holders, store_secret

TELLING = HERE / "telling_server.py"


async def test_what_is_stored_logged_or_shown_has_no_credential(installation: Installation, tmp_path: Path) -> None:
    root, port = installation.settings.root, free_port()
    variable, header = f"{CANARY}-variable", f"{CANARY}-header"
    store_secret(installation, "told", {"environment": {"TOLD": variable}})
    store_secret(installation, "web", {"headers": {"Authorization": f"Bearer {header}"}}, owner="local")
    other = subprocess.Popen([PYTHON, TELLING, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        equip(
            installation,
            block("own", command=[PYTHON, str(TELLING)], credentials="told", writes="allow"),
            block("web", url=f"http://127.0.0.1:{port}/mcp", credentials="web", writes="allow"),
            log_level="debug",
        )
        wait_for(lambda: answers_on(port))
        installation.worker()
        calls = [(f"{server}__{tool}", {}) for server in ("own", "web") for tool in ("tell", "fail")]
        turn_id = await call(installation, *calls, owner="local")
        turn = await installation.result(turn_id)
    finally:
        other.kill()
        other.wait()
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert turn.response.count("***") == 6, "both servers had their credential, and told it"
    log = root / ".helix" / "tools" / "own" / "stderr.log"
    assert variable in log.read_text()
    kept = tmp_path / "kept"
    kept.mkdir()
    for words in (
        ("turn", "bundle", turn_id),
        ("data", "backup", str(kept / "backup.tar.gz")),
        ("turn", "export", turn_id),
    ):
        done = run(installation.settings, *words, cwd=kept)
        assert done.returncode == 0, done.stderr
        (kept / f"{words[1]}.txt").write_text(done.stdout + done.stderr)
    holders = find_holders(installation, CANARY, root, kept)
    processes = {each for each in holders if each.startswith("process ")}
    assert processes
    assert all("telling_server.py" in each for each in processes), "only the server's process has the variable"
    assert holders - processes <= {f"file {log}"}, "the bundle starts the server once more, with an empty log"
    key = installation.settings.secrets_key_path
    shown = find_holders(installation, key.read_text().strip(), root, kept)
    assert shown == {f"file {key}"}, "no backup has the key of what it keeps"
