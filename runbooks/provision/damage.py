"""A runtime that lost files: which they are, whose they are, and the packages that bring them back.

A package is named by its installed RECORD (PyPA, "Recording installed projects"), or, where that is lost as well, by
its folder NAME-VERSION.dist-info.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runbooks.engine.step import Question, State, quote, shell

FILES = r"LC_ALL=C find . -name __pycache__ -prune -o -type f -printf '%s %P\n' | LC_ALL=C sort"
_GONE = f"{FILES} | LC_ALL=C comm -13 - ../files.txt"
_OWNERS = r"""
sed -e 's,^lib/python3[^/]*/site-packages/,,;t' -e 's,^,../../../,' |
  awk -F , 'NR == FNR { lost[$0]; next }
    $1 in lost { owner[FILENAME]; known[$1] }
    END { for (f in owner) print f; for (n in lost) if (!(n in known)) print n }' \
    - lib/python3*/site-packages/*.dist-info/RECORD |
  sed -e 's,^lib/python3[^/]*/site-packages/,,' -e 's,\.dist-info/.*,,' | LC_ALL=C sort -u"""


@dataclass(frozen=True)
class Damage:
    """`users`: processes that run from it; `lost`: the first of its files; `packages`: NAME==VERSION of all of them,
    empty where one belongs to no package.
    """

    users: str
    lost: tuple[str, ...]
    packages: tuple[str, ...]


def whole(folder: str) -> Question:
    """The processes that run from a runtime that is damaged; then its files that are gone or of another size, two of
    them at most; then, after an empty line, whose they are.

    Nothing where it is whole, or was built before its files were listed.
    """
    script = f"""\
cd -- {quote(folder + "/venv")} 2>/dev/null && [ -e ../files.txt ] || lost=unlisted
[ -n "${{lost-}}" ] || lost=$({_GONE} | cut -d ' ' -f 2-)
[ -n "$lost" ] && [ -d {quote(folder)} ] || exit 0
{{ grep -lsF -- {quote(f" {folder}/venv/")} /proc/[0-9]*/maps | cut -d / -f 3
   grep -sznHE -- {quote(f"^{re.escape(folder)}/venv/")} /proc/[0-9]*/cmdline | tr '\\0' '\\n' |
     sed -n 's,^/proc/\\([0-9]*\\)/cmdline:1:.*,\\1,p'  # the command itself: others have such a path as an argument
}} | sort -un | tr '\\n' ' '
echo
[ "$lost" != unlisted ] || exit 0
printf '%s\\n' "$lost" | head -n 2
echo
printf '%s\\n' "$lost" | {_OWNERS}
"""
    return shell(script, deadline=60)


def read(state: State) -> Damage:
    """What `whole` found."""
    users, _, rest = str(state.get("out") or "").partition("\n")
    lost, _, owners = rest.partition("\n\n")
    found = [re.fullmatch(r"([\w.]+)-([0-9][\w.+!]*)", owner) for owner in owners.split()]
    packages = tuple(f"{match[1].replace('_', '-')}=={match[2]}" for match in found if match)
    return Damage(users.strip(), tuple(lost.split("\n")) if lost else (), packages if all(found) else ())


def repair(folder: str, packages: Sequence[str], install: str, instead: str) -> str:
    """Shell text: `install` puts `packages` over what is left of them, and the list of files judges the whole.

    pip may note otherwise how a package came (REQUESTED), so their own dist-info is not held against them. Where that
    does not do, `instead`.
    """
    names = [f"{name.replace('-', '_')}-{version}" for name, _, version in (word.partition("==") for word in packages)]
    own = " ".join(f"-e {quote(f'/site-packages/{name}.dist-info/')}" for name in names)
    return f"""\
FOLDER={quote(folder)}
umask 022
if {install} && (cd -- "$FOLDER/venv" && ! {{ {_GONE} | grep -vF {own}; }} && {FILES} >../files.new); then
  mv -f -- "$FOLDER/files.new" "$FOLDER/files.txt"
else
echo 'that does not make it whole: it is built again'
{instead}
fi"""
