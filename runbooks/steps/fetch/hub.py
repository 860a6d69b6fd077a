"""A repository of the hub, by Hugging Face's own `hf download`: its progress is read from the disk, each file checked.

Source of the variables: huggingface_hub's reference, "Environment variables"; of the folder below .cache, its guide
"Download files to a local folder".
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .listing import FetchError, RemoteFile
from .transfer import is_right

ATTEMPTS = 5  # each with the CLI's own repetitions inside
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")  # also where no control group ends with the job
EVERY = 2.0  # seconds between two looks at the disk
_IN_VAIN = r"\b40[134]\b|Gated|NotFound|No space left|quota exceeded|Read-only file system|Permission denied"
_OF_A_DEAD_ONE = re.compile(r"\.[0-9a-f]{8}\.incomplete")  # newer ones never take a partial file up again


def command(places: Sequence[Path]) -> Path:
    """The first `hf` that is there. Raises FetchError."""
    found = next((place for place in places if os.access(place, os.X_OK)), None)
    if found is None:
        where = ", ".join(str(place.parents[2]) for place in places) or "no runtime"
        raise FetchError(f"the Hugging Face CLI is not there ({where}): invoke provision --tags runtime,model")
    return found


class Download:
    """`files` of one commit into `folder`; `settled` is called for each that came and is right."""

    def __init__(
        self, name: str, commit: str, folder: Path, token_file: Path | None, settled: Callable[[RemoteFile], None]
    ) -> None:
        self._name, self._commit, self._folder = name, commit, folder
        self._token_file, self._settled = token_file, settled
        self._wrong: set[str] = set()

    def run(self, hf: Path, files: Sequence[RemoteFile], show: Callable[[int], None]) -> None:
        """`show` gets the bytes of `files` on the disk, every two seconds. Raises FetchError."""
        self._clear()
        waiting, said = list(files), ""
        for attempt in range(1, ATTEMPTS + 1):
            said = self._once(hf, waiting, sum(file.size for file in files), show)
            if not waiting:
                return
            if re.search(_IN_VAIN, said) or attempt == ATTEMPTS:
                break
            print(f"fetch: {said}; again ({attempt} of {ATTEMPTS})", flush=True)
            time.sleep(2.0**attempt)
        raise FetchError(f"{said}; {len(waiting)} files are not there, the first is {waiting[0].path}")

    def _once(self, hf: Path, waiting: list[RemoteFile], total: int, show: Callable[[int], None]) -> str:
        """What the CLI said last, once it has ended; what came and is right is taken out of `waiting`."""
        log = self._folder / ".runbooks" / "hf.log"
        with (
            log.open("wb") as out,
            subprocess.Popen(
                [*_DIES_WITH_US, str(hf), *self._arguments(waiting)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            ) as process,
        ):
            try:
                ended = False
                while not ended:
                    try:
                        process.wait(EVERY)
                        ended = True
                    except subprocess.TimeoutExpired:
                        pass
                    self._settle(waiting)
                    show(total - sum(file.size for file in waiting) + self._partial())
            finally:
                process.kill()
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if re.search(f"Error|{_IN_VAIN}", line)] or lines
        return f"hf download: {told[-1][:300] if told else f'ended with {process.returncode}'}"

    def _arguments(self, waiting: Sequence[RemoteFile]) -> list[str]:
        where = ["--revision", self._commit, "--local-dir", str(self._folder)]
        return ["download", self._name, *where, "--", *(file.path for file in waiting)]

    def _environment(self) -> dict[str, str]:
        """The token is read from its file by the CLI itself; nobody's own login or cache is used or left behind."""
        ours = {
            "HF_HOME": str(self._folder / ".runbooks" / "hf"),
            "HF_TOKEN_PATH": str(self._token_file or os.devnull),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",  # a runtime is never changed
            "NO_COLOR": "1",
        }
        unwanted = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE")
        return {key: value for key, value in os.environ.items() if key not in unwanted} | ours

    def _settle(self, waiting: list[RemoteFile]) -> None:
        """A file appears by a rename, whole; one with the wrong digest comes once more."""
        for file in [file for file in waiting if (self._folder / file.path).is_file()]:
            path = self._folder / file.path
            if is_right(file, path):
                path.chmod(0o644)
                waiting.remove(file)
                self._settled(file)
                continue
            path.unlink()
            if file.path in self._wrong:
                raise FetchError(f"{file.path}: its digest is wrong, twice: the source has another file than it says")
            self._wrong.add(file.path)
            print(f"fetch {file.path}: its digest is wrong, it comes again", flush=True)

    def _clear(self) -> None:
        for path in self._incomplete():
            if _OF_A_DEAD_ONE.search(path.name):
                path.unlink()

    def _partial(self) -> int:
        """Bytes that lie there of files under way; one that is done meanwhile counts in the next look."""
        count = 0
        for path in self._incomplete():
            try:
                count += path.stat().st_size
            except FileNotFoundError:
                continue
        return count

    def _incomplete(self) -> list[Path]:
        return list((self._folder / ".cache" / "huggingface" / "download").rglob("*.incomplete"))
