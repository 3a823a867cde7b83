// A client in Node without packages: node client.mjs "Where is the invoice?"
// It shows the draft live and takes it back when it is rejected (docs/events.md).
const url = process.env.HELIX_URL ?? "http://127.0.0.1:8765";
const headers = {"content-type": "application/json"};
if (process.env.HELIX_KEY) headers.authorization = `Bearer ${process.env.HELIX_KEY}`;

const submitted = await fetch(`${url}/v1/turns`, {
  method: "POST",
  headers,
  body: JSON.stringify({model: "invoices", messages: [{role: "user", content: process.argv[2]}]}),
});
if (!submitted.ok) throw new Error(await submitted.text());
const turn = await submitted.json();

let text = "", lines = "", finished = false, last;
while (!finished) {
  // After a lost connection this asks for the events after the last one it saw.
  const events = await fetch(`${url}/v1/turns/${encodeURIComponent(turn.turn_id)}/events`, {headers: last ? {...headers, "last-event-id": last} : headers});
  for await (const bytes of events.body.pipeThrough(new TextDecoderStream())) {
    lines += bytes;
    const frames = lines.split("\n\n");
    lines = frames.pop();
    for (const frame of frames) {
      last = /^id: (.*)$/m.exec(frame)?.[1] ?? last;
      const data = /^data: (.*)$/m.exec(frame)?.[1];
      if (data) show(JSON.parse(data));
    }
  }
  lines = "";
}

function show({kind, data}) {
  if (kind === "attempt.output") text += data.text;
  if (["attempt.reset", "attempt.rejected", "attempt.lost"].includes(kind)) {
    console.log(`taken back: ${text}`);
    text = "";
  }
  if (kind === "turn.finished") {
    console.log(`${data.outcome}: ${data.response}`);
    finished = true;
  }
}
