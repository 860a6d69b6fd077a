"""The stand-in nvidia-smi against captures of the real one (data/, two H200): the same shape, field by field."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.standins.driver.smi.cards import fields
from lab.standins.driver.smi.machine import Machine
from lab.standins.driver.smi.main import main

DATA = Path(__file__).with_name("data")
Smi = Callable[..., tuple[int, str]]


def host(root: Path, *, installed: str = "580.126.20", loaded: str | None = "580.126.20") -> None:
    for folder in ("usr/share/lab-nvidia", "run/lab-nvidia", "etc", "proc"):
        (root / folder).mkdir(parents=True)
    (root / "usr/share/lab-nvidia/nvml-version").write_text(installed + "\n")
    if loaded:
        (root / "run/lab-nvidia/version").write_text(loaded + "\n")
        (root / "run/lab-nvidia/license").write_text("Dual MIT/GPL\n")


def knobs(root: Path, **values: object) -> None:
    (root / "etc/lab-gpus.json").write_text(json.dumps(values))


def serving(root: Path, *, running: int) -> None:
    (root / "proc/4711").mkdir(exist_ok=True)
    (root / "proc/4711/cmdline").write_bytes(b"/opt/venv/bin/python\0-m\0sglang.launch_server\0--tp\0008\0")
    (root / "run/lab-sglang.json").write_text(json.dumps({"running": running}))


@pytest.fixture
def smi(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Smi:
    host(tmp_path)

    def ask(*argv: str) -> tuple[int, str]:
        rc = main(argv, Machine(tmp_path))
        return rc, capsys.readouterr().out

    return ask


def columns(line: str) -> list[int]:
    return [place for place, letter in enumerate(line) if letter in "|+"]


# -- shapes ----------------------------------------------------------------------------------------------------------


def test_table_has_the_real_columns(smi: Smi) -> None:
    real = (DATA / "smi-table.txt").read_text().splitlines()
    rc, text = smi()
    mine = text.splitlines()
    assert rc == 0
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d [\d:]{8} \d{4} {7}", real[0]) is not None
    assert len(mine[0]) == len(real[0])
    assert [columns(line) for line in mine[1:12]] == [columns(line) for line in real[1:12]]  # head and the first card
    assert mine[-7:] == real[-7:]  # no processes
    assert len(mine) == len(real) + 6 * 4  # eight cards instead of two


def test_table_rows_are_aligned_as_the_real_ones(smi: Smi) -> None:
    real = (DATA / "smi-table.txt").read_text().splitlines()[9:12]
    mine = smi()[1].splitlines()[9:12]
    ends = [[match.end() for match in re.finditer(r"\S+", line)] for line in real]
    for line, wanted in zip(mine, ends, strict=True):
        found = {match.end() for match in re.finditer(r"\S+", line)}
        assert set(wanted[-4:]) <= found, line  # right-aligned figures end where the real ones do


def test_every_field_has_its_real_header_and_a_value_of_its_real_shape(smi: Smi) -> None:
    real_header, real_row = (line.split(", ") for line in (DATA / "smi-query.csv").read_text().splitlines())
    names = [header.split(" [")[0] for header in real_header]
    _, text = smi(f"--query-gpu={','.join(names)}", "--format=csv")
    header, *rows = (line.split(", ") for line in text.splitlines())
    assert header == real_header
    assert len(rows) == 8
    assert [shape(name, mine) for name, mine in zip(names, rows[0], strict=True)] == [
        shape(name, real) for name, real in zip(names, real_row, strict=True)
    ]


DIFFERS = {  # on a passively cooled PCIe card without NVLink fabric and HBM
    "temperature.memory",
    *("clocks.applications.graphics", "clocks.applications.memory"),
    *("clocks.default_applications.graphics", "clocks.default_applications.memory"),
    *(f"fabric.{name}" for name in ("state", "status", "cliqueId", "clusterUuid")),
    *(f"platform.{name}" for name in ("chassis_serial_number", "slot_number", "tray_index", "host_id", "peer_type")),
}


def shape(name: str, value: str) -> str:
    """The value with its digits, and for words their letters, made alike."""
    if name in DIFFERS:
        return "another card"
    if name in ("name", "vbios_version", "inforom.img", "driver_version"):
        return "text"
    if re.fullmatch(r"(Not )?Active|Enabled|Disabled|Yes|No", value):
        return "word"
    return re.sub(r"\d+", "9", re.sub(r"(?<=[0-9x-])[0-9A-Fa-f]+", "9", value))


def test_other_names_of_a_field_answer_under_its_first_name(smi: Smi) -> None:
    _, text = smi("--query-gpu=gpu_name,clocks.gr,clocks_throttle_reasons.active,gpu_uuid", "--format=csv")
    assert text.splitlines()[0] == "name, clocks.current.graphics [MHz], clocks_event_reasons.active, uuid"


def labels(text: str) -> list[tuple[int, str, int]]:
    """Indentation, label and the place of the colon of each line of one card's report."""
    found = []
    for line in text.splitlines():
        label, colon, _ = line.partition(" : ")
        if line.startswith("    "):
            indent = len(line) - len(line.lstrip())
            found.append((indent, label.strip(), line.index(" : ") if colon else -1))
    return found


