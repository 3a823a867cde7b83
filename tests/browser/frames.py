"""``python frames.py OUT PNG...``: pictures of the page beside each other. Runs where drive.py does."""

from __future__ import annotations

import sys

from PIL import Image

#: The part of the page that is shown, and what its width becomes; all in pixels.
_PART, _WIDTH, _GAP = (50, 55, 890, 505), 560, 10


def main(out: str, *pictures: str) -> None:
    parts = [Image.open(picture).convert("RGB").crop(_PART) for picture in pictures]
    height = parts[0].height * _WIDTH // parts[0].width
    whole = Image.new("RGB", (len(parts) * (_WIDTH + _GAP) - _GAP, height), "lightgrey")
    for number, part in enumerate(parts):
        whole.paste(part.resize((_WIDTH, height), Image.Resampling.LANCZOS), (number * (_WIDTH + _GAP), 0))
    whole.save(out, optimize=True)


main(*sys.argv[1:])
