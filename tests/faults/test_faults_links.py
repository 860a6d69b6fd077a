"""A link that goes deaf at any point, idles for long, or is shared by many: within seconds, and never a hang."""

from __future__ import annotations

import dataclasses
import subprocess
import threading
import time
from pathlib import Path

import paramiko
import pytest
import yaml

from lab.lab import Lab
from runbooks.engine import transport
from runbooks.engine.errors import NoAnswer, Unreachable
from runbooks.engine.look import look
from runbooks.engine.step import NO_ANSWER, Kind, Question, shell
from runbooks.engine.transport import Connection
from runbooks.steps import ask
from tests.faults.bad_link import bad_link
from tests.faults.causes_links import SSHD
from tests.faults.faults_world import World, slow
from tests.faults.terminal import INVOKE

pytestmark = pytest.mark.lab

POINTS = 14
PATIENCE = 40.0  # seconds: banner, login, channel and answer have ten or so each, and only one of them runs out


@pytest.mark.slow
def test_a_link_that_goes_deaf_at_any_point_is_an_error_within_seconds(world: World) -> None:
    """In the greeting, the key exchange, the login, at the channel, in the first answer: what we send still arrives."""
    with bad_link(world) as (link, way), Connection(dataclasses.replace(world.target, **way)) as connection:
        assert connection.ask("echo x; head -c 3000 /dev/zero").out.startswith("x\n")
        whole = link.back
    ended: dict[int, tuple[float, str]] = {}

    def go_deaf(at: int) -> None:
        with bad_link(world, name=f"deaf-{at}") as (link, way):
            link.deaf_after = at
            began = time.monotonic()
            with Connection(dataclasses.replace(world.target, **way)) as connection:
                try:
                    connection.ask("echo x; head -c 3000 /dev/zero", deadline=5)
                    ended[at] = (0.0, "it was answered")
                except (Unreachable, NoAnswer) as error:
                    ended[at] = (time.monotonic() - began, str(error))

    threads = [
        threading.Thread(target=go_deaf, args=(whole * number // POINTS,), daemon=True) for number in range(POINTS)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(ended) == POINTS, f"hang after bytes {sorted({whole * n // POINTS for n in range(POINTS)} - set(ended))}"
    wrong = {at: end for at, end in ended.items() if not 0 < end[0] < PATIENCE or "next: ssh" not in end[1]}
    assert wrong == {}, wrong
    assert world.half_done() == []


def test_a_link_that_idles_is_kept_alive(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person thinks before a question; a NAT box forgets who says nothing."""
    monkeypatch.setattr(transport, "KEEPALIVE", 1)
    with bad_link(world) as (link, way), Connection(dataclasses.replace(world.target, **way)) as connection:
        connection.ask(":")
        before = link.sent
        time.sleep(3.5)
        assert link.sent > before + 2 * 32  # at least two packets
        assert connection.ask("echo x").out == "x\n"
        assert connection.connects == 1


def test_a_dead_link_is_noticed_while_an_answer_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a keepalive that nobody acknowledges tells of it: we have nothing else to say."""
    monkeypatch.setattr(transport, "KEEPALIVE", 1)
    monkeypatch.setattr(transport, "UNHEARD", 3.0)
    with Connection(world.target) as connection:
        connection.ask(":")
        world.cleanup += [world.guest.wait, world.guest.mend_link]  # the last first
        threading.Timer(1, world.guest.cut_link).start()
        began = time.monotonic()
        with pytest.raises(Unreachable, match="the connection was lost"):
            connection.ask("sleep 100", deadline=100)
        assert time.monotonic() - began < 20


NOBODY = "02:00:00:00:00:99"


@pytest.mark.parametrize(
    ("jump", "to", "port", "says"),
    [
        ("root@{here}:2222", "{here}", 22, "the jump host {here} port 2222: Connection refused"),
        ("stranger@{here}", "{here}", 22, "the jump host {here} refused the login of stranger"),
        ("root@{here}", "{here}", 2222, r"{here} port 2222: the jump host {here} cannot reach it \(.*Connect failed"),
        ("root@{here}", "{void}", 22, r"{void} port 22: the jump host {here} cannot reach it \(no answer\)"),
    ],
)
def test_a_way_over_a_jump_host_that_breaks_is_told_by_the_machine_that_it_is(
    world: World, jump: str, to: str, port: int, says: str
) -> None:
    """The last one swallows everything, as a firewall does: sshd there would try for two minutes."""
    names = {"here": world.guest.address, "void": f"{world.guest.network.prefix}250"}
    world.sh(f"ip neigh replace {names['void']} lladdr {NOBODY} dev host0")
    way = {"proxy_jump": jump.format(**names), "address": to.format(**names), "port": port}
    began = time.monotonic()
    with Connection(dataclasses.replace(world.target, **way)) as connection:  # type: ignore[arg-type]
        with pytest.raises(Unreachable, match=says.format(**names)) as met:
            connection.ask(":")
        assert "next: ssh" in str(met.value)
    assert time.monotonic() - began < 15
    world.until(lambda: not any(isinstance(thread, paramiko.Transport) for thread in threading.enumerate()))


@pytest.mark.slow
def test_many_hosts_behind_one_jump_host_never_come_in_a_burst(world: World, lab: Lab, tmp_path: Path) -> None:
    """Its sshd drops the eleventh that has not logged in yet."""
    bastion = lab.add()
    try:
        bastion.run("echo 'MaxStartups 10:100:10' >/etc/ssh/sshd_config.d/00-few.conf && systemctl reload ssh")
        world.sh(f"echo 'MaxStartups 100' >{SSHD} && systemctl reload ssh")
        world.undo(f"rm -f {SSHD}; systemctl reload ssh")
        inventory = yaml.safe_load(lab.inventory.read_text())
        key = str(world.guest.keys / "id_ed25519")
        host = {"address": world.guest.address, "user": "root", "key": key, "proxy_jump": f"root@{bastion.address}"}
        inventory["hosts"] = {f"h{number:02}": host for number in range(20)}
        inventory["known_hosts"] = str(world.guest.keys / "known_hosts")
        inventory.pop("groups", None)
        path = tmp_path / "inventory.yaml"
        path.write_text(yaml.safe_dump(inventory, sort_keys=False))
        done = _typed("status", "--plain", "--inventory", str(path))
        assert done.returncode == 0, done.stdout + done.stderr
        assert sum(line.strip().startswith("h") for line in done.stdout.splitlines()) >= 20, done.stdout
        said = bastion.run("journalctl -u ssh -o cat --no-pager").stdout
        assert said.count("Accepted publickey") >= 20
        assert "MaxStartups" not in said
    finally:
        lab.remove(bastion)


def _typed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*INVOKE, *words], capture_output=True, text=True, check=False, timeout=120)


def test_a_link_that_is_away_is_told_while_its_job_goes_on(world: World) -> None:
    """Ten minutes of silence would look like a hang."""
    with bad_link(world) as (link, way):
        ran = world.run([slow(4)], when={"at work 2": lambda: link.stall(18)}, target=way)
    assert ran.result.failed == [], ran.text
    (lost,) = [text for text in ran.said.texts if "the job goes on" in text]
    (back,) = [text for text in ran.said.texts if "is back" in text]
    assert "invoke jobs" in lost
    assert ran.said.texts.index(lost) < ran.said.texts.index(back)


HANG = Kind("nvidia-smi", lambda _keys: "nvidia-smi", lambda out, keys: {keys[0]: {"out": out}}, 15.0, together=False)


@pytest.mark.slow
def test_beside_a_hung_nvidia_smi_and_a_dead_mount_all_others_answer_within_ten_seconds(world: World) -> None:
    """And what hangs is named while it is waited for; no process of the look is left but those that cannot end."""
    smi = "#!/bin/sh\\ntrap : TERM INT HUP\\nkill -STOP $$\\n"
    world.sh(f"printf '{smi}' >/usr/local/bin/nvidia-smi; chmod 755 /usr/local/bin/nvidia-smi; mkfifo /run/dead")
    world.undo("rm -f /usr/local/bin/nvidia-smi /run/dead; pkill -9 nvidia-smi; true")
    hung = [Question(HANG, "gpus"), shell("cat /run/dead", deadline=60), shell("cat /run/dead")]
    fine = [*(shell(f"echo {number}") for number in range(20)), ask.package("bash"), ask.path("/etc/passwd")]
    here: list[tuple[float, set[str]]] = []
    with Connection(world.target) as connection:
        connection.ask(":")
        began = time.monotonic()

        def waiting(late: object) -> None:
            here.append((time.monotonic() - began, {question.kind.name for question in late}))  # type: ignore[attr-defined]

        answers = look(connection, [*hung, *fine], waiting=waiting)
        took = time.monotonic() - began
    ((seconds, names),) = here
    assert seconds < 10, f"the others waited {seconds:.1f} s"
    assert names == {"nvidia-smi", "shell"}
    assert [answers[question] for question in hung] == [NO_ANSWER] * 3
    assert [answers[question]["out"] for question in fine[:20]] == [str(number) for number in range(20)]
    assert answers[fine[20]]["status"] == "installed"
    assert answers[fine[21]]["type"] == "file"
    assert took < 70
    assert world.sh("ls -d /run/rb.*/look.* 2>/dev/null; true") == ""
