"""``make grafana``: our dashboard by Grafana's own schema of the version that compose starts, as types for TypeScript.

A wrong type, an unknown field or option, and a value that Grafana does not know are errors with their line. ``FOLDER``
has the packages @grafana/schema and typescript from npm.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

DASHBOARD = Path(__file__).parents[2] / "compose" / "grafana" / "dashboards" / "helix-turns.json"
#: Types of a panel's options and its field settings, by the panel's type.
_TYPES = """
import type { Dashboard } from "@grafana/schema";
import type * as stat from "@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen.d.ts";
import type * as timeseries from "@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen.d.ts";
// In JSON the values of Grafana's enumerations are texts.
type Json<T> = T extends string ? `${T}` : T extends number ? number : T extends (infer U)[] ? Json<U>[]
  : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
"""  # noqa: E501 - an import is one line


def checked(dashboard: dict[str, object], packages: Path) -> str:
    """What the compiler says about a dashboard; empty: all is right."""
    lines = [_TYPES, f"export const whole: Json<Dashboard> = {json.dumps(dashboard, indent=1)};"]
    for number, panel in enumerate(dashboard["panels"]):  # type: ignore[arg-type, var-annotated]
        lines.append(
            f"export const o{number}: Json<Partial<{panel['type']}.Options>> = {json.dumps(panel['options'])};"
        )
        custom = panel["fieldConfig"]["defaults"].get("custom")
        if custom:
            lines.append(f"export const f{number}: Json<{panel['type']}.FieldConfig> = {json.dumps(custom)};")
    with tempfile.TemporaryDirectory(dir=packages) as folder:
        source = Path(folder) / "dashboard.ts"
        source.write_text("\n".join(lines) + "\n")
        options = ["--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler", "--module", "esnext"]
        command = [str(packages / "node_modules" / ".bin" / "tsc"), *options, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=packages)
    return done.stdout + done.stderr if done.returncode else ""


def main() -> None:
    """Check the dashboard, and see that a broken one is found."""
    packages = Path(sys.argv[1]).absolute()
    dashboard = json.loads(DASHBOARD.read_text())
    if problems := checked(dashboard, packages):
        sys.exit(problems)
    for name, value in (("refresh", 30), ("timezome", "browser")):
        assert checked(dashboard | {name: value}, packages), f"{name}={value!r} was not found"
    print(f"{DASHBOARD.name}: {len(dashboard['panels'])} panels, all by Grafana's schema")


if __name__ == "__main__":
    main()
