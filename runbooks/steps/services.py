"""systemd units and accounts."""

from __future__ import annotations

from dataclasses import dataclass

from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, quote
from runbooks.steps import ask

_ON = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A systemd unit enabled or not, active or not; None leaves that as it is."""

    name: str
    enabled: bool | None = None
    active: bool | None = None
    optional: bool = False  # True: a unit that does not exist is as good as one that is off

    @property
    def id(self) -> str:
        return f"unit {self.name}"

    def questions(self) -> tuple[Question, ...]:
        return (ask.unit(self.name),)

    def plan(self, answers: Answers) -> Change | Verdict | None:
        state = answers[ask.unit(self.name)]
        if self.optional and state.get("load") in (None, "not-found"):
            return None
        verbs, diff = [], []
        if state.get("reload") == "yes":
            verbs.append("daemon-reload")
            diff.append(Diff("read again from disk"))
        word = quote(self.name)
        if self.enabled is not None and (state.get("enabled") in _ON) != self.enabled:
            verbs.append(f"{'enable' if self.enabled else 'disable'} -- {word}")
            diff.append(Diff(f"{state.get('enabled') or 'not there'} -> {'enabled' if self.enabled else 'disabled'}"))
        if self.active is not None and (state.get("active") in ("active", "activating", "reloading")) != self.active:
            verbs.append(f"{'restart' if self.active else 'stop'} -- {word}")
            diff.append(Diff(f"{state.get('active') or 'not there'} -> {'active' if self.active else 'inactive'}"))
        if not verbs:
            return None
        script = "\n".join(f"systemctl {verb}" for verb in verbs)
        return Change(script=script, diff=tuple(diff), limit=300, next=f"journalctl -u {self.name} -n 50")


@dataclass(frozen=True, kw_only=True)
class User:
    """A system account without a password, and in these groups (it may be in more)."""

    name: str
    home: str
    groups: tuple[str, ...] = ()
    shell: str = "/usr/sbin/nologin"

    @property
    def id(self) -> str:
        return f"user {self.name}"

    def questions(self) -> tuple[Question, ...]:
        return (ask.user(self.name),)

    def plan(self, answers: Answers) -> Change | None:
        state = answers[ask.user(self.name)]
        name = quote(self.name)
        if state.get("uid") is None:
            groups = f"-G {quote(','.join(self.groups))} " if self.groups else ""
            add = f"useradd --system --user-group -d {quote(self.home)} -s {quote(self.shell)} {groups}-- {name}"
            script = f"getent passwd {name} >/dev/null || {add}"  # an earlier run's job may have come first
            return Change(script=script, diff=(Diff(f"new, home {self.home}, groups {', '.join(self.groups) or '-'}"),))
        options, diff = [], []
        for key, flag, wanted in (("home", "-d", self.home), ("shell", "-s", self.shell)):
            if state[key] != wanted:
                options.append(f"{flag} {quote(wanted)}")
                diff.append(Diff(f"{key} {state[key]} -> {wanted}"))
        missing = [group for group in self.groups if group not in str(state["groups"]).split(",")]
        if missing:
            options.append(f"-a -G {quote(','.join(missing))}")
            diff.append(Diff(f"into {', '.join(missing)}"))
        return Change(script=f"usermod {' '.join(options)} -- {name}", diff=tuple(diff)) if diff else None
