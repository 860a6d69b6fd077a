"""A model's files on the disk: fetched as a followed job, and known to be whole by one stat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runbooks.engine.artefact import build_zipapp
from runbooks.engine.secret import Secret
from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, quote, shell
from runbooks.steps.checks import free_space, human, read_free_space

FETCH = "runbooks.steps.fetch"
DAYS = 2 * 24 * 3600.0  # seconds; 441 GB at 20 MB/s take six hours


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """The way from one host to another: a key of its own, and the host keys that are trusted; both read when needed."""

    key: Callable[[], Secret] | None = None
    known_hosts: Callable[[], bytes] | None = None

    def shell(self) -> str:
        """Text that sets FETCH_SSH, for a job with these uploads. ssh reads no key whose last line has no end."""
        key = "-i $UPLOADS/ssh-key -o IdentitiesOnly=yes" if self.key is not None else ""
        trusted = "-o UserKnownHostsFile=$UPLOADS/known_hosts" if self.known_hosts is not None else ""
        options = "-o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=30 -o ServerAliveInterval=15"
        end = 'echo >>"$UPLOADS/ssh-key"\n' if self.key is not None else ""
        return f'{end}export FETCH_SSH="ssh {key} {trusted} {options}"\n'

    def uploads(self) -> dict[str, Secret | bytes]:
        parts = {"ssh-key": self.key, "known_hosts": self.known_hosts}
        return {name: read() for name, read in parts.items() if read is not None}


NO_SSH = Ssh()
"""root's own keys on the host."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """Every file that a source lists, whole. Resumes what was begun, and fetches again what was lost.

    `size` in bytes is what the inventory expects; the exact figure comes from the source once the job runs.
    """

    source: str
    path: str
    size: float
    revision: str = "main"
    token: Callable[[], Secret] | None = None  # read when something must come, not before
    proxy: str | None = None
    endpoint: str | None = None  # a mirror of the hub
    hub_cli: tuple[str, ...] = ()  # where `hf` may be; the first that is there downloads from the hub
    ssh: Ssh = NO_SSH  # to a source on another host

    @property
    def id(self) -> str:
        return f"download {self.path}"

    @property
    def _identity(self) -> str:
        return f"{self.source} {self.revision}"

    @property
    def _question(self) -> Question:
        """Its identity, whether every file has the size and time it had when its digest was checked (old marks have no
        times), and the bytes there."""
        return shell(f"""\
cd -- {quote(self.path)} 2>/dev/null || exit 0
head -n 1 .runbooks/identity 2>/dev/null || echo -
if xargs -0 stat -c '%s %n' -- <.runbooks/files 2>/dev/null | cmp -s - .runbooks/sizes &&
  {{ [ ! -e .runbooks/times ] || xargs -0 stat -c '%Y %n' -- <.runbooks/files | cmp -s - .runbooks/times; }}
then echo whole
else du -sk . | cut -f 1; fi""")

    def questions(self) -> tuple[Question, ...]:
        return (self._question, free_space(self.path))

    def plan(self, answers: Answers) -> Change | Verdict | None:
        identity, _, there = str(answers[self._question].get("out") or "-\n0").partition("\n")
        if (identity, there) == (self._identity, "whole"):
            return None
        have = int(there) * 1024 if there.isdigit() else 0
        free, mount = read_free_space(answers[free_space(self.path)])
        if free + have < self.size:
            return Verdict(
                ok=False,
                line=f"{human(self.size)} to download, {human(free)} free on {mount}",
                details=(f"{human(have)} of it are there",) if have else (),
                next=f"df -h {mount}; du -xsh {quote(mount)}/*   (or give the model another `path` in the inventory)",
                page="disk-full",
            )
        diff = [Diff(f"{self._identity}, {human(self.size)}")]
        if have:
            diff.append(Diff(f"{human(have)} are there; what is missing comes, what is there is kept"))
        script = self._script()
        return Change(script=script, diff=tuple(diff), limit=DAYS, uploads=self._uploads(), page="model-download")

    def _script(self) -> str:
        token = ' --token-file "$UPLOADS/token"' if self.token is not None else ""
        hf = "".join(f" --hf {quote(place)}" for place in self.hub_cli) if self.source.startswith("hf:") else ""
        return f"""\
{self._environment()}umask 022
mkdir -p -- {quote(self.path)}
python3 "$UPLOADS/fetch.pyz" --source {quote(self.source)} --revision {quote(self.revision)} \\
  --into {quote(self.path)} --identity {quote(self._identity)}{token}{hf}"""

    def _environment(self) -> str:
        lines = []
        if self.proxy:
            lines.append(f"export http_proxy={quote(self.proxy)} https_proxy={quote(self.proxy)}")
        if self.endpoint:
            lines.append(f"export HF_ENDPOINT={quote(self.endpoint)}")
        return "".join(f"{line}\n" for line in lines) + (self.ssh.shell() if self._is_remote else "")

    @property
    def _is_remote(self) -> bool:
        return self.source.startswith("ssh:")

    def _uploads(self) -> Mapping[str, Secret | bytes]:
        fetch: dict[str, Secret | bytes] = {"fetch.pyz": build_zipapp(FETCH, "main:main")}
        token = {"token": self.token()} if self.token is not None else {}
        return fetch | token | (self.ssh.uploads() if self._is_remote else {})
