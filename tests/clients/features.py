"""``python -m tests.clients.features FOLDER``: print clients by features as the last `make e2e-clients` saw them.

docs/clients.md has the same table, and the tests compare each column with it.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
#: Feature -> what a user of the client reads of it, in its value or in its error.
FEATURES = {
    "answer": "The answer.",
    "stream": r"The answer\.|'city': 'Bonn', 'people': 3",
    "usage": "16",
    "schema": r"\{.city.: ?.Bonn., ?.people.: ?3\}",
    "json_object": r"\{.city.: ?.Bonn., ?.people.: ?3\}",
    "refusal": "I cannot help with that.",
    "no answer": "'people' is a required property",
    "tool call": "the agent brings its own tools",
}
CLIENTS = ("openai, Python", "openai, Node", "LangChain", "instructor", "pydantic-ai", "LiteLLM in front")


def cells_of(told: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the table's column for what a client told: "yes", the error that says what it must, "no", or "-"."""
    return {name: _cell(told.get(name), words) for name, words in FEATURES.items()}


def _cell(told: dict[str, str] | None, words: str) -> str:
    if told is None:
        return "-"
    if not re.search(words, told["said"]):
        return "no"
    return f"`{told['error']}`" if told["error"] else "yes"


def table(columns: dict[str, dict[str, str]]) -> str:
    """Return clients by features in Markdown; a client that was not run has question marks."""
    rows = [("Feature", *CLIENTS), ("---",) * (1 + len(CLIENTS))]
    rows += [(name, *(columns.get(client, {}).get(name, "?") for client in CLIENTS)) for name in FEATURES]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def documented() -> dict[str, dict[str, str]]:
    """Return the columns of the table in docs/clients.md."""
    lines = PAGE.read_text(encoding="utf-8").partition("<!-- features -->\n")[2].partition("<!-- end -->")[0]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines())
    return {client: {row[0]: row[number] for row in rows} for number, client in enumerate(head[1:], 1)}


def keep(folder: Path, client: str, told: dict[str, Any]) -> None:
    """Keep what a client told for the table that ends `make e2e-clients`."""
    file = folder / "features.json"
    seen = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(seen | {client: cells_of(told)}))


if __name__ == "__main__":
    print(table(json.loads((Path(sys.argv[1]) / "features.json").read_text())))
