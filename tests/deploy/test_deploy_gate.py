"""The gate's three ends, each from the unit's state and its own journal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from runbooks.deploy import probe
from runbooks.deploy.gate import Endpoint, Start, wait
from runbooks.engine.errors import NoAnswer
from runbooks.engine.secret import Secret
from tests.deploy.deploy_fake import FakeHost, silent

DATA = Path(__file__).parent / "data"
AT = Endpoint("127.0.0.1", 30000, "glm-5", Secret("sk-gate-secret"))
READY = [
    "Load weight begin",
    "Capturing batches:  25%|##  | 3/12 [00:01]",
    "Uvicorn running on x",
    "The server is fired up",
]


def _look(state: str, sub: str, invocation: str, lines: list[str], cursor: str = "s=1", job: str = "") -> str:
    unit = f"ActiveState={state}\nSubState={sub}\nMainPID=7\nInvocationID={invocation}\n"
    unit += f"Job={job}\n" if job else ""
    journal = "\n".join([*lines, f"-- cursor: {cursor}"]) if lines else ""
    return f"-- rb: unit\n{unit}-- rb: journal\n{journal}\n"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def _wait(looks: list[str], completions: list[dict[str, object]], *, budget: float = 100.0) -> tuple[Start, FakeHost]:
    left, answers = list(looks), list(completions)
    host = FakeHost(
        [
            ("systemctl show -p ActiveState", lambda script, stdin: left.pop(0) if len(left) > 1 else left[0]),
            ("python3 -c", lambda script, stdin: json.dumps(answers.pop(0) if len(answers) > 1 else answers[0])),
            ("journalctl -k", ""),
        ]
    )
    clock = Clock()
    report, _ = silent()
    start = wait(host.conn, AT, before="old", budget=budget, report=report, clock=clock, sleep=clock.sleep)
    return start, host


def test_healthy_is_a_real_completion_and_not_before_it_listens() -> None:
    looks = [
        _look("deactivating", "stop-sigterm", "old", []),
        _look("active", "running", "new", READY[:2]),
        _look("active", "running", "new", READY[2:]),
    ]
    start, host = _wait(looks, [{"status": 503, "error": "loading"}, {"status": 200, "text": "4", "finish": "stop"}])
    assert (start.end, start.text, start.seconds) == ("healthy", "4", 3.0)
    assert start.journal[: len(READY)] == READY
    assert sum("python3 -c" in script for script in host.asked) == 2


def test_what_ran_before_systemd_did_what_it_was_asked_for_is_not_the_new_one() -> None:
    """A crash, or the host itself, had started the old one again after the look: it ends, and that is no death."""
    looks = [
        _look("active", "running", "again", [], job="71"),
        _look("deactivating", "stop-sigterm", "again", [], job="71"),
        _look("inactive", "dead", "again", [], job="71"),
        _look("active", "running", "new", READY),
    ]
    start, _ = _wait(looks, [{"status": 200, "text": "4"}])
    assert (start.end, start.invocation, start.seconds) == ("healthy", "new", 3.0)


def test_a_start_that_waits_for_what_comes_before_it_is_not_dead() -> None:
    """Device nodes, the network: systemd keeps the start until they are there."""
    start, _ = _wait([_look("inactive", "dead", "", [], job="71")], [{"status": 0}], budget=60.0)
    assert (start.end, start.cause) == ("budget", None)


def test_the_key_is_on_stdin_and_in_no_script() -> None:
    seen: list[bytes] = []

    def answer(script: str, stdin: bytes) -> str:
        seen.append(stdin)
        return '{"status": 200, "text": "4"}'

    host = FakeHost([("systemctl show", _look("active", "running", "new", READY)), ("python3 -c", answer)])
    report, _ = silent()
    wait(host.conn, AT, before="old", budget=5, report=report, sleep=lambda _: None)
    assert json.loads(seen[0])["key"] == "sk-gate-secret"
    assert not [script for script in host.asked if "sk-gate-secret" in script]


@pytest.mark.parametrize(
    ("state", "sub", "invocation"),
    [("failed", "failed", "new"), ("activating", "auto-restart", "new"), ("active", "running", "newer")],
    ids=["failed", "systemd will start it again", "systemd has started it again"],
)
def test_died_is_seen_at_once_with_its_cause(state: str, sub: str, invocation: str) -> None:
    lines = ["Load weight begin", "launch_server.py: error: unrecognized arguments: --nsa-decode-backend"]
    looks = [_look("active", "running", "new", lines[:1]), _look(state, sub, invocation, lines[1:], "s=2")]
    start, host = _wait(looks, [{"status": 0}])
    assert start.end == "died"
    assert start.seconds == 1.0
    assert start.cause is not None
    assert any("--nsa-decode-backend" in line for line in start.cause.evidence)
    assert host.asked[-1].startswith("journalctl -k")


def test_the_old_servers_end_is_no_death_of_the_new_one() -> None:
    looks = [_look("failed", "failed", "old", []), _look("active", "running", "new", READY)]
    start, _ = _wait(looks, [{"status": 200, "text": "4"}])
    assert start.end == "healthy"


def test_a_unit_that_was_never_started_again_is_dead_after_half_a_minute() -> None:
    start, _ = _wait([_look("failed", "failed", "old", [])], [{"status": 0}])
    assert start.end == "died"
    assert 30 < start.seconds < 40


def test_a_busy_old_server_that_takes_its_time_to_end_costs_the_new_one_none_of_its_budget() -> None:
    ending = [_look("deactivating", "stop-sigterm", "old", [])] * 100
    start, _ = _wait([*ending, _look("active", "running", "new", READY)], [{"status": 200, "text": "4"}], budget=20)
    assert (start.end, start.seconds) == ("healthy", 100.0)


def test_slow_but_alive_is_left_alone_until_the_budget_is_spent() -> None:
    start, _ = _wait([_look("active", "running", "new", READY[:2])], [{"status": 0}], budget=60)
    assert start.end == "budget"
    assert start.phase == "capturing graphs 3 of 12"
    assert 60 < start.seconds < 63


def test_an_answer_that_hangs_is_asked_again() -> None:
    host = FakeHost(
        [
            ("systemctl show", _look("active", "running", "new", READY)),
            ("python3 -c", NoAnswer("no answer within 30 s", host="glm5-a")),
        ]
    )
    clock = Clock()
    report, _ = silent()
    start = wait(host.conn, AT, before="old", budget=3, report=report, clock=clock, sleep=clock.sleep)
    assert (start.end, start.last_answer) == ("budget", "no answer within 30 s")


@pytest.mark.parametrize(
    ("journal", "kernel", "cause"),
    [
        ("nan-0.5.23.txt", "", "nan"),
        ("weights-unreadable-0.5.10.post1.txt", "", "weights-unreadable"),
        ("nan-0.5.23.txt", "Out of memory: Killed process 812 (sglang::schedul)", "oom-kill"),
        ("ERROR: [Errno 98] error while attempting to bind on address: address already in use", "", "port-in-use"),
        ("sglang serve: error: unrecognized arguments: --nsa-decode-backend trtllm", "", "renamed-flag"),
    ],
)
def test_deaths_that_all_look_like_status_9_are_told_apart(journal: str, kernel: str, cause: str) -> None:
    """Two journals are of real SGLang on real weights: NaN in them, and weights that its user may not read."""
    lines = (DATA / journal).read_text().splitlines() if journal.endswith(".txt") else [journal]
    host = FakeHost([("systemctl show", _look("failed", "failed", "new", lines)), ("journalctl -k", kernel)])
    report, _ = silent()
    start = wait(host.conn, AT, before="old", budget=5, report=report, sleep=lambda _: None)
    assert start.end == "died"
    assert start.cause is not None
    assert start.cause.name == cause


def test_what_the_server_says_of_itself_reaches_us_without_the_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang shows it in /server_info, under its own name and inside other values."""
    key = 'sk-"quoted"-key'
    shown = {"api_key": key, "model_path": "/srv/m", "args": {"argv": f"--api-key {key}"}, "internal_states": [key]}
    question = {"url": "http://x", "key": key, "model": "glm-5", "ask": "info", "timeout": 1}
    monkeypatch.setattr(probe, "get", lambda _question, _path: (200, json.dumps(shown)))
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(question)))
    probe.main()
    out = capsys.readouterr().out
    assert json.loads(out)["info"] == {"model_path": "/srv/m", "args": {"argv": "--api-key ***"}}
    assert "quoted" not in out


def test_a_port_that_is_taken_ends_the_start_at_once() -> None:
    """SGLang then neither serves nor ends."""
    line = "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use"
    start, _ = _wait([_look("active", "running", "new", ["Load weight begin", line])], [{"status": 0}])
    assert start.end == "died"
    assert start.cause is not None
    assert "address already in use" in start.cause.evidence[0]


def test_a_host_that_was_restarted_is_an_end_of_its_own() -> None:
    def boot(name: str) -> str:
        return f"-- rb: boot\n{name}\n" + _look("active", "running", "new", READY[:1])

    start, _ = _wait([boot("one"), boot("one"), boot("two")], [{"status": 0}])
    assert start.end == "rebooted"
