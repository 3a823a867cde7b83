"""The runner ``inline``: an agent without a process, for benches and tests. It is registered by an entry point."""

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

#: A folder with the metadata of a package that offers the runner, as an installed one would.
SITE = Path(__file__).with_name("site")


def offer(environ: MutableMapping[str, str]) -> None:
    """Have processes with this environment know the runner."""
    paths = [str(SITE), *filter(None, [environ.get("PYTHONPATH")])]
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def offer_here() -> None:
    """Have this process know the runner, and those it starts."""
    offer(os.environ)
    if str(SITE) not in sys.path:
        sys.path.append(str(SITE))
