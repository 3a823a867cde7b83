"""The tool gateway: MCP servers for every agent, with policy, credentials outside of the sandbox, and a call log.

``equipment`` gives a run its gateway; ``gateway_process`` serves all runs of a worker in one process of its own, which
``gateway_client`` starts through ``gateway_guard``. For each call of a run, ``gateway`` asks ``call_policy`` and
``call_matching`` (pure), writes the row by ``call_store``, and sends the call by ``call_sending`` and ``upstream_pool``
with the credentials that ``credentials`` reads and ``secrets_command`` stores, or with a token of ``oauth`` or, where
people sign in, of ``sign_in_auth``.
"""

COMMANDS = {
    "secrets": ("worker.plugins.tools.secrets_command:secrets", "Keep credentials of MCP servers, encrypted."),
    "turn.calls": ("worker.plugins.tools.calls_command:calls", "Show the tool calls of a turn."),
}
