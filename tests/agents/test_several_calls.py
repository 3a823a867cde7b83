"""An answer made of several model calls is complete only where each call ended well whose text is in it."""

from pathlib import Path
from typing import Any

import pytest

from tests.agents.stub import Services, StubReply, fails, said_in, says
from tests.agents.test_python_agents import written
from worker.runners.sandbox.guard_client import AgentProcesses

ASK = """
import json, os, urllib.request
from concurrent.futures import ThreadPoolExecutor

def ask(*said, system="You write a book.", **more):
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]
    body = {"model": "m1", "messages": [{"role": "system", "content": system}, *messages], **more}
    headers = {"content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    pieces = []
    try:
        for line in urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)):
            if not more.get("stream"):
                return json.loads(line)["choices"][0]["message"]["content"]
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                pieces += [each["delta"].get("content") or "" for each in choices]
    except Exception:
        pass
    return "".join(pieces)

"""
_ONE = "Chapter one begins and then it is cut in the mid"
_ONE_WHOLE = "Chapter one begins and then it is cut in the middle of the night, by its author."
_TWO = "Chapter two is whole and ends as a chapter should."
_TWO_CALLS = "    return ask('one') + '\\n\\n' + ask('two')"
_GATHERED = "    with ThreadPoolExecutor() as pool:\n        return ' '.join(pool.map(ask, ['one', 'two']))"
_STREAMED = "    return ask('one', stream=True) + ' ' + ask('two', stream=True)"
_AGAIN = "    ask('one')\n    return ask('one', temperature=1) + ask('two')"
_CUT = says(_ONE, end="limit")


class ByPrompt(Services):
    """Each prompt has its own replies, by the first word of the last message."""

    def __init__(self, **replies: Any) -> None:
        super().__init__([])
        self.by = {word: [*each] if isinstance(each, list) else [each] for word, each in replies.items()}

    def take(self, request: dict[str, Any]) -> StubReply:
        """Choose what the next model call gets."""
        replies = self.by[str(said_in(request)[-1]["content"]).split()[0].lower()]
        return replies.pop(0) if len(replies) > 1 else replies[0]


@pytest.mark.parametrize(
    ("code", "one", "verdict"),
    [
        (_TWO_CALLS, _CUT, "limit"),
        (_TWO_CALLS, says(_ONE, end="filter"), "refused"),
        (_TWO_CALLS, says("", end="filter"), "refused"),
        (_TWO_CALLS, says(_ONE, end="odd"), "incomplete"),
        (_TWO_CALLS, says("Sorry.", end="limit"), "limit"),
        (_TWO_CALLS, fails(400), "permanent"),
        (_TWO_CALLS, fails(429), "transient"),
        (_GATHERED, _CUT, "limit"),
        (_GATHERED, says(_ONE, end="filter"), "refused"),
        (_STREAMED, says(_ONE, cut="end"), "incomplete"),
        (_STREAMED, says(_ONE, fails=True), "transient"),
        (_STREAMED, _CUT, "limit"),
        # All in one conversation: the model sees its own half chapter, and is asked for another one.
        ("    one = ask('one')\n    return one + ask('write', one, 'two')", _CUT, "limit"),
        # Two experts have the same question, and rules of their own.
        ("    return ask('one', system='A lawyer.') + ask('one', system='An engineer.')", [_CUT, says(_TWO)], "limit"),
        ("    return ask('one').upper().replace(' ', '\\n> ') + ask('two')", _CUT, "limit"),
        # The half chapter goes through a call that ends well.
        ("    return ask('merge ' + ask('one'))", _CUT, "limit"),
        ("    one = ask('one')\n    return one + ask('two', tools=[{'type': 'function'}])", _CUT, "limit"),
    ],
)
def test_a_part_that_was_cut_makes_the_answer_incomplete(
    tmp_path: Path, agents: AgentProcesses, code: str, one: Any, verdict: str
) -> None:
    merged = says(f"{_ONE} {_TWO}")
    with ByPrompt(one=one, two=says(_TWO), merge=merged) as stub:
        ran = written(tmp_path, agents, f"{ASK}def consultant(context):\n{code}", stub=stub).run()
    assert ran.verdict == verdict, (ran.result.text, ran.evidence)
    assert ran.evidence["overruled"] == "complete"
    assert "digests" not in str(ran.evidence)


@pytest.mark.parametrize(
    ("code", "one"),
    [
        (_TWO_CALLS, says(_ONE_WHOLE)),
        (_GATHERED, says(_ONE_WHOLE)),
        # The same is asked again: after a limit, an error, a cut; of another model, or with less between.
        (_AGAIN, [_CUT, says(_ONE_WHOLE)]),
        (_AGAIN, [fails(429), says(_ONE_WHOLE)]),
        (_AGAIN, [fails(400), says(_ONE_WHOLE)]),
        (_AGAIN, [says(_ONE, cut="before"), says(_ONE_WHOLE)]),
        ("    ask('one')\n    return ask('one', model='m2') + ask('two')", [fails(503), says(_ONE_WHOLE)]),
        ("    ask('a', 'b', 'one')\n    return ask('one')", [fails(400), says(_ONE_WHOLE)]),
        # It is asked to go on, in words or by its own beginning.
        ("    return ask('one') + ask('one', 'x', 'Continue exactly where you left off')", _CUT),
        ("    return ask('one') + ask('one', 'Prefilled')", _CUT),
        # Other words get the whole text; a draft, and a yes or no, are not in the answer.
        ("    ask('one')\n    return ask('again, please')", _CUT),
        ("    ask('one')\n    return ask('two')", _CUT),
        ("    ask('one', max_tokens=1)\n    return ask('two')", says("Yes", end="limit")),
    ],
)
def test_a_call_that_was_repeated_or_whose_text_is_not_in_the_answer_leaves_it_complete(
    tmp_path: Path, agents: AgentProcesses, code: str, one: Any
) -> None:
    more = {"again,": says(_ONE_WHOLE), "continue": says("dle."), "prefilled": says("dle.")}
    with ByPrompt(one=one, two=says(_TWO), **more) as stub:
        agent = written(tmp_path, agents, f"{ASK}def consultant(context):\n{code}", stub=stub)
        agent.settings["proxy_models"] = ("m2",)
        ran = agent.run()
    assert ran.verdict == "complete", (ran.reason, ran.evidence)
