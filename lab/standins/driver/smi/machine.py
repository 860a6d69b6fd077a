"""What the stand-in reads on its host: which driver is installed, which one is loaded, faults, and what SGLang does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CUDA_OF_BRANCH = {"580": "13.0", "590": "13.1", "595": "13.2"}  # "CUDA Version" of nvidia-smi, by driver branch
MODEL_MIB = 90112  # 88 GiB of a card are taken once a server has loaded its model


@dataclass(frozen=True)
class Machine:
    root: Path = Path("/")

    # -- the driver --------------------------------------------------------------------------------------------------

    def library_version(self) -> str:
        """Of the installed NVML: package libnvidia-ml1 brings the file."""
        return self._text("usr/share/lab-nvidia/nvml-version")

    def loaded_version(self) -> str | None:
        """Of the loaded module: written at boot by lab-nvidia-module.service, as no guest can load a module."""
        return self._text("run/lab-nvidia/version") or None

    def loaded_license(self) -> str:
        return self._text("run/lab-nvidia/license")

    def persistenced_runs(self) -> bool:
        return (self.root / "run/nvidia-persistenced/nvidia-persistenced.pid").exists()

    # -- knobs -------------------------------------------------------------------------------------------------------

    def faults(self) -> Mapping[str, Any]:
        """/etc/lab-gpus.json: count, lost, hang, fields ({"3": {field: value}, "all": {…}})."""
        return self._json("etc/lab-gpus.json")

    def settings(self) -> dict[str, Any]:
        """What `-pm` and `-pl` set; like the real ones, forgotten at a reboot."""
        return dict(self._json("run/lab-nvidia/settings.json"))

    def set(self, **settings: object) -> None:
        path = self.root / "run/lab-nvidia/settings.json"
        path.write_text(json.dumps({**self.settings(), **settings}))

    # -- the server --------------------------------------------------------------------------------------------------

    def running_requests(self) -> int:
        """The simulated SGLang server says how many requests it works on, where its unit lets it write."""
        said = self._json("var/lib/sglang/lab-sglang.json") or self._json("run/lab-sglang.json")
        return int(said.get("running", 0))

    def servers(self) -> list[tuple[int, str]]:
        """Pid and name of the processes that hold GPU memory."""
        found = []
        for folder in (self.root / "proc").glob("[0-9]*"):
            try:
                argv = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it ended while we looked
                continue
            if argv[0].startswith(b"sglang::scheduler") or b"sglang.launch_server" in argv:
                name = argv[0] if argv[0].startswith(b"sglang") else b"sglang::scheduler"
                found.append((int(folder.name), name.decode(errors="replace")))
        return sorted(found)

    def _text(self, path: str) -> str:
        try:
            return (self.root / path).read_text().strip()
        except OSError:
            return ""

    def _json(self, path: str) -> dict[str, Any]:
        text = self._text(path)
        return dict(json.loads(text)) if text else {}
