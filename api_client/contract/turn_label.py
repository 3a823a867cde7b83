"""The declaration of a label of turns."""

from __future__ import annotations

from typing import NamedTuple


class TurnLabel(NamedTuple):
    """A field of a turn's record that an admission check sets, and that lists and statistics use.

    ``filter_help``, which may be empty, has lists show the label and filter by it; ``setting`` has its values then.
    ``counter`` is ``turn.finished``, or a counter of its own: label, outcome, ``asked_again``.
    ``span`` is its attribute of the turn's span.
    """

    title: str = ""
    counter: str = ""
    filter_help: str = ""
    setting: str = ""
    span: str = ""
