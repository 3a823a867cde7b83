"""Attempts of an agent to make a call that the policy denies: by other messages, and by other HTTP requests.

The tool ``s__write`` may be called with a note that begins with ``free`` and a space.
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any

PATH = "/helix-tools/mcp"
BAD, FREE = {"note": "bad"}, {"note": "free 1"}
HEAD = {"Host": "a", "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
_MODERN = "2026-07-28"
_META = {"io.modelcontextprotocol/protocolVersion": _MODERN, "io.modelcontextprotocol/clientCapabilities": {}}


def message(name: Any = "s__write", arguments: Any = BAD, method: str = "tools/call", **more: Any) -> dict[str, Any]:
    """Return a JSON-RPC request, whose parameters have ``more``."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": name, "arguments": arguments, **more}}


def request(body: bytes, line: str = f"POST {PATH} HTTP/1.1", size: bool = True, **head: str) -> bytes:
    """Return an HTTP request with a body; ``size`` adds its length."""
    fields = {**HEAD, **{name.replace("_", "-"): value for name, value in head.items()}}
    fields |= {"Content-Length": str(len(body))} if size else {}
    return "".join([f"{line}\r\n", *(f"{name}: {value}\r\n" for name, value in fields.items()), "\r\n"]).encode() + body


def list_messages() -> Iterator[bytes]:
    """Yield requests whose messages name other tools, servers, methods and arguments, or name them twice."""
    write, params = json.dumps(message()), json.dumps(message()["params"])
    free = json.dumps(message(arguments=FREE)["params"])
    sent = [message(name, {"note": "free by another name"}) for name in _NAMES] + [
        message(arguments=each) for each in _ARGUMENTS
    ]
    sent += [{**message(), "id": each} for each in (10**400, 1.5, -1, "x" * 10**6, [], {}, True, "")]
    sent += [message(method=each, **_OF_OTHER_METHODS) for each in _METHODS]
    notifications = [message(method=f"notifications/{each}", requestId=1, progressToken=1) for each in _NOTIFICATIONS]
    sent += [{name: value for name, value in each.items() if name != "id"} for each in notifications]
    sent += [message(_meta=each) for each in _METAS]
    sent += [message(task={"ttl": 1_000}), message(inputResponses={"a": {"action": "accept"}}, requestState="s")]
    sent += [{**message(), "params": ["s__write", BAD]}, {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}]
    texts = [
        *map(json.dumps, sent),
        f'{write[:-1]}, "params": {params}}}',
        f'{write.replace(params, free)[:-1]}, "params": {params}}}',
        write.replace('"method":', '"method": "tools/list", "method":'),
        write.replace('"arguments": {', '"argum\\u0065nts": {"note": "free 1"}, "arguments": {'),
        write.replace('{"note": "bad"}', '{"note": "free 1", "n\\u006fte": "bad"}'),
        write.replace('"name": ', '"name": "s__read", "n\\u0061me": '),
        write.replace('"bad"', "NaN"),
        write.replace('"bad"', "1e999"),
        write.replace('"bad"', '"free \\ud800"'),
        json.dumps([[message()]]),
        write + write,
        f"{json.dumps(message('s__read', {}))}\n{write}",
        write.replace('"params"', '/*x*/"params"'),
        f"{write[:-1]},}}",
    ]
    bodies = [text.encode() for text in texts]
    bodies += [write.encode(each) for each in ("utf-16", "utf-16-le", "utf-32")]
    bodies += [write.encode().replace(b"bad", b"fr\xc0\xa5e 1")]
    yield from (request(body, Connection="close") for body in bodies)


def list_requests() -> Iterator[bytes]:
    """Yield requests that hide a call, or the secret of another run, in heads, bodies and lengths."""
    bad, free = json.dumps(message()).encode(), json.dumps(message(arguments=FREE)).encode()
    modern = {"mcp_protocol_version": _MODERN}
    meant = json.dumps(message(_meta=_META)).encode()
    for head in ({"mcp_name": "s__read"}, {"mcp_name": "s__write"}, {"mcp_method": "tools/list"}, {}):
        yield request(meant, **{"mcp_method": "tools/call", **modern, **head})
    for version in ("1999-01-01", f"{_MODERN}, 2025-06-18"):
        yield request(bad, mcp_protocol_version=version)
    for head in _HEADS:
        yield request(bad, **head)
    yield request(gzip.compress(bad), content_encoding="gzip")
    for line in _LINES:
        yield request(bad, f"{line} HTTP/1.1")
    yield request(b"", f"GET {PATH} HTTP/1.1", accept="text/event-stream", last_event_id="1", mcp_session_id="theirs")
    yield request(b"", f"DELETE {PATH} HTTP/1.1", mcp_session_id="theirs")
    hidden = request(bad, x_helix_run="theirs")
    chunks = b"%x\r\n%s\r\n0\r\n\r\n"
    yield request(chunks % (len(free), free) + hidden, transfer_encoding="chunked")
    yield request(chunks % (len(hidden), hidden), size=False, transfer_encoding="chunked", Content_Length="0")
    for coding in ("xchunked", "identity, chunked", "\tchunked"):
        yield request(hidden, transfer_encoding=coding)
    trailer = b"%x\r\n%s\r\n0\r\nx-helix-run: theirs\r\n\r\n" % (len(bad), bad)
    yield request(trailer, size=False, transfer_encoding="chunked", trailer="x-helix-run")
    yield request(free, content_length=str(len(free) + len(hidden))) + hidden
    for length in (f"{len(free)}, {len(free)}", f"+{len(free)}"):
        yield request(free, size=False, Content_Length=length) + hidden
    for folded in ("a\r\n x-helix-run: theirs", "a\nx-helix-run: theirs", "a\rx-helix-run: theirs", "a\0b"):
        yield request(bad, X=folded)
    yield hidden.replace(b"\r\n", b"\n")
    for method in ("GET", "HEAD"):
        yield request(hidden, f"{method} {PATH} HTTP/1.1") + request(bad)
    for rest in (bad, hidden, request(bad, "POST /v1/messages HTTP/1.1"), b"CONNECT other:443 HTTP/1.1\r\n\r\n"):
        yield request(free) + rest
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield request(bad, f"POST {PATH} HTTP/1.0")


