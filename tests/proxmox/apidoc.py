"""Holds a call against PVE's own API documentation, where a flattened copy of it is at hand.

The documentation is AGPL data of proxmox/pve-docs and is not part of this repository: RUNBOOKS_PVE_SCHEMA names a JSON
file {"endpoints": {path: {METHOD: info}}, "formats": {name: format}} made from its apidata. Without it the tests that
need it are skipped, and those against the lab's own table of formats still run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

PLACE = os.environ.get("RUNBOOKS_PVE_SCHEMA", "")
needs_apidoc = pytest.mark.skipif(not PLACE, reason="RUNBOOKS_PVE_SCHEMA names no copy of PVE's API documentation")


class ApiDoc:
    def __init__(self, path: Path) -> None:
        raw = json.loads(path.read_text())
        self.endpoints: dict[str, Any] = raw["endpoints"]
        self.formats: dict[str, Any] = raw["formats"]

    def faults(self, method: str, path: str, parameters: Mapping[str, Any]) -> list[str]:
        """Everything that PVE would hold against this call."""
        pattern, values = self._find(path)
        if pattern is None or method not in self.endpoints[pattern]:
            return [f"{method} {path}: there is no such call"]
        known = self.endpoints[pattern][method].get("parameters", {}).get("properties", {})
        given = {**values, **parameters}
        found = [f"{name}: required" for name, rule in known.items() if not rule.get("optional") and name not in given]
        for name, value in given.items():
            rule = known.get(name) or known.get(re.sub(r"\d+$", "[n]", name))
            found += [f"{name}: unknown"] if rule is None else self._value(name, value, rule)
        return found

    def _find(self, path: str) -> tuple[str | None, dict[str, str]]:
        literal_first = sorted(self.endpoints, key=lambda pattern: pattern.count("{"))
        for pattern in literal_first:
            names = re.findall(r"\{([^}]+)\}", pattern)
            match = re.fullmatch(re.sub(r"\{[^}]+\}", "([^/]+)", pattern), path)
            if match:
                return pattern, {name: unquote(value) for name, value in zip(names, match.groups(), strict=True)}
        return None, {}

    def _value(self, name: str, value: Any, rule: Mapping[str, Any]) -> list[str]:
        if rule.get("type") == "array":
            items = [value] if isinstance(value, str) else value
            return [fault for item in items for fault in self._value(name, item, rule.get("items", {}))]
        text = str(int(value)) if isinstance(value, bool) else str(value)
        kind = rule.get("type")
        if kind == "integer" and not re.fullmatch(r"-?\d+", text):
            return [f"{name}: {text} is no integer"]
        if kind == "boolean" and text not in ("0", "1", "on", "off", "yes", "no"):
            return [f"{name}: {text} is no boolean"]
        if isinstance(rule.get("enum"), list) and text not in rule["enum"]:
            return [f"{name}: {text} is not among {rule['enum']}"]
        if "pattern" in rule and not re.fullmatch(_perl(rule["pattern"]), text):
            return [f"{name}: {text} does not match {rule['pattern']}"]
        number = float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None
        if number is not None and not rule.get("minimum", number) <= number <= rule.get("maximum", number):
            return [f"{name}: {text} is out of range"]
        return self._format(name, text, rule.get("format"))

    def _format(self, name: str, text: str, form: Any) -> list[str]:
        if isinstance(form, str):
            if form == "urlencoded" and not re.fullmatch(r"([A-Za-z0-9_.~-]|%[0-9A-Fa-f]{2})*", text):
                return [f"{name}: {text} is not percent-encoded"]
            form = self.formats.get(form, {}).get("properties")
        return self._property_string(name, text, form) if isinstance(form, dict) else []

    def _property_string(self, name: str, text: str, parts: Mapping[str, Any]) -> list[str]:
        default = next((part for part, rule in parts.items() if rule.get("default_key")), None)
        found, seen = [], set()
        for word in text.split(","):
            part, equals, value = word.partition("=")
            if not equals:
                if default is None:
                    return [f"{name}: {word} has no key"]
                part, value = default, word
            rule = parts.get(part)
            if rule is not None and "keyAlias" in rule:
                seen.add(rule["keyAlias"])
            if rule is not None and "alias" in rule:
                part = rule["alias"]
                rule = parts[part]
            if rule is None:
                found.append(f"{name}.{part}: unknown")
                continue
            seen.add(part)
            found += self._value(f"{name}.{part}", value, rule)
        missing = [part for part, rule in parts.items() if not rule.get("optional") and "alias" not in rule]
        return found + [f"{name}.{part}: required" for part in missing if part not in seen]


def _perl(pattern: str) -> str:
    """`(?^u:...)` is Perl's way to print a compiled pattern."""
    return re.sub(r"\(\?\^u?:", "(?:", pattern)


@pytest.fixture
def apidoc() -> ApiDoc:
    return ApiDoc(Path(PLACE))
