"""A client with the openai package: ``python client.py "Where is the invoice?"``."""

import os
import sys

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("HELIX_URL", "http://127.0.0.1:8765") + "/v1", api_key=os.environ.get("HELIX_KEY", "none")
)
stream = client.chat.completions.create(
    model="invoices",
    messages=[{"role": "user", "content": sys.argv[1]}],
    stream=True,  # without this the call returns the accepted answer in one piece
    extra_headers={"X-Conversation-ID": "chat-1"},  # turns of one conversation run in order
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