def test_full_report_has_the_real_lines(smi: Smi) -> None:
    _, text = smi("-q", "-i", "0")
    assert labels(text) == labels((DATA / "smi-q.txt").read_text())


@pytest.mark.parametrize(
    ("argv", "capture"),
    [(["-d", "PERFORMANCE"], "smi-q-performance.txt"), (["-d", "MEMORY,ECC", "-i", "0"], "smi-q-memory-ecc.txt")],
)
def test_report_sections(smi: Smi, argv: list[str], capture: str) -> None:
    real = (DATA / capture).read_text()
    mine = smi("-q", *argv)[1]
    cards = real.count("\nGPU ")
    assert labels(mine)[: len(labels(real)) // cards] == labels(real)[: len(labels(real)) // cards]
    assert [line.split(" : ")[0] for line in mine.splitlines()[:8]] == [
        line.split(" : ")[0] for line in real.splitlines()[:8]
    ]


def test_topology_and_peers(smi: Smi) -> None:
    real, mine = (DATA / "smi-topo-m.txt").read_text(), smi("topo", "-m")[1]
    assert mine.split("Legend:")[1] == real.split("Legend:")[1]
    assert [cell for cell in mine.splitlines()[0].split("\t") if "GPU" not in cell] == [
        "",
        "CPU Affinity",
        "NUMA Affinity",
    ]
    assert re.fullmatch(r"GPU0\t X (\tPHB){7}\t0-\d+\t0\t\tN/A", mine.splitlines()[1])
    real, mine = (DATA / "smi-topo-p2p-r.txt").read_text(), smi("topo", "-p2p", "r")[1]
    assert mine.split("Legend:")[1] == real.split("Legend:")[1]
    assert mine.splitlines()[1] == " GPU0\tX\t" + "NS\t" * 7  # what a VM sees


def test_list_and_version(smi: Smi) -> None:
    pattern = r"GPU \d: NVIDIA .+ \(UUID: GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\)"
    for line in [*(DATA / "smi-list.txt").read_text().splitlines(), *smi("-L")[1].splitlines()]:
        assert re.fullmatch(pattern, line)
    real, mine = (DATA / "smi-version.txt").read_text().splitlines(), smi("--version")[1].splitlines()
    assert [line.split(":")[0] for line in mine[:4]] == [line.split(":")[0] for line in real]
    assert "lab stand-in" in mine[4]


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "rc", "text"),
    [
        (["--query-gpu=name,bogus", "--format=csv"], 2, 'Field "bogus" is not a valid field to query.\n\n'),
        (["--query-gpu=name", "--format=csv,nofoo"], 2, "Format modifier is not recognized.\n"),
        (["--bogus"], 255, "ERROR: Option --bogus is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        (["bogus"], 255, "ERROR: Option bogus is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        (["-i", "9"], 6, "No devices were found\n"),
        (
            ["-i", "7", "-L"],
            2,
            "ERROR: Option -i is not valid for this command. Please run 'nvidia-smi -h' for help.\n\n",
        ),
        (
            ["-pl", "99999", "-i", "0"],
            2,
            "Provided power limit 99999.00 W is not a valid power limit which should be between 300.00 W and 600.00 W "
            "for GPU 00000000:01:00.0\nTerminating early due to previous errors.\n",
        ),
    ],
)
def test_refusals_are_the_real_ones(smi: Smi, argv: list[str], rc: int, text: str) -> None:
    assert smi(*argv) == (rc, text)


# -- the driver's states ---------------------------------------------------------------------------------------------


