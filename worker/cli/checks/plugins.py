"""Check the installed plug-ins."""

from __future__ import annotations

from collections.abc import Iterator

from api_client.contract.plugins import CHECK, COMMAND, GROUPS, PACKAGES, UnusablePlugin, find_plugins, load_plugin
from api_client.contract.settings import Settings
from worker.cli.checks.finding import Finding
from worker.cli.commands import import_plugin_command, is_ours

_FIX = "install the package again, or remove it"


def check_plugins() -> Iterator[Finding]:
    """Report each plug-in that cannot be imported, and list the working plug-ins in one finding."""
    said = []
    for group, noun in GROUPS.items():
        problems = {name: _find_problem(group, name) for name in sorted(find_plugins(group))}
        for name, problem in problems.items():
            if problem:
                yield Finding(f"plug-in {name}", "warning", problem, _FIX)
        if loaded := [name for name, problem in problems.items() if not problem]:
            said.append(f"{noun} {', '.join(loaded)}")
        if missing := sorted(PACKAGES.get(group, {}).keys() - problems):
            said.append(f"not installed: {noun} {', '.join(missing)}")
    yield Finding("plug-ins", "ok", "; ".join(said) or "none")


def run_plugin_checks(settings: Settings) -> Iterator[Finding]:
    """Run the checks that plug-ins add, and yield their findings. Turn a crash of a check into a finding."""
    for name in sorted(find_plugins(CHECK)):
        try:
            yield from load_plugin(CHECK, name)(settings)
        except UnusablePlugin:
            continue  # reported by the check of plug-ins
        except Exception as error:
            yield Finding(name, "warning", f"the plug-in's check failed: {error!r}", _FIX)


def _find_problem(group: str, name: str) -> str:
    if group == COMMAND and is_ours(name.replace(".", " ")):
        return f"the command {name!r} is built in, and no plug-in may replace it"
    try:
        if group == COMMAND:  # entry points of commands hold a table; import the command too
            import_plugin_command(name)
        else:
            load_plugin(group, name)
    except UnusablePlugin as error:
        return str(error)
    return ""
