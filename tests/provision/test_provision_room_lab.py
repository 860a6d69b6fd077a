"""A model for which there is no room: on the file system, by the source's own list, and by a quota that `df` hides."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.lab import Lab
from runbooks.engine.errors import RunbookError
from tests.provision.provision_quota import limited
from tests.provision.provision_runs import Provision, Run

pytestmark = pytest.mark.lab

MODEL = frozenset({"model"})
HUB = "hf:lab/glm-5-nvfp4"


@pytest.fixture
def somewhere(lab: Lab, guest: Guest, tmp_path: Path) -> Provision:
    """The model from the depot's folder, which needs no runtime."""
    text = lab.inventory.read_text().replace(HUB, f"http://{lab.network.gateway}:8090/models/glm-5-nvfp4")
    (tmp_path / "inventory.yaml").write_text(text)
    return Provision(lab, guest, tmp_path / "inventory.yaml")


def at(provision: Provision, path: str, size_gb: str = "0.02") -> Run:
    assert provision.inventory is not None
    text = re.sub(r"(?m)^    path: .*$", f"    path: {path}", provision.inventory.read_text())
    provision.inventory.write_text(re.sub(r"(?m)^    size_gb: .*?( +#.*)?$", f"    size_gb: {size_gb}", text))
    return provision(tags=MODEL)


def the_error(run: Run) -> RunbookError:
    (error,) = run.result.failed
    return error


def test_a_file_system_without_room(somewhere: Provision, guest: Guest) -> None:
    """Seen before anything comes; and, where the inventory believes in a smaller model, by the source's list."""
    guest.run("mkdir -p /srv/small && mount -t tmpfs -o size=4m small /srv/small")
    error = the_error(at(somewhere, "/srv/small/model"))
    assert re.search(r"20 MB to download, 4 MB free on /srv/small", error.message)
    assert (error.page, "df -h /srv/small" in str(error.next)) == ("disk-full", True)
    assert guest.run("ls -A /srv/small").stdout == ""
    error = the_error(at(somewhere, "/srv/small/model", "0.003"))
    assert re.search(
        r"\d+ MB are still to come, 4 MB are free at /srv/small/model: invoke runbook disk-full", str(error)
    )
    assert guest.run("find /srv/small -name '*.safetensors'").stdout == ""
    guest.run("umount /srv/small")


def test_a_quota(somewhere: Provision, guest: Guest) -> None:
    """`df` shows 300 MB: what the quota takes is tried before anything comes."""
    with limited(guest, "6M") as folder:
        error = the_error(at(somewhere, f"{folder}/model"))
        assert "does not take them: Disk quota exceeded" in str(error)
        assert "invoke runbook disk-full" in str(error)
        assert guest.run(f"find {folder} -name '*.safetensors'").stdout == ""
        guest.run(f"btrfs qgroup limit none {folder}")
        run = at(somewhere, f"{folder}/model")
        assert run.errors == []
        assert at(somewhere, f"{folder}/model").result.changed == 0
