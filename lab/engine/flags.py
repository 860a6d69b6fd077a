"""Reads SGLang's own argument parser, of any published version, without a GPU: to make flag tables and to check them.

    python -m lab.engine.flags 0.5.24            what differs from the newest table
    python -m lab.engine.flags 0.5.24 --write    and into runbooks/sglang/flags.json, as one more version

The wheel is unpacked, not installed: the engine's environment has what every version's parser imports.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.engine.prepared import ENVIRONMENT, prepare
from lab.machine import cache
from runbooks.engine.errors import RunbookError
from runbooks.sglang import flags

TABLES = Path(flags.__file__).parent / "flags.json"
CONTENT = ("options", "dest", "kind", "type", "choices", "nargs", "default", "required", "deprecated")

_READ = """\
import argparse, json, sys
try:  # a release registers models that the transformers of this environment, being newer, has by itself
    from transformers.models.auto.configuration_auto import _LazyConfigMapping as models
    register = models.register
    models.register = lambda self, key, value, exist_ok=False: register(self, key, value, exist_ok=True)
except (ImportError, AttributeError):
    pass
from sglang.srt import server_args
asked = json.load(sys.stdin)
KINDS = {"_StoreAction": "store", "_StoreTrueAction": "flag", "BooleanOptionalAction": "bool",
         "DeprecatedStoreTrueAction": "flag", "DeprecatedStoreConstAction": "const", "DeprecatedAction": "ignored",
         "DeprecatedAliasStoreAction": "store", "DeprecatedAliasAction": "store"}

def line(action):
    name = type(action).__name__
    kind = KINDS.get(name, "store")
    typed = getattr(action.type, "__name__", None)
    found = {"options": list(action.option_strings), "dest": action.dest, "kind": kind}
    if typed and typed != "str":
        found["type"] = typed
    if action.choices:
        numbers = all(isinstance(one, int) for one in action.choices)
        found["choices"] = sorted(action.choices, key=None if numbers else str)
    if kind == "store" and action.nargs is not None:
        found["nargs"] = action.nargs
    plain = isinstance(action.default, (str, int, float, bool, list)) and action.default != argparse.SUPPRESS
    if plain and (action.default or kind == "store") and action.default is not False:
        found["default"] = action.default
    if action.required:
        found["required"] = True
    said = (action.help or "").lower().lstrip("[(")
    if name.startswith("Deprecated") or action.default == argparse.SUPPRESS or said.startswith("deprecated"):
        found["deprecated"] = True
    return found

class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(message)

parser = Parser(prog="launch_server.py", add_help=False)
server_args.ServerArgs.add_cli_args(parser)
refused = []
for words in asked:
    try:
        parser.parse_args(words)
        refused.append(None)
    except (ValueError, argparse.ArgumentError) as error:
        refused.append(str(error))
sys.stdout.write("\\n" + json.dumps({"arguments": [line(action) for action in parser._actions], "refused": refused}))
"""


def read(version: str, asked: Sequence[Sequence[str]] = ()) -> tuple[list[dict[str, Any]], list[str | None]]:
    """The arguments that a version declares, and what its parser says of each command line (None: it takes it)."""
    answer = ask(version, _READ, asked, what="the parser of SGLang", environment=ENVIRONMENT, timeout=300)
    return answer["arguments"], answer["refused"]


def ask(
    version: str,
    code: str,
    command_lines: Sequence[Sequence[str]],
    *,
    what: str,
    environment: Mapping[str, str],
    timeout: float,
) -> Any:
    """Run `code` beside a version's sources; it reads the command lines as JSON, and its last line is JSON again.

    `timeout` is in seconds. Raises RunbookError with the last lines of stderr: `what` does not load.
    """
    engine = prepare(lambda _text: None)
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [str(engine.python), "-c", code],
            input=json.dumps([list(words) for words in command_lines]),
            env={**os.environ, **environment, "PYTHONPATH": str(source(version))},
            cwd=empty,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    if done.returncode != 0:
        raise RunbookError(f"{what} {version} does not load", details=done.stderr.splitlines()[-4:])
    return json.loads(done.stdout.splitlines()[-1])


def source(version: str) -> Path:
    """The wheel of a version of SGLang, unpacked once into the cache."""
    return unpacked("sglang", version, cache() / "engine" / f"source-{version}")


def wheel(version: str) -> Path:
    """A folder of the cache with the wheel of a version of SGLang and nothing else; 5 to 40 MB to download, once."""
    folder = cache() / "engine" / f"wheel-{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _download("sglang", version, Path(scratch) / "whole").parent.rename(folder)
    return folder


def unpacked(package: str, version: str, folder: Path) -> Path:
    """A wheel without its dependencies, unpacked once: for PYTHONPATH."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            with zipfile.ZipFile(_download(package, version, Path(scratch))) as archive:
                archive.extractall(Path(scratch) / "whole")
            (Path(scratch) / "whole").rename(folder)
    return folder


