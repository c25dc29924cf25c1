"""Does virtual time give the capacity that the same profile gives behind real HTTP, in real time?

    python -m benchmarks.virtual_agreement --profile demo --resolution 1

Runs `agentperf run` twice with the same flags, against `sim:PROFILE` and against `virtual:PROFILE`, and prints both
brackets and what each level measured. Exits with 1 when the capacities are more than one step apart.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any


def run(kind: str, profile: str, flags: list[str]) -> tuple[dict[str, Any], float]:
    """(summary, wall time in s) of one search."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "--endpoint", f"{kind}:{profile}", "--out", folder, "--json", *flags]
        began = time.perf_counter()
        made = subprocess.run(
            [sys.executable, "-m", "agentperf", *words], capture_output=True, text=True, check=False, timeout=3600
        )
        took = time.perf_counter() - began
    if not made.stdout.strip():
        raise SystemExit(made.stderr)
    summary: dict[str, Any] = json.loads(made.stdout.strip().splitlines()[-1])
    return summary, took


def speeds(summary: dict[str, Any]) -> dict[int, str]:
    """p25 speed of each level; of several probes all."""
    found: dict[int, str] = {}
    for row in summary["levels"]:
        p25 = row["speed_p25"]
        text = "-" if p25 is None else f"{p25:.1f}"
        text += "" if row["health"] == "ok" else f" (client {row['health']})"
        found[row["level"]] = f"{found[row['level']]}, {text}" if row["level"] in found else text
    return found


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="demo")
    parser.add_argument("--traces", default="smoke")
    parser.add_argument("--slo", default="80tps")
    parser.add_argument("--resolution", default="1")
    parser.add_argument("--max-agents", default="64")
    parser.add_argument("--seed", default="0")
    given = parser.parse_args()
    flags = ["--slo", given.slo, "--traces", given.traces, "--resolution", given.resolution]
    flags += ["--max-agents", given.max_agents, "--seed", given.seed]
    virtual, virtual_s = run("virtual", given.profile, flags)
    real, real_s = run("sim", given.profile, flags)
    a, b = virtual["answers"][0], real["answers"][0]
    print(f"| {given.profile}, {given.slo} | virtual time | HTTP, real time |\n|---|--:|--:|")
    print(f"| capacity | {a['capacity']} | {b['capacity']} |")
    print(
        f"| passes / fails | {a['largest_pass']} / {a['smallest_fail']} | {b['largest_pass']} / {b['smallest_fail']} |"
    )
    print(f"| ended by | {a['reason']} | {b['reason']} |")
    print(f"| took | {virtual_s:.1f} s | {real_s:.0f} s |")
    one, other = speeds(virtual), speeds(real)
    for level in sorted({*one, *other}):
        print(f"| p25 speed at {level} | {one.get(level, '')} | {other.get(level, '')} |")
    step = max(1, (b["smallest_fail"] or 0) - (b["largest_pass"] or 0))
    agree = a["capacity"] is not None and b["capacity"] is not None and abs(a["capacity"] - b["capacity"]) <= step
    print(f"capacities within one step ({step}): {'within' if agree else 'MISSED'}")
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
