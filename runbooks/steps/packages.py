"""apt: keys, sources, pins, packages, holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from runbooks import paths
from runbooks.engine.step import Answers, Change, Diff, Question, quote, shell
from runbooks.steps import ask
from runbooks.steps.explain import APT, explained
from runbooks.steps.files import File, make_parents

if TYPE_CHECKING:
    from runbooks.inventory.shape import AptRepository

LOCK_TIMEOUT = 900  # seconds; unattended-upgrades on a fresh cloud image can hold the lock for minutes
KEYRINGS = "/etc/apt/keyrings"
LISTS_STAMP = f"{paths.STATE}/apt-lists"  # its time: when we last fetched the lists
LISTS_AGE = 12 * 60  # minutes after which a mirror may have dropped what our lists name

APT_GET = (
    f"apt-get -y -q -o DPkg::Lock::Timeout={LOCK_TIMEOUT} -o Dpkg::Use-Pty=0 -o APT::Color=0 "
    "-o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold"
)
"""Quiet about configuration files: ours stay, and nothing asks. Waits for the lock instead of failing on it."""

REFRESH = f"""\
if ! [ -e {LISTS_STAMP} ] || [ -n "$(find /etc/apt -newer {LISTS_STAMP} -print | head -n 1)" ] ||
   [ -n "$(find {LISTS_STAMP} -mmin +{LISTS_AGE})" ]; then
  mkdir -p -- {paths.STATE}
  touch -- {LISTS_STAMP}.new
  {APT_GET} update
  mv -f -- {LISTS_STAMP}.new {LISTS_STAMP}