def _download(package: str, version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--python-version=3.11"]
    command += ["--only-binary=:all:", f"--dest={folder}", f"{package}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        newest = re.findall(r"from versions: .*?([^ ,]+)\)", done.stderr)  # pip lists all that there are
        details = [f"the newest is {newest[0]}"] if newest else done.stderr.splitlines()[-2:]
        raise RunbookError(f"there is no wheel of {package} {version}", details=details)
    (found,) = folder.glob("*.whl")
    return found


def of_table(version: str) -> list[dict[str, Any]]:
    """What flags.json says of a version, in the form of `read`."""
    data = json.loads(TABLES.read_text())
    order = {one: index for index, one in enumerate(data["versions"])}
    at = order[version]
    inside = [line for line in data["arguments"] if order[line["from"]] <= at <= order[line["to"]]]
    return [content(line) for line in inside]


def content(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: line[key] for key in CONTENT if key in line}


def differences(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[str]:
    """In words, an option a line."""
    before, after = ({line["options"][0]: content(line) for line in lines} for lines in (old, new))
    lines = [f"gone: {option}" for option in sorted(before.keys() - after.keys())]
    lines += [f"new: {option} {_short(after[option])}" for option in sorted(after.keys() - before.keys())]
    for option in sorted(before.keys() & after.keys()):
        was, now = before[option], after[option]
        changed = [key for key in CONTENT if was.get(key) != now.get(key)]
        lines += [f"changed: {option} {key}: {was.get(key)} -> {now.get(key)}" for key in changed]
    return lines


def merged(data: Mapping[str, Any], version: str, arguments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The tables with one more, newest version: a line that did not change grows, the others begin anew."""
    last = data["versions"][-1]
    new = {json.dumps(content(line), sort_keys=True): line for line in arguments}
    lines = []
    for line in data["arguments"]:
        same = line["to"] == last and new.pop(json.dumps(content(line), sort_keys=True), None) is not None
        lines.append({**line, "to": version} if same else line)
    lines += [{"from": version, "to": version, **content(line)} for line in new.values()]
    lines.sort(key=lambda line: line["options"][0])
    return {"versions": [*data["versions"], version], "arguments": lines}


def dump(data: Mapping[str, Any]) -> str:
    """As the file stands: one argument a line."""
    compact = (",", ":")
    rows = ",\n".join(json.dumps(line, separators=compact) for line in data["arguments"])
    return f'{{"versions":{json.dumps(data["versions"], separators=compact)},\n"arguments":[\n{rows}\n]}}\n'


def _short(line: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {line[key]}" for key in ("kind", "type", "choices", "default") if key in line)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.engine.flags", description=__doc__.splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("--write", action="store_true", help="add it to runbooks/sglang/flags.json")
    options = parser.parse_args()
    data = json.loads(TABLES.read_text())
    try:
        arguments, _ = read(options.version)
    except RunbookError as error:
        print(error)
        return 1
    known = options.version in data["versions"]
    against = options.version if known else data["versions"][-1]
    lines = differences(of_table(against), arguments)
    print("\n".join([f"SGLang {options.version}, {len(arguments)} arguments, against the table of {against}:", *lines]))
    if options.write and not known:
        TABLES.write_text(dump(merged(data, options.version, arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
