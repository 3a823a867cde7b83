"""The result as Markdown tables, ratios first."""

from collections.abc import Sequence
from typing import Any

from tests.lab.bench.turns import capacity

#: Figures of a load, as tables name them.
_LOADS = {
    "turns_per_s": "turns/s, {in_flight} in flight",
    "p50_ms": "p50 ms, one at a time",
    "first_event_ms": "agent begun, ms, one at a time",
    "p99_ms": "p99 ms, {in_flight} in flight",
    "worker_cpu_ms": "worker CPU, ms a turn",
    "client_cpu_ms": "client CPU, ms a turn",
    "store_cpu_ms": "store CPU, ms a turn",
    "commands": "commands a turn, those inside Lua included",
    "in_bytes": "bytes into the store a turn",
    "out_bytes": "bytes out of the store a turn",
    "aof_bytes": "bytes into the append-only file a turn",
    "memory_bytes": "memory of the store, bytes a turn",
    "others": "share of the machine others used",
}
#: Other work that takes this share of the machine makes times worthless.
_DISTURBED = 0.15
_KINDS = {"first": "accepted at once", "rejected": "rejected once"}
_REST = {
    "stream.pieces_per_s": "pieces/s, 10 answers of {pieces} pieces at once",
    "ready_s": "worker started to first turn ended, s",
    "idle_pss_mb": "idle worker, PSS MB",
    "idle_commands_per_s": "idle worker, commands/s",
    "idle_round_trips_per_s": "idle worker, round trips to the store/s",
    "idle_cpu_ms_per_s": "idle worker, CPU ms/s",
    "waiting.held": "of 1,000 waiting turns begun",
    "waiting.pss_mb": "worker with them, PSS MB",
    "waiting.kb_each": "each of them, KB",
    "waiting.commands_per_s": "commands/s with them",
    "waiting.round_trips_per_s": "round trips to the store/s with them",
    "waiting.cpu_ms_per_s": "worker CPU with them, ms/s",
}


def text(found: dict[str, Any]) -> str:
    """Everything, in the order a reader asks: ratios, figures by kind of turn, the rest, commands."""
    versions = " · ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        "",
        f"{found['date']} · durability {found['durability']} · {found['cores']} cores, load {found['load_before']:.2f} "
        f"before and {found['load_after']:.2f} after · {found['rounds']} rounds in {found['seconds']:.0f} s",
        f"Python {found['python']} · {versions} · {found['store']}",
        *_warning(found),
        "",
        "Ratios, round by round: median [lowest-highest]",
        "",
        "| | ratio |",
        "|---|---|",
        *(f"| {ratio_label(found, entry)} | {show(entry['ratio'])} |" for entry in found["ratios"]),
        "",
    ]
    for kind, label in _KINDS.items():
        heads = {f"{kind}.{name}": head.format(**found) for name, head in _LOADS.items()}
        lines += _table(found, f"A turn {label}: median [lowest-highest]", heads)
    lines += _table(found, "The rest", {name: head.format(**found) for name, head in _REST.items()})
    lines += capacity.lines(found)
    lines += _commands(found)
    return "\n".join(lines)


def _warning(found: dict[str, Any]) -> list[str]:
    """One line when other work took so much of the machine that times say little."""
    others = [spread[0] for row in found["rows"].values() for name, spread in row.items() if name.endswith("others")]
    if not others or max(others) < _DISTURBED:
        return []
    return [f"Disturbed: other work took up to {max(others):.0%} of the machine. Trust CPU and commands, not times."]


def ratio_label(found: dict[str, Any], entry: dict[str, Any]) -> str:
    """What is divided by what: ``turns/s, 50 in flight, rejected once: helix-turns ÷ taskiq``."""
    kind, _, name = entry["figure"].rpartition(".")
    figure = _LOADS[name].format(**found) if name in _LOADS else _REST[entry["figure"]].format(**found)
    variant = f", {_KINDS[kind]}" if kind in _KINDS else ""
    return f"{figure}{variant}: {found['labels'][entry['row']]} ÷ {found['labels'][entry['under']]}"


def _table(found: dict[str, Any], title: str, heads: dict[str, str]) -> list[str]:
    """A table of these figures, a line a figure; those that nobody measured are left out."""
    rows = found["rows"]
    shown = {name: head for name, head in heads.items() if any(name in figures for figures in rows.values())}
    if not shown:
        return []
    return [
        title,
        "",
        f"| | {' | '.join(found['labels'][row] for row in rows)} |",
        f"|---|{'---|' * len(rows)}",
        *(
            f"| {head} | {' | '.join(show(figures.get(name, []), name) for figures in rows.values())} |"
            for name, head in shown.items()
        ),
        "",
    ]


def _commands(found: dict[str, Any]) -> list[str]:
    """Commands of one turn, by name; ``5+66`` means 5 sent and 66 inside Lua."""
    lines: list[str] = []
    kinds = next(iter(found["commands"].values()), {})
    for kind in kinds:
        counts = {row: found["commands"][row][kind] for row in found["rows"]}
        total = {row: {w: sum(names.values()) for w, names in parts.items()} for row, parts in counts.items()}
        names = {name for parts in counts.values() for part in parts.values() for name in part}
        ours = next(iter(counts.values()))
        order = sorted(names, key=lambda name: (-ours["sent"].get(name, 0) - ours["lua"].get(name, 0), name))
        lines += [
            f"Commands of a turn {_KINDS.get(kind, kind)}: sent by clients + inside Lua",
            "",
            f"| | {' | '.join(found['labels'][row] for row in counts)} |",
            f"|---|{'---|' * len(counts)}",
            f"| all | {' | '.join(_pair(parts['sent'], parts['lua']) for parts in total.values())} |",
        ]
        for name in order:
            cells = (_pair(parts["sent"].get(name, 0), parts["lua"].get(name, 0)) for parts in counts.values())
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def _pair(sent: float, inside: float) -> str:
    return f"{sent:.3g}+{inside:.3g}" if inside else f"{sent:.3g}" if sent else ""


def show(found: Sequence[float], name: str = "") -> str:
    """``median [lowest-highest]``, or the one value there is."""
    if not found:
        return ""
    if name.endswith("others"):
        return f"{found[0]:.0%} [{found[1]:.0%}-{found[2]:.0%}]"
    middle, low, high = map(_short, found)
    return middle if low == high else f"{middle} [{low}-{high}]"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
