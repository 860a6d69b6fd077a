"""A host: what is wrong now leads, what was is told; a host's own logs and the signatures of Proxmox' API."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from runbooks.diagnose import rank
from runbooks.diagnose.classify import OFTEN
from runbooks.diagnose.command import causes, tell
from runbooks.diagnose.signatures import SIGNATURES
from runbooks.diagnose.sources import Texts
from runbooks.engine.printers import JsonPrinter
from runbooks.engine.report import Reporter
from runbooks.proxmox.failures import explain
from tests.diagnose.test_diagnose_classify import HEALTHY_FILES

HYPERVISOR = "Hypervisor detected: KVM\nSetting up qemu-guest-agent\nDMI: QEMU Standard PC, pve-edk2, vfio, VMID 100\n"
UP = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success", "NRestarts": "0"}
AGAIN = UP | {"NRestarts": "1"}
FAILED = UP | {"ActiveState": "failed", "SubState": "failed", "Result": "signal"}
STOPPED = UP | {"ActiveState": "inactive", "SubState": "dead"}


def at(time: str, *said: str, who: str = "python[7]") -> str:
    return "".join(f"2026-11-29T{time}+0000 a {who}: {line}\n" for line in said)


def start(time: str, *said: str) -> str:
    who = "systemd[1]"
    begin = at(time, "Starting sglang.service - x...", who=who) + at(time, "Started sglang.service - x.", who=who)
    return begin + at(time, *said)


READY = "The server is fired up and ready to roll!"
IMPORT = start("16:00:00", "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory")
IMPORT += at("16:00:01", "sglang.service: Main process exited, code=exited, status=1/FAILURE", who="systemd[1]")
KILLED = at("16:20:00", "sglang.service: Main process exited, code=killed, status=9/KILL", who="systemd[1]")
BY_HAND = at("16:20:00", "SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
OOM = at("15:59:00", "Out of memory: Killed process 911 (sglang::schedul) total-vm:1kB", who="kernel")
BUILD = "".join(f"[{t % 73 + 1}/73] 0.{t} s /usr/local/cuda/bin/nvcc -c a.cu\n" for t in range(560, 640))


def led(journal: str, unit: dict[str, str], kernel: str = "", installs: str = "") -> tuple[int, str, str]:
    out = io.StringIO()
    found = causes(Texts(journal, kernel, installs, unit))
    code = tell(found, Reporter(JsonPrinter(out)))
    return code, found[0].name, json.loads(out.getvalue().splitlines()[-1])["text"]


@pytest.mark.parametrize("file", HEALTHY_FILES, ids=lambda path: path.name)
def test_healthy_logs_have_no_finding_whatever_a_signature_needs(file: Path) -> None:
    """Those that need a word of a hypervisor as well: a guest's kernel says it."""
    text = HYPERVISOR + file.read_text(errors="replace")
    assert [cause.name for cause in rank(text)] == ["nothing"]
    assert led("", UP, HYPERVISOR, text)[:2] == (0, "starting")
    assert led(text, UP, text)[:2] == (0, "starting")
    assert led("", STOPPED, HYPERVISOR, text)[1] == "not-running"


