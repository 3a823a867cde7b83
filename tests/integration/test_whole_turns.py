"""Whole turns through everything that is real: the openai client, the relay, Celery workers, the scripted agent."""

import openai
import pytest

from tests.installation import Installation, RelayProcess

SCRIPT = """
- when: repariere
  attempts:
    - - say: "Ohne Marker."
    - - say: "Mit Marker.\\n\\n<!-- STEP: done -->"
- when: ADR
  attempts:
    - - say: |
          ---
          adr_id: "1"
          title: T
          status: Proposed
          ---

          ## Kontext

          <!-- STEP: generate -->
- attempts:
    - - say: "Gelesen.\\n\\n<!-- STEP: done -->"
"""


@pytest.fixture
def relay(installation: Installation) -> RelayProcess:
    installation.play(SCRIPT)
    installation.worker()
    return installation.relay()


def ask(relay: RelayProcess, text: str) -> str:
    client = openai.OpenAI(base_url=f"{relay.url}/v1", api_key="none", max_retries=0, timeout=120)
    answer = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content or ""


def test_turns_are_read_repaired_or_refused_and_the_caller_sees_which(relay: RelayProcess) -> None:
    assert ask(relay, "x" * 300_000) == "Gelesen.", "a message of 300 kB"
    assert ask(relay, "Bitte repariere das.") == "Ohne Marker.", "only the marker was asked for, and it is not shown"
    with pytest.raises(openai.UnprocessableEntityError) as failed:
        ask(relay, "Schreib ein ADR.")
    assert failed.value.code == "failed"
    assert "[ENFORCEMENT ERROR]" in failed.value.message
    assert "MISSING_ADR_SECTION" in failed.value.message