_NAMES = [
    "s__other__write",
    "s__s__write",
    "__s__write",
    "\uff53__write",
    "s\uff3f\uff3fwrite",
    "\u017f__write",
    "s__write\u0301",
    "\u202es__write",
    "\ufeffs__write",
    "s__write\u200d",
    "s%5f%5fwrite",
    "s::write",
    "s.write",
    "s/write",
    "other__write",
    "s/../other__write",
    "./s__write",
    "s__./write",
    "s__\uff57rite",
    "s___write",
    "s__write__",
    "theirs__write",
    "s__wr\u0131te",
    ["s__write"],
    {"s": "write"},
    1,
    None,
    True,
]
_ARGUMENTS = [
    {"Note": "free 1", "note": "bad"},
    {"note\0": "free 1", "note": "bad"},
    {"note ": "free 1"},
    {"\uff4eote": "free 1"},
    {"note": {"": "free 1"}},
    {"note": ["free 1"]},
    {"": {"note": "free 1"}},
    {"__proto__": FREE},
    {"note": "\uff46ree 1"},
    {"note": "free\u00a01"},
    {"note": "free\u20281"},
    {"note": "fr\u0435e 1"},
    {"note": "\ufefffree 1"},
    {"note": 1e2},
    {"note": "free%201"},
    {"note": "free\t1"},
    json.dumps(FREE),
    [["note", "free 1"]],
]
_METHODS = [
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "completion/complete",
    "logging/setLevel",
    "roots/list",
    "sampling/createMessage",
    "elicitation/create",
    "tasks/list",
    "tasks/get",
    "tasks/result",
    "tasks/cancel",
    "subscriptions/listen",
    "server/discover",
    "tools/call/s__write",
    "rpc.tools/call",
    "tools.call",
]
_OF_OTHER_METHODS: dict[str, Any] = {
    "uri": "file:///etc/passwd",
    "ref": {"type": "ref/prompt", "name": "x"},
    "argument": {"name": "a", "value": "b"},
    "level": "debug",
    "messages": [],
    "maxTokens": 1,
    "message": "?",
    "requestedSchema": {"type": "object"},
    "taskId": "1",
}
_NOTIFICATIONS = ["cancelled", "progress", "initialized", "roots/list_changed", "tools/list_changed", "message"]
_METAS: list[dict[str, Any]] = [
    {"progressToken": 1},
    {"x-helix-run": "theirs"},
    {"io.modelcontextprotocol/related-task": {"taskId": "1"}},
    {"approved": True, "annotations": {"readOnlyHint": True}},
    {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "sampling": {}}},
]
_HEADS = [
    {"mcp_session_id": "theirs"},
    {"last_event_id": "theirs-1"},
    {"x_helix_run": "theirs"},
    {"X_HELIX_RUN": "theirs"},
    {"x_helix_run": "theirs, mine"},
    {"x_http_method_override": "GET"},
    {"x_original_url": "/other"},
    {"content_type": "text/plain"},
    {"content_type": "application/json; charset=utf-16"},
    {"accept": "*/*"},
    {"connection": "x-helix-run"},
    {"connection": "content-length"},
    {"mcp_param_note": "free 1"},
    {"connection": "Upgrade", "upgrade": "websocket"},
    {"connection": "Upgrade", "upgrade": "h2c"},
]
_LINES = [
    f"POST http://other{PATH}",
    f"POST http://tools.invalid{PATH}",
    "POST /helix-tools/%6dcp",
    f"POST /x/..{PATH}",
    f"POST /{PATH}",
    f"POST {PATH}/",
    f"POST {PATH.upper()}",
    f"POST {PATH};x=1",
    f"POST {PATH}?x-helix-run=theirs",
    f"post {PATH}",
    f"PUT {PATH}",
    f"PATCH {PATH}",
    f"OPTIONS {PATH}",
    f"TRACE {PATH}",
    "CONNECT 127.0.0.1:80",
]
