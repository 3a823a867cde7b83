"""The declaration of a label of turns."""

from __future__ import annotations

from typing import NamedTuple


class TurnLabel(NamedTuple):
    """A field of a turn's record that an admission check sets, and that lists and statistics use.

    With ``filter_help``, lists show the label and filter by it; ``setting`` then has its values. ``counter`` is
    ``turn.finished`` or the label's own counter. ``span`` is its attribute of the turn's span.
    """

    title: str = ""
    counter: str = ""
    filter_help: str = ""
    setting: str = ""
    span: str = ""
