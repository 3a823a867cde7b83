"""Runs tests repeatedly, each time in a fork of a process that has loaded the libraries but none of our code.

``python -m tests.fault.mutant_runs`` reads one JSON object per line: ``tests``, ``seconds`` (the most that a test may
take) and ``broken`` (a mutant is in the sources). Each is answered with ``code``, pytest's exit code, and ``output``.
So a run does not cost the start of an interpreter with all imports.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence

import pytest

#: What the tests import, all of them with no thread and no open file of their own.
_LIBRARIES = (
    *("celery", "celery.app.base", "celery.worker", "click", "fastapi", "httpx2", "hypothesis", "jinja2", "kombu"),
    *("markdown_it", "pytest_asyncio", "redis", "redis.asyncio", "ruamel.yaml", "structlog", "yaml"),
)
#: So long tests wait for a condition that a mutant keeps from holding.
_WAIT_SECONDS = "5"


def run(tests: Sequence[str], seconds: float, *, broken: bool) -> tuple[int, str]:
    """Run tests in a fork, which ends everything that the tests started; return pytest's exit code and output.

    Compiled ``broken`` sources are not kept: a file that is restored within the second looks unchanged.
    """
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            os.setsid()
            sys.dont_write_bytecode = broken
            if broken:
                os.environ["TESTS_WAIT_SECONDS"] = _WAIT_SECONDS
            for fd in (1, 2):
                os.dup2(output.fileno(), fd)
            code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", f"--timeout={seconds:g}", *tests])
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read().decode(errors="replace")


def main() -> None:
    """Carry out orders until standard input ends."""
    for name in _LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        code, output = run(**json.loads(line))
        print(json.dumps({"code": code, "output": output}), flush=True)


if __name__ == "__main__":
    main()
