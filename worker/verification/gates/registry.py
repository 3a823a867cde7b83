"""Gates by name. The table is closed, as the contract's table of their options is: a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping

from worker.verification.gates.adr_valid import adr_valid
from worker.verification.gates.base import Gate
from worker.verification.gates.command import command, tests_pass
from worker.verification.gates.files_exist import files_exist
from worker.verification.gates.syntax import syntax

GATES: Mapping[str, Gate] = {
    "files_exist": files_exist,
    "syntax": syntax,
    "tests_pass": tests_pass,
    "adr_valid": adr_valid,
    "command": command,
}
