"""What a text says of the server that it is about: SGLang's version, and the settings that it ran with.

A signature may ask for them, since one line can have another cause under another setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_VERSION = re.compile(
    r"\bsglang[\"']?\s*(?:==|[:=]|\bversion\b|\s)\s*[\"']?v?(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)", re.I
)
_VALUE = r"('[^']*'|\"[^\"]*\"|[\w.+-]+)"
_SETTING = re.compile(rf"['\"]?\b(\w+)['\"]?\s?[=:]\s?{_VALUE}")
_OPTION = re.compile(r"--([a-z][a-z0-9-]+)(?:[= ](?!-)(\S+))?")
_NAMES = {"speculative_algo": "speculative_algorithm", "fp4_gemm_backend": "fp4_gemm_runner_backend"}
_RENAMED = re.compile(r"^nsa_")  # sglang #25821


@dataclass(frozen=True)
class About:
    """`settings` under the newest names. Empty: the text does not say."""

    version: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def has(self, wanted: Mapping[str, str]) -> bool:
        """Every wanted setting is known, and matches its pattern as a whole."""
        return all(
            name in self.settings and re.fullmatch(pattern, self.settings[name], re.I)
            for name, pattern in wanted.items()
        )

    def within(self, since: str, before: str) -> bool:
        """True without limits; with one, the version must be known."""
        if not since and not before:
            return True
        here = _order(self.version)
        return bool(here) and (not since or here >= _order(since)) and (not before or here < _order(before))


def read(text: str) -> About:
    """From `server_args=...` of SGLang's own log, from a command line, and from whatever names its version."""
    version = _VERSION.search(text)
    settings: dict[str, str] = {}
    for line in text.splitlines():
        if "server_args=" in line:
            found = _SETTING.findall(line.partition("server_args=")[2])
        elif "launch_server" in line or "sglang serve" in line:
            found = [(name.replace("-", "_"), value or "true") for name, value in _OPTION.findall(line)]
        else:
            continue
        for name, value in found:
            name = _RENAMED.sub("dsa_", name)
            settings[_NAMES.get(name, name)] = value.strip("'\"")
    return About(version[1] if version else "", settings)


def _order(version: str) -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.?(post|rc)(\d+))?", version)
    if numbers is None:
        return ()
    kind = {"rc": -1, None: 0, "post": 1}[numbers[4]]
    return int(numbers[1]), int(numbers[2]), int(numbers[3]), kind * (int(numbers[5] or 0) + 1)
