"""``python -m tests.chaos``: see ``make chaos`` and docs/reliability.md."""

from __future__ import annotations

from tests.chaos.command import main

if __name__ == "__main__":
    main()
