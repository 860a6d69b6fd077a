"""`invoke tune` and `invoke deploy --from` on a host, as typed. Slow: each profile is started, asked and measured."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.guest import Guest
from lab.lab import Lab
from runbooks.deploy import prune
from tests.deploy.site import BAD, INVOKE, ONLY_BAD, Site, provisioned

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PROFILES = "quick,bad,broken"
# Milliseconds a step: so slow that a busy machine, which may wake the client 10 ms late, measures it all the same.
SLOW: dict[str, Any] = {"c0": 300, "c1": 0, "c2": 0, "thinking": 4}
SWEEP = ["--concurrency", "1,2", "--window", "8"]


@pytest.fixture(scope="module")
def site(lab: Lab, guest: Guest) -> Iterator[Site]:
    """Serving `final`; of three more profiles one is faster, one gives NaN and one dies while it starts."""
    for site in provisioned(lab, guest, budget=60):
        inventory = yaml.safe_load(site.inventory.read_text())
        inventory["bench"]["output_len"] = 16
        for name, knobs in {"quick": SLOW | {"c0": 150}, "broken": {"fail": "die_at_start"}}.items():
            guest.write(f"/etc/lab-{name}.json", json.dumps(knobs))
            own = {"LAB_SGLANG_KNOBS": f"/etc/lab-{name}.json"}
            inventory["profiles"][name] = {"extends": "final", "why": f"the lab's server is {name}", "env": own}
        site.inventory.write_text(yaml.safe_dump(inventory, sort_keys=False))
        site.knobs(fail="nan", **ONLY_BAD, **SLOW)
        assert site.deploy("final")[0] == 0
        yield site


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here") / "results"
    folder.mkdir()
    return folder


def typed(site: Site, *words: str) -> list[str]:
    return [*INVOKE, *words, "--inventory", str(site.inventory), "--hosts", site.guest.name, "--plain", "--yes"]


def hears_ctrl_c() -> None:
    """Also where a shell started these tests in the background, which makes all below them deaf to it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def told(out: Path) -> dict[str, Any]:
    (path,) = out.glob("*-tune/tune.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def tried(out: Path) -> dict[str, str]:
    return {one["profile"]: one["outcome"] for one in told(out)["trials"]} if any(out.glob("*-tune")) else {}


def test_ctrl_c_brings_the_old_one_back_and_the_next_run_goes_on(site: Site, out: Path) -> None:
    before, words = site.current, typed(site, "tune", "--profiles", PROFILES, *SWEEP, "--out", str(out))
    first = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=hears_ctrl_c
    )
    until = time.monotonic() + 600
    while "final" not in tried(out) and first.poll() is None and time.monotonic() < until:
        time.sleep(0.5)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=180)
    assert tried(out) == {"final": "measured"}, said  # `quick` was being deployed
    assert first.returncode != 0
    assert "Traceback" not in said
    assert (site.current, site.completion()) == (before, "200"), said

    again = subprocess.run(words, capture_output=True, text=True, check=False)
    said = again.stdout + again.stderr
    assert tried(out) == {"final": "measured", "quick": "measured", "bad": "garbage", "broken": "crash"}, said
    assert again.returncode == 1  # not every one was measured and VALID
    assert "final tried before" in said
    assert "best: quick, +" in said
    assert f"`invoke deploy --hosts {site.guest.name} --profile quick` changes it" in said
    assert (site.current, site.completion()) == (before, "200"), said
    record = told(out)
    assert record["done"]
    assert record["again"]  # the baseline once more: the noise between two sweeps of the same


def test_what_a_run_recorded_is_made_again_when_its_release_is_gone(site: Site, out: Path) -> None:
    record = told(out)
    (folder,) = (path.parent / record["trials"][1]["run"] for path in out.glob("*-tune/tune.json"))
    recorded = json.loads((folder / "run.json").read_text())["release"]
    assert recorded["profile"] == "quick"
    session, _ = site.session()
    with session.connect(site.guest.name) as conn:
        prune.remove(conn, [f"/opt/runbooks/releases/{recorded['number']}"])
    number = str(site.next)

    made = subprocess.run(typed(site, "deploy", "--from", str(folder)), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    release = json.loads(site.sh("cat /opt/runbooks/current/release.json"))
    assert (site.current, release["content"]) == (number, recorded["content"])
    assert site.completion() == "200"

    by_name = typed(site, f"--search-root={ROOT}", "deploy", "--from", folder.name)  # as it stands below results/
    kept = subprocess.run(by_name, cwd=out.parent, capture_output=True, text=True, check=False)
    assert (kept.returncode, site.current) == (0, number), kept.stdout + kept.stderr
    assert f"release {number} is what" in kept.stdout + kept.stderr


def test_what_cannot_be_made_again_changes_nothing(site: Site, out: Path) -> None:
    """The profile is another one today, and the release is gone."""
    record, serves = told(out), site.current
    (folder,) = (path.parent / record["trials"][1]["run"] for path in out.glob("*-tune/tune.json"))
    other = site.inventory.with_name("changed.yaml")
    inventory = yaml.safe_load(site.inventory.read_text())
    inventory["profiles"]["quick"]["args"] = {"mem_fraction_static": 0.8, **BAD}
    other.write_text(yaml.safe_dump(inventory, sort_keys=False))
    assert site.deploy("final")[0] == 0
    session, _ = site.session()
    with session.connect(site.guest.name) as conn:
        prune.remove(conn, [f"/opt/runbooks/releases/{serves}"])
    serves, words = site.current, typed(Site(site.guest, other, other), "deploy", "--from", str(folder))
    refused = subprocess.run(words, capture_output=True, text=True, check=False)
    other.unlink()
    said = refused.stdout + refused.stderr
    assert (refused.returncode, site.current, site.completion()) == (1, serves, "200"), said
    assert "cannot be made again here" in said
    assert "profile quick gives other content today" in said