@pytest.mark.parametrize("shape", ["{t} s", "{t}.595 s", "0.{t:03} s", "{t}.401 s", "{t} S", "{t}s"])
def test_no_duration_is_a_number_of_an_error(shape: str) -> None:
    lines = [f"[{t % 73 + 1}/73] {shape.format(t=t)} /usr/local/cuda/bin/nvcc -c a.cu" for t in range(1301)]
    met = {(one.name, line) for one in SIGNATURES for line in lines if one.search(line)}
    assert met == set()
    for begin in range(0, len(lines), OFTEN // 2):  # more of one shape in one text are not asked
        assert rank(HYPERVISOR + "\n".join(lines[begin : begin + OFTEN // 2]))[0].name == "nothing"
    assert not [line for line in lines if explain(line)]


@pytest.mark.parametrize(
    "said",
    [
        "595 Errors during connection establishment",
        "595 No route to host",
        "596 tls_process_server_certificate: certificate verify failed",
        "596 Connection timed out",
        "599 Too many redirections",
        "error retrieving task status: received an HTTP 599 response",
    ],
)
def test_what_the_api_says_is_known_and_no_host_says_it(said: str) -> None:
    known = explain(said)
    assert known is not None
    assert known.page == "proxmox-api"
    pages = {cause.page for cause in rank(f"proxmox: {said}")}
    nearer = "host-unreachable"  # of a route or a certificate, which the same line names
    assert pages == {nearer if "route" in said or "certificate" in said else "proxmox-api"}
    assert "proxmox-api" not in {cause.page for cause in causes(Texts(installs=f"proxmox: {said}", unit=STOPPED))}
    assert "proxmox-api" not in {cause.page for cause in causes(Texts(journal=f"proxmox: {said}", unit=FAILED))}


def test_a_healthy_server_is_well_whatever_was_before() -> None:
    code, name, text = led(IMPORT + start("16:10:00", READY), UP, OOM, BUILD + "ninja: build stopped: x\n")
    assert (code, name) == (0, "earlier")
    assert text.startswith("nothing wrong now; earlier: ")
    assert "invoke runbook" in text
    assert led(start("16:10:00", READY), UP, "", BUILD)[:2] == (0, "starting")
    assert led(BY_HAND + start("16:30:00", READY), UP)[:2] == (0, "starting")


def test_a_start_by_hand_that_is_not_ready_is_not_blamed_for_the_last_one() -> None:
    assert led(IMPORT + start("16:10:00", "loading"), UP, OOM)[:2] == (0, "earlier")


def test_a_fresh_death_leads_and_not_an_older_one() -> None:
    died = IMPORT + start("16:10:00", READY) + KILLED
    assert led(died, FAILED, OOM)[1] == "died"
    assert led(died + start("16:20:05", "loading"), AGAIN, OOM)[:2] == (1, "died")
    code, name, text = led(died + start("16:20:05", READY), AGAIN)
    assert (code, name) == (0, "earlier")
    assert "9/KILL" in text


def test_a_loop_of_deaths_is_explained_by_the_one_before() -> None:
    code, name, _ = led(IMPORT + start("16:10:00", "loading"), AGAIN)
    assert (code, name) == (1, causes(Texts(IMPORT))[0].name)


def test_the_end_of_a_run_whose_start_is_not_in_the_log_is_no_part_of_the_next() -> None:
    tail = re.sub(r".*systemd\[1\]: Start.*\n", "", IMPORT)
    assert led(tail + start("16:10:00", READY), UP)[:2] == (0, "earlier")


def test_a_server_that_somebody_stopped_is_not_explained_by_a_build_before_it() -> None:
    code, name, _ = led(start("16:10:00", READY) + BY_HAND, STOPPED, "", BUILD + "ninja: build stopped: x\n")
    assert (code, name) == (1, "stopped")


def test_a_card_that_is_lost_leads_until_a_start_went_well() -> None:
    lost = at("16:05:00", "NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.", who="kernel")
    assert led(start("16:10:00", "loading"), UP, lost)[:2] == (1, "gpu-lost")
    assert led(start("16:10:00", READY), UP, lost)[:2] == (0, "earlier")
    assert led(start("16:00:00", READY), UP, lost)[:2] == (1, "gpu-lost")
    assert led(start("16:10:00", READY), UP, "nvidia-smi: no answer for 5 s")[:2] == (1, "nvidia-smi-hangs")


def test_an_error_of_tls_inside_of_retries_is_one_of_tls() -> None:
    line = (
        "ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='h', port=443): Max retries "
        "exceeded with url: /simple (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] "
        "certificate verify failed: self-signed certificate (_ssl.c:1000)')))"
    )
    assert rank(line)[0].name == "tls"
    assert rank(line.partition(" (Caused")[0])[0].name == "network"
