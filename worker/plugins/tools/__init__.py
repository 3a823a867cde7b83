"""The tool gateway: MCP servers for every agent, with policy, credentials outside of the sandbox, and a call log.

``equipment`` gives a run its gateway, ``gateway_process`` serves all runs of a worker in one process.
"""

COMMANDS = {
    "secrets": ("worker.plugins.tools.secrets_command:secrets", "Keep credentials of MCP servers, encrypted."),
    "turn.calls": ("worker.plugins.tools.calls_command:calls", "Show the tool calls of a turn."),
}
