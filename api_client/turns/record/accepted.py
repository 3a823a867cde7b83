"""An accepted answer between its seal and its commit, so that another worker can publish and commit the same answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from api_client.contract.events import body_of
from api_client.turns.record.encoding import decode_transition, encode_transition
from api_client.turns.record.transition import Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedAnswer:
    """An accepted answer with everything needed to publish it and to finish its turn."""

    transition: Transition
    delivery: str
    mended: dict[str, str] = field(default_factory=dict)

    def to_json(self, stored: Mapping[str, str]) -> str:
        """Encode the accepted answer as JSON. Long texts that are already stored are replaced by references.

        ``stored`` has the stored facts of the attempt.
        """
        data = {
            "move": encode_transition(self.transition, stored).to_dict(),
            "delivery": self.delivery,
            "mended": self.mended,
        }
        texts = self.transition.texts.events
        events = ", ".join(f'["{kind}", {said}]' for kind, said in zip(texts[::2], texts[1::2], strict=True))
        return f'{{"events": [{events}], {json.dumps(data)[1:]}'

    @classmethod
    def from_json(cls, text: str, stored: Callable[[int], Mapping[str, str]]) -> AcceptedAnswer:
        """Decode an accepted answer from JSON. ``stored`` returns an attempt's stored facts by its number.

        Raises ``ValueError`` if the text is not an accepted answer.
        """
        data = json.loads(text)
        events = [body_of(kind, facts) for kind, facts in data["events"]]
        transition = data["move"]
        if isinstance(transition, str):  # a record of version 1
            transition = json.loads(transition)
        found = decode_transition(transition, events, stored(int(transition["attempt"])))
        return cls(transition=found, delivery=data["delivery"], mended=data["mended"])
