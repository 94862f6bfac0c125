"""Public names, argument orders and defaults of an old client's source, by its AST."""

from __future__ import annotations

import ast
from typing import Any

# (argument, default) pairs without self; ... where there is no default.
Signature = tuple[tuple[str, Any], ...]


def signatures(source: str) -> dict[str, Signature]:
    """Public functions and methods of public classes; a property has no arguments."""
    found: dict[str, Signature] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found[node.name] = _arguments(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and _is_public(part.name):
                    found[f"{node.name}.{part.name}"] = _arguments(part)
    return found


def enumerations(source: str) -> dict[str, dict[str, Any]]:
    """Public classes of constants."""
    found: dict[str, dict[str, Any]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            members = {
                target.id: ast.literal_eval(part.value)
                for part in node.body
                if isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant)
                for target in part.targets
                if isinstance(target, ast.Name)
            }
            if members:
                found[node.name] = members
    return found


def exceptions(source: str) -> dict[str, str]:
    """Classes and their parents."""
    return {
        node.name: node.bases[0].id
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and isinstance(node.bases[0], ast.Name)
    }


def _is_public(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


def _arguments(node: ast.FunctionDef) -> Signature:
    names = [each.arg for each in node.args.args if each.arg != "self"]
    defaults = [_constant(each) for each in node.args.defaults]
    return tuple(zip(names, [...] * (len(names) - len(defaults)) + defaults, strict=True))


def _constant(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else ast.unparse(node)