def test_before_the_module_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host(tmp_path, loaded=None)
    assert main([], Machine(tmp_path)) == 9
    assert capsys.readouterr().out.startswith("NVIDIA-SMI has failed because it couldn't communicate")


def test_after_an_upgrade_without_reboot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host(tmp_path, installed="595.58.03")
    assert main(["-L"], Machine(tmp_path)) == 18
    assert capsys.readouterr().out == (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 595.58\n"
    )


def test_the_proprietary_module_finds_no_blackwell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host(tmp_path)
    (tmp_path / "run/lab-nvidia/license").write_text("NVIDIA\n")
    assert main(["-L"], Machine(tmp_path)) == 6
    assert capsys.readouterr().out == "No devices were found\n"


def test_settings_hold_until_the_reboot(smi: Smi) -> None:
    assert smi("-pm", "1")[1].splitlines()[0] == "Enabled persistence mode for GPU 00000000:01:00.0."
    assert smi("-pm", "1")[1].splitlines()[0] == "Persistence mode is already Enabled for GPU 00000000:01:00.0."
    smi("-pl", "450", "-i", "3")
    _, text = smi("--query-gpu=persistence_mode,power.limit", "--format=csv,noheader,nounits")
    assert text.splitlines() == ["Enabled, 450.00" if card == 3 else "Enabled, 600.00" for card in range(8)]


# -- knobs and load --------------------------------------------------------------------------------------------------


def test_a_card_is_missing(smi: Smi, tmp_path: Path) -> None:
    knobs(tmp_path, count=7)
    assert len(smi("-L")[1].splitlines()) == 7
    assert smi("--query-gpu=count", "--format=csv,noheader")[1].split() == ["7"] * 7


def test_a_card_is_lost(smi: Smi, tmp_path: Path) -> None:
    """As seen in public on eight cards: one line, and the others keep their index."""
    knobs(tmp_path, lost=3)
    rc, text = smi("--query-gpu=index,pci.bus_id", "--format=csv,noheader")
    first, *rest = text.splitlines()
    assert rc == 0
    assert first == "Unable to determine the device handle for GPU3: 0000:04:00.0: Unknown Error"
    assert [line.split(",")[0] for line in rest] == list("0124567")
    assert smi("-i", "3")[0] == 6


def test_any_field_can_be_set(smi: Smi, tmp_path: Path) -> None:
    knobs(tmp_path, fields={"all": {"pcie.link.gen.current": "4"}, "2": {"pcie.link.width.current": "8"}})
    rows = smi("--query-gpu=pcie.link.gen.current,pcie.link.width.current", "--format=csv,noheader")[1].splitlines()
    assert rows[1:3] == ["4, 16", "4, 8"]
    assert re.search(r"Current +: 8x", smi("-q", "-i", "2")[1])


@pytest.mark.parametrize(("running", "use", "watts"), [(0, "0 %", 80.0), (5, "98 %", 300.0)])
def test_load_follows_the_server(smi: Smi, tmp_path: Path, running: int, use: str, watts: float) -> None:
    serving(tmp_path, running=running)
    row = smi("--query-gpu=memory.used,utilization.gpu,power.draw", "--format=csv,noheader")[1].splitlines()[0]
    assert row == f"90112 MiB, {use}, {watts:.2f} W"
    assert smi("--query-compute-apps=pid,used_memory", "--format=csv")[1].splitlines()[:2] == [
        "pid, used_gpu_memory [MiB]",
        "4711, 90112 MiB",
    ]
    lines = smi()[1].splitlines()
    assert {len(line) for line in lines[-9:]} == {91}
    assert "4711      C   sglang::scheduler" in lines[-9]
    assert "Process ID" in smi("-q", "-d", "PIDS")[1]


def test_a_hung_driver_does_not_end_by_sigterm(tmp_path: Path) -> None:
    host(tmp_path)
    knobs(tmp_path, hang=True)
    code = "from pathlib import Path; from lab.standins.driver.smi.machine import Machine; "
    code += f"from lab.standins.driver.smi.main import main; main(['-L'], Machine(Path({str(tmp_path)!r})))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            while not ignores(process.pid, signal.SIGTERM):
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
        finally:
            process.kill()


def ignores(pid: int, number: signal.Signals) -> bool:
    mask = re.search(r"^SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (number - 1) & 1)


def test_the_table_of_fields_is_whole() -> None:
    assert len({field.name for field in fields().values()}) == 214
    assert "memory.total" in fields()