fi"""
"""apt-get update, only when a source, key or pin is newer than the lists, or the lists are old."""

QUIET = """\
set -- apt-daily.timer apt-daily-upgrade.timer
if [ -d /run/systemd/system ]; then
  for rb_timer; do
    shift
    if systemctl -q is-active "$rb_timer"; then set -- "$@" "$rb_timer"; fi
  done
  if [ $# -gt 0 ]; then
    systemctl stop -- "$@"
    rb_timers=$*
    trap 'rb_rc=$?; systemctl start -- $rb_timers || true; rb_why $rb_rc' EXIT
  fi
fi"""
"""apt's own timers do not fire while we install; they run again when we are done, also after a failure.

An upgrade that is under way already is not cut off: apt waits for its lock.
"""


_TIMERS = shell("""\
for timer in apt-daily.timer apt-daily-upgrade.timer; do
  if systemctl -q is-enabled "$timer" 2>/dev/null && ! systemctl -q is-active "$timer"; then echo "$timer"; fi
done""")


@dataclass(frozen=True, kw_only=True)
class TimersRun:
    """apt's timers run again where an installation that stopped them was killed. One that is disabled stays so."""

    id: str = "apt's timers"

    def questions(self) -> tuple[Question, ...]:
        return (_TIMERS,)

    def plan(self, answers: Answers) -> Change | None:
        stopped = str(answers[_TIMERS].get("out") or "").split()
        if not stopped:
            return None
        return Change(
            script=f"systemctl start -- {' '.join(map(quote, stopped))}",
            diff=tuple(Diff(f"{timer} is enabled, and does not run") for timer in stopped),
        )


_OFFICIAL = "https?://[a-z0-9.-]*(debian[.]org|ubuntu[.]com)/(debian-security|debian|ubuntu)"
_SOURCES = "/etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources"


@dataclass(frozen=True, kw_only=True)
class AptMirror:
    """The distribution's own sources ask a mirror: `url` stands for what comes before /debian or /ubuntu."""

    url: str

    @property
    def id(self) -> str:
        return f"mirror {self.url}"

    @property
    def _question(self) -> Question:
        return shell(f"grep -lE '{_OFFICIAL}' {_SOURCES} 2>/dev/null")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Change | None:
        files = str(answers[self._question].get("out") or "").splitlines()
        if not files:
            return None
        expression = quote(f"s#{_OFFICIAL}#{self.url.rstrip('/')}/\\2#g")
        script = "\n".join(f"sed -i -E {expression} -- {quote(path)}" for path in files)
        return Change(script=script, diff=tuple(Diff(f"{path} asks the distribution's servers") for path in files))


@dataclass(frozen=True, kw_only=True)
class AptKey:
    """The key that signs a repository, fetched once; its content is checked where the inventory gives its SHA-256."""

    name: str
    url: str
    sha256: str | None = None
    proxy: str | None = None

    @property
    def id(self) -> str:
        return f"apt key {self.name}"

    @property
    def path(self) -> str:
        """apt tells an ASCII key from a binary one by the file's name alone."""
        ascii_armoured = self.url.endswith((".asc", ".pub", ".key"))
        return f"{KEYRINGS}/{self.name}.{'asc' if ascii_armoured else 'gpg'}"

    def questions(self) -> tuple[Question, ...]:
        return (ask.path(self.path, wanted="="),)

    def plan(self, answers: Answers) -> Change | None:
        state = answers[ask.path(self.path, wanted="=")]
        present = state.get("type") == "file" and bool(state.get("size"))
        if present and self.sha256 in (None, state.get("sha256")):
            return None
        check = f'echo {quote(self.sha256 + "  ")}"$t" | sha256sum -c --quiet -' if self.sha256 else ":"
        proxy = f"--proxy {quote(self.proxy)} " if self.proxy else ""
        script = f"""\
{make_parents(self.path)}
t=$(mktemp {KEYRINGS}/.rb-XXXXXXXX)
trap 'rm -f -- "$t"' EXIT
curl -fsSL --retry 3 --max-time 60 {proxy}-o "$t" -- {quote(self.url)}
[ -s "$t" ]
{check}
chmod -- 0644 "$t"
mv -fT -- "$t" {quote(self.path)}"""
        return Change(script=script, diff=(Diff(f"from {self.url}"),), limit=300)


def apt_source(name: str, repository: AptRepository, key: AptKey, *, url: str) -> File:
    """A deb822 source. `url` is the repository's with {os} and {arch} filled in."""
    lines = ["Types: deb", f"URIs: {url}", f"Suites: {repository.suite}"]
    lines += [f"Components: {' '.join(repository.components)}"] if repository.components else []
    lines += [f"Signed-By: {key.path}"]
    return File(path=f"/etc/apt/sources.list.d/{name}.sources", content="\n".join(lines) + "\n")


@dataclass(frozen=True, kw_only=True)
class OneSource:
    """No second entry for a repository: with another key for the same address apt reads no list at all.

    NVIDIA's cuda-keyring package and its installation guide write one; it is set aside under a name that apt skips.
    """

    path: str  # of our own source file
    content: str

    @property
    def id(self) -> str:
        return f"one entry for {self._url}"

    @property
    def _url(self) -> str:
        return next(line for line in self.content.splitlines() if line.startswith("URIs: ")).removeprefix("URIs: ")

    @property
    def _question(self) -> Question:
        places = "/etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources"
        return shell(f"grep -lF -- {quote(self._url.rstrip('/'))} {places} 2>/dev/null")

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Change | None:
        others = [line for line in str(answers[self._question].get("out") or "").splitlines() if line != self.path]
        if not others:
            return None
        script = "\n".join(f"mv -f -- {quote(path)} {quote(path + '.disabled')}" for path in others)
        return Change(script=script, diff=tuple(Diff(f"{path} names it too: set aside") for path in others))


def apt_pin(name: str, packages: str, version: str, *, why: str) -> File:
    """Priority 1001: apt goes to this version even when that is a downgrade, and stays there."""
    content = f"# {why}\nPackage: {packages}\nPin: version {version}\nPin-Priority: 1001\n"
    return File(path=f"/etc/apt/preferences.d/{name}", content=content)


@dataclass(frozen=True, kw_only=True)
class Packages:
    """Debian packages, each `name` (any version) or `name=version`, where the version may end in `*`.

    `family`: patterns of packages that they bring along. Where somebody holds one of those, apt would find no way; it
    may change now, and is held again as it is then.
    """

    names: tuple[str, ...]
    family: tuple[str, ...] = ()
    recommends: bool = False
    limit: float = 1800.0  # seconds; DKMS compiles the NVIDIA modules in there
    page: str | None = None

    @property
    def id(self) -> str:
        names = [name.partition("=")[0] for name in self.names]
        more = f" and {len(names) - 4} more" if len(names) > 5 else ""
        return f"packages {' '.join(names[:4] if more else names)}{more}"

    def questions(self) -> tuple[Question, ...]:
        return tuple(ask.package(name.partition("=")[0]) for name in self.names)

    def plan(self, answers: Answers) -> Change | None:
        wanted: list[str] = []
        diff: list[Diff] = []
        for spec in self.names:
            name, _, version = spec.partition("=")
            state = answers[ask.package(name)]
            installed = state.get("version") if state.get("status") == "installed" else None
            if installed is None or (version and not fnmatchcase(str(installed), version)):
                wanted.append(spec)
                diff.append(Diff(f"{name} {installed or 'absent'} -> {version or 'installed'}"))
        if not wanted:
            return None
        return Change(
            script=install(wanted, recommends=self.recommends, family=self.family),
            diff=tuple(diff),
            limit=self.limit,
            page=self.page,
        )


def install(specs: Sequence[str], *, recommends: bool = False, family: Sequence[str] = ()) -> str:
    """An interrupted dpkg is finished first (`check` waits for the lock, which dpkg by itself does not)."""
    how = "--install-recommends" if recommends else "--no-install-recommends"
    options = f"{how} --allow-downgrades --allow-change-held-packages"
    command = f"{APT_GET} {options} install -- {' '.join(map(quote, specs))}"
    script = f"""\
{QUIET}
if [ -n "$(dpkg --audit; ls -A /var/lib/dpkg/updates)" ]; then
  {APT_GET} check || dpkg --configure -a --force-confdef --force-confold
fi
{REFRESH}
{_unheld(family, command) if family else command}"""
    return explained(script, APT)


def _unheld(family: Sequence[str], command: str) -> str:
    """--allow-change-held-packages speaks for what the command names, not for what that depends on."""
    patterns = " ".join(map(quote, family))
    look = f"dpkg-query -W -f '${{db:Status-Want}} ${{Package}}\\n' {patterns} 2>/dev/null"
    return f"""\
rb_held=$({look} | sed -n 's/^hold //p')
[ -z "$rb_held" ] || apt-mark -q unhold -- $rb_held
rb_rc=0
{command} || rb_rc=$?
for rb_name in $rb_held; do
  if [ "$(dpkg-query -W -f '${{db:Status-Status}}' "$rb_name" 2>/dev/null)" = installed ]; then
    apt-mark -q hold -- "$rb_name"
  fi
done
[ "$rb_rc" -eq 0 ] || exit "$rb_rc\""""


@dataclass(frozen=True, kw_only=True)
class Absent:
    """Packages that do no good here. Purged, so that their services and configuration go as well."""

    names: tuple[str, ...]
    why: str

    @property
    def id(self) -> str:
        return f"without {self.names[0]}"

    def questions(self) -> tuple[Question, ...]:
        return tuple(map(ask.package, self.names))

    def plan(self, answers: Answers) -> Change | None:
        there = [name for name in self.names if answers[ask.package(name)].get("status") == "installed"]
        if not there:
            return None
        script = explained(
            f"{QUIET}\n{APT_GET} --allow-change-held-packages purge -- {' '.join(map(quote, there))}", APT
        )
        return Change(script=script, diff=tuple(Diff(f"{name} goes: {self.why}") for name in there))


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Packages that no upgrade may touch: held for apt, so for unattended-upgrades too."""

    names: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"hold {' '.join(self.names)}"

    def questions(self) -> tuple[Question, ...]:
        return tuple(map(ask.package, self.names))

    def plan(self, answers: Answers) -> Change | None:
        loose = [name for name in self.names if not answers[ask.package(name)].get("held")]
        if not loose:
            return None
        diff = tuple(Diff(f"{name} held") for name in loose)
        return Change(script=f"apt-mark hold -- {' '.join(map(quote, loose))}", diff=diff)
