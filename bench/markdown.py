"""Parts of the generated pages."""

from __future__ import annotations

from typing import Any


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def machine_line(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, "
        f"CPython {machine['python']}, core {machine['core']}, {machine['date']}"
    )


def verdict(met: bool) -> str:
    return "yes" if met else "**no**"


def source_line(result: dict[str, Any]) -> str:
    """Return the line with the command and the machine of a result."""
    return f"\n`{result['command']}` ({machine_line(result)})\n"
