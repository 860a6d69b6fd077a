"""What adopt makes of a process, and what the shell completes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runbooks.adopt import KEPT_ENVIRONMENT, RELEASE_SETS, Found, differences, inventory_for, read, tell_differences
from runbooks.completion import offer
from runbooks.engine.errors import CheckFailed
from runbooks.engine.report import Reporter
from runbooks.inventory import load
from runbooks.sglang.argv import resolve
from tests.recorder import Recorder

ROOT = Path(__file__).parents[2]
WORDS = [
    *("/srv/v/bin/python", "-m", "sglang.launch_server", "--model-path", "/srv/glm", "--tp", "8", "--port=31000"),
    *("--api-key", "sk-sentinel", "--mem-fraction-static", "0.8", "--served-model-name", "glm"),
]
SAID = {
    "argv": "\0".join(WORDS) + "\0",
    "environ": "PATH=/bin\0NCCL_P2P_DISABLE=1\0HF_TOKEN=hf-sentinel\0SGLANG_API_KEY=sk-sentinel\0",
    "unit": "byhand.service\n",
    "packages": json.dumps({"sglang": "0.5.23", "torch": "2.13.0", "pip": "1"}),
    "gpus": "NVIDIA RTX PRO 6000, 570.1, 97887\n" * 8,
}


@pytest.fixture
def found() -> Found:
    return read(SAID, "glm5-a")


def test_what_runs_is_read_without_its_secrets(found: Found) -> None:
    assert found.args["tp_size"] == 8
    assert found.args["mem_fraction_static"] == 0.8
    assert dict(found.env) == {"NCCL_P2P_DISABLE": "1"}
    assert (found.driver, len(found.gpus), found.version) == ("570.1", 8, "0.5.23")
    assert "sentinel" not in repr(found)
    assert found.key is not None
    assert found.key.reveal() == "sk-sentinel"


def test_the_inventory_that_is_written_loads(found: Found, tmp_path: Path) -> None:
    base = load(ROOT / "inventory.yaml")
    path = tmp_path / "adopted.yaml"
    path.write_text(yaml.safe_dump(inventory_for(base.document.value, "glm5-a", found)))
    assert "sentinel" not in path.read_text()
    adopted = load(path).inventory
    assert adopted.profiles["adopted"].args["tp_size"] == 8
    assert (adopted.server.port, adopted.driver.version) == (31000, "570.1")
    rows = {row[0]: row[1:] for row in differences(found, base.inventory)}
    assert rows["driver"][0] == "570.1"
    assert "mem_fraction_static" in rows


@pytest.mark.parametrize(
    ("words", "more", "written"),
    [
        (WORDS, {}, {"env": "SGLANG_API_KEY"}),
        ([word for word in WORDS if word not in ("--api-key", "sk-sentinel")], {}, "open"),
        (
            WORDS[:-4],
            {"words": '["--model-path", "/srv/glm"]', "keyed": "yes\n"},
            {"file": "secrets/api-key", "generate": True},
        ),
    ],
    ids=["as an argument", "none", "a release of ours"],
)
def test_its_key_is_neither_lost_nor_made_up(words: list[str], more: dict[str, str], written: object) -> None:
    base = load(ROOT / "inventory.yaml")
    found = read({**SAID, "argv": "\0".join(words) + "\0", **more}, "glm5-a")
    assert inventory_for(base.document.value, "glm5-a", found)["server"]["api_key"] == written
    told = [row[1] for row in differences(found, base.inventory) if row[0] == "API key"]
    assert told == (["none: whoever reaches 127.0.0.1:31000 may ask"] if written == "open" else [])


def test_what_a_release_of_ours_sets_and_how_a_number_is_written_are_no_differences() -> None:
    base = load(ROOT / "inventory.yaml")
    wanted = resolve(base.inventory.profiles, "final")
    template = (ROOT / "templates/sglang.env.j2").read_text()
    sets = {name for pair in re.findall(r'^([A-Z_]+)=|"([A-Z_]+)": "', template, re.MULTILINE) for name in pair if name}
    assert {name for name in sets if KEPT_ENVIRONMENT.match(name)} == RELEASE_SETS
    own = {name: f"/opt/runbooks/runtimes/x/cache/{name}" for name in RELEASE_SETS} | {"HF_HUB_OFFLINE": "1"}
    env = {**base.inventory.runtimes[base.inventory.runtime].env, **wanted.env, **own, "NCCL_DEBUG": "INFO"}
    environ = "".join(f"{name}={value}\0" for name, value in env.items())
    argv = json.dumps(["--model-path", "/srv/glm", "--watchdog-timeout", "1800"])
    ours = read({**SAID, "words": argv, "keyed": "yes\n", "environ": environ}, "glm5-a")
    rows = {row[0]: row[1:] for row in differences(ours, base.inventory)}
    assert {name for name in rows if name.startswith("env ")} == {"env NCCL_DEBUG"}
    assert "watchdog_timeout" not in rows
    assert wanted.args["watchdog_timeout"] == 1800
    assert inventory_for(base.document.value, "glm5-a", ours)["profiles"]["adopted"]["env"].keys().isdisjoint(own)


def test_a_host_without_a_server_says_so() -> None:
    with pytest.raises(CheckFailed, match="no SGLang server runs"):
        read({"gpus": ""}, "glm5-a")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["health", "--hosts"], "glm5-a"),
        (["health", "--hosts", "gl"], "glm5-a"),
        (["deploy", "--profile"], "final"),
        (["runbook", "nan"], "nan-output"),
        (["adopt"], "glm5-a"),
    ],
)
def test_values_are_completed(words: list[str], offered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert offered in (offer(["invoke", *words]) or [])


ASK = """\
source <(invoke --print-completion-script bash)
function=$(complete -p invoke | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}
"$function" invoke "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.served
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("invoke health --hosts ", "glm5-a"),
        ("invoke health --hosts gl", "glm5-a"),
        ("invoke deploy --profile fi", "final"),
        ("invoke runbook nan-o", "nan-output"),
        ("invoke adopt ", "glm5-a"),
        ("invoke prov", "provision"),
        ("invoke provision --ser", "--serial"),
    ],
)
def test_a_real_shell_completes(line: str, offered: str) -> None:
    words = " ".join(f"'{word}'" for word in line.split(" "))
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = ASK.format(words=words, line=line)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env, cwd=ROOT, check=False)
    assert offered in done.stdout.split(), done.stdout + done.stderr


def test_what_invoke_completes_is_left_to_it() -> None:
    assert offer(["invoke", "prov"]) is None
    assert offer(["invoke"]) is None
    assert offer(["invoke", "health", "--hosts", "--inventory", "/none"]) is None


def test_that_nothing_differs_is_said_and_no_table_without_rows_is_shown() -> None:
    same, other = Recorder(), Recorder()
    tell_differences(Reporter(same), "glm5-a", [])
    tell_differences(Reporter(other), "glm5-a", [["driver", "1", "2"]])
    assert [(event.kind, event.text) for event in same.events] == [("note", "nothing differs from final")]
    assert [event.kind for event in other.events] == ["table"]
