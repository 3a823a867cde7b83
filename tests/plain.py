"""The environment in which tests run: the same in every shell, editor and CI."""

import os
import re
import time

#: What the people and programs around the tests set for themselves. Settings of the tests have other names.
_FOREIGN = re.compile(
    r"HELIX_|REDIS_URL$|OTEL_|GIT_|PYTEST_ADDOPTS$|PYTHON(?!PATH$|HOME$|PYCACHEPREFIX$)"
    r"|(?:HTTPS?|ALL|NO)_PROXY$|(?:FORCE|NO)_COLOR$|CLICOLOR|PY_COLORS$|COLUMNS$|LINES$|CDPATH$|BASH_ENV$|ENV$|L(?:C_|ANG)"
)


def plain_environment() -> None:
    """Remove foreign variables from this process's environment, and set language and time zone."""
    for name in [name for name in os.environ if _FOREIGN.match(name.upper())]:
        del os.environ[name]
    os.environ |= {"LC_ALL": "C.UTF-8", "TZ": "UTC"}
    time.tzset()
