"""An agent that reads the notes of docs/tools.md, adds one, and says so."""

import sys
import time

from tests.tools.calling_agent import send

if __name__ == "__main__":
    sys.stdin.read()
    send("tools/call", name="notes__read_notes", arguments={})
    time.sleep(0.4)
    send("tools/call", name="notes__add_note", arguments={"text": "We ship on Friday."})
    time.sleep(0.2)
    print("I noted that we ship on Friday.\n\n<!-- STEP: done -->")
