"""The play that all are given: 10 packages, 10 directories, 40 templates, 5 lines, 2 users, 2 services (60 steps).

`copies` repeats directories, templates, lines and users, for the growth from 60 to 600 steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import jinja2

from runbooks.engine.facts import Facts
from runbooks.engine.step import Stage, Step
from runbooks.steps.files import Directory, File, Line
from runbooks.steps.packages import Packages
from runbooks.steps.services import Unit, User

ROOT = "/etc/bench"
PACKAGES = ("tree", "less", "bc", "file", "jq", "rsync", "psmisc", "lsof", "patch", "unzip")
SERVICES = ("ssh", "systemd-networkd")
TEMPLATE = """\
# managed
[service]
name = {{ title }}
port = {{ port }}
{% for peer in peers %}peer = {{ peer }}
{% endfor %}"""


@dataclass(frozen=True)
class Play:
    copies: int = 1

    @property
    def directories(self) -> list[str]:
        return [f"{ROOT}/d{number}" for number in range(10 * self.copies)]

    @property
    def templates(self) -> dict[str, dict[str, object]]:
        return {
            f"{self.directories[number % len(self.directories)]}/t{number}.conf": {
                "title": f"service-{number}",
                "port": 8000 + number,
                "peers": [f"10.0.0.{peer}" for peer in range(5)],
            }
            for number in range(40 * self.copies)
        }

    @property
    def lines(self) -> dict[str, str]:
        return {f"{ROOT}/line{number}": f"option_{number} = yes" for number in range(5 * self.copies)}

    @property
    def users(self) -> list[str]:
        return [f"bench{number}" for number in range(2 * self.copies)]

    def stages(self, _facts: Facts) -> Sequence[Stage]:
        template = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True).from_string(
            TEMPLATE
        )
        steps: list[Step] = [Packages(names=PACKAGES)]
        steps += [Directory(path=path) for path in [ROOT, *self.directories]]
        steps += [File(path=path, content=template.render(values)) for path, values in self.templates.items()]
        steps += [Line(path=path, line=line, owns=re.escape(line.split()[0])) for path, line in self.lines.items()]
        steps += [User(name=name, home="/nonexistent") for name in self.users]
        steps += [Unit(name=f"{name}.service", enabled=True, active=True) for name in SERVICES]
        return [Stage("play", tuple(steps))]

    @property
    def reset(self) -> str:
        """Back to where none of it is there; apt's lists stay."""
        users = "\n".join(f"userdel {name} 2>/dev/null" for name in self.users)
        return (
            f"export DEBIAN_FRONTEND=noninteractive\napt-get -qq -y purge {' '.join(PACKAGES)} >/dev/null 2>&1\n"
            f"apt-get -qq -y autoremove --purge >/dev/null 2>&1\n{users}\n"
            f"rm -rf {ROOT} /var/lib/runbooks /opt/runbooks /run/runbooks.lock\ntrue\n"
        )

    @property
    def shell_script(self) -> str:
        """The same from scratch, as a careful person would write it by hand."""
        template = jinja2.Environment(keep_trailing_newline=True).from_string(TEMPLATE)
        parts = [
            "set -e\nexport DEBIAN_FRONTEND=noninteractive\napt-get -q update",
            f"apt-get -q -y install --no-install-recommends {' '.join(PACKAGES)}",
            f"mkdir -p {' '.join(self.directories)}",
        ]
        parts += [f"cat >{path} <<'END'\n{template.render(v).rstrip()}\nEND" for path, v in self.templates.items()]
        parts += [
            f"grep -qxF '{line}' {path} 2>/dev/null || echo '{line}' >>{path}" for path, line in self.lines.items()
        ]
        parts += [
            f"id {name} >/dev/null 2>&1 || useradd -r -U -d /nonexistent -s /usr/sbin/nologin {name}"
            for name in self.users
        ]
        parts += [f"systemctl enable --now {name}" for name in SERVICES]
        return "\n".join(parts) + "\n"
