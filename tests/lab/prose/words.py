"""Phrases the project does not use, each with what to write instead. Contributors read why in CONTRIBUTING.md."""

import re

#: A phrase (spaces also match a line break) -> what to write instead.
_PHRASES = {
    r"told": "reported, shown, given; or name who learns it",
    r"tells? (?:of|what|how|whether|that|where|which)": "reports, shows, names",
    r"(?:says?|speaks?|said) of": "describes, reports",
    r"of (?:ours|yours|theirs|mine)": "our, your, their",
    r"of (?:its|their|our|your|one's|his|her) own": "its own ..., a separate ...",
    r"(?<!there )is no (?!longer\b|more\b|less\b|better\b|worse\b)[a-z`]+": "is not a ...",
    r"(?<!there )are no (?!longer\b|more\b|less\b|better\b|worse\b)[a-z`]+": "are not ...",
    r"(?<!there )(?<!if lines )is none(?: of)?(?! %)": "is not one",
    r"what waits": "what is waiting: name it (turns, messages)",
    r"what (?:came|comes) (?:of|back|next)": "the result, the reply",
    r"anew": "again, from the start",
    r"whoever": "name the actor: the client that, anyone who",
    r"for so long": "for this long",
    r"looks? after": "owns, handles",
    r"call(?:s|ed)? off": "cancel",
    r"l(?:ies|ie|ay) in": "is in, is stored in",
    r"lets? go(?: of)?": "deletes, releases",
    r"mend(?:s|ed|ing)?": "repair",
    r"nobody's": "unowned",
    r"in force": "active, valid",
    r"(?:is|are|was|were) of use": "is useful",
    r"harms? nobody": "changes nothing else",
    r"to its end": "to the end, completely",
    r"deaf": "stalled; ignores (a signal)",
    r"pulses?": "heartbeat",
    r"sightings?": "request seen",
    r"crew": "workers",
    r"tall(?:y|ies)": "count",
    r"(?:stand|stood) (?:in|on) (?:its|the|a)(?! way)": "is in, is on",
    r"stands(?! still| in the way)": "is; waits; represents",
    r"so many": "this many; name the number",
    r"who says so": "its source",
    r"what is": "name it: the fault, the rest, the content",
    r"(?<!by )hands? (?:it |them )?in": "submits",
    r"handed in": "submitted",
}
_WORDS = "[ \\n]"
RULES = [
    (re.compile(rf"(?<![\w-]){phrase.replace(' ', _WORDS)}(?![\w-])", re.IGNORECASE), instead)
    for phrase, instead in _PHRASES.items()
]
