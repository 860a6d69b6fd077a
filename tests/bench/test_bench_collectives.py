"""Collectives: groups that hang or die, the ladder, what two real GPUs measured, and what a verdict makes of it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runbooks import paths
from runbooks.bench import between, measured
from runbooks.bench.ceiling import GPUS
from runbooks.bench.collectives.cli import held, ladder_of
from runbooks.bench.collectives.group import Emit, Outcome, together
from runbooks.bench.collectives.reduce import Sizes, merged
from runbooks.bench.measured import Collectives, Timing, Unusable, collectives_of
from runbooks.engine.artefact import build_zipapp
from runbooks.engine.errors import RunbookError
from runbooks.engine.report import Reporter
from runbooks.engine.transport import Connection
from runbooks.inventory import load
from runbooks.inventory.runtimes import runtime_paths
from tests.bench.test_bench_judge import CEILING, GLM5, verdict
from tests.recorder import Recorder

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[2]
H200 = next(gpu for gpu in GPUS if gpu.name == "H200")


def two_h200(name: str = "collectives-two-h200") -> dict[str, Any]:
    told: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return told


def used(told: dict[str, Any], **change: Any) -> Collectives | Unusable:
    usual: dict[str, Any] = {"ranks": 2, "gpu": H200, "graph_max": 64, "graphs_off": False}
    return collectives_of(told, GLM5, **(usual | change))


# -- groups


def test_a_group_that_hangs_is_killed_and_keeps_what_it_told(tmp_path: Path) -> None:
    def work(rank: int, emit: Emit) -> None:
        emit("told", n=rank)
        if rank == 1:
            time.sleep(60)

    outcome = together(2, 0.3, work, tmp_path)
    assert outcome.state == "hang"
    assert sorted(row["n"] for row in outcome.rows) == [0, 1]


def test_a_group_with_one_dead_ends_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runbooks.bench.collectives.group.GRACE", 0.1)

    def work(rank: int, emit: Emit) -> None:
        if rank == 0:
            raise RuntimeError("ncclUnhandledCudaError")
        time.sleep(60)

    outcome = together(2, 30.0, work, tmp_path)
    assert (outcome.state, outcome.error) == ("failed", "rank 0: RuntimeError: ncclUnhandledCudaError")


# -- the ladder

SUM = [{"op": "all_reduce", "b": 1, "bytes": 12288, "graph": False, "right": True}]
WELL = {"kind": "write", "from": 0, "to": 1, "right": True}, {"kind": "write", "from": 1, "to": 0, "right": True}


def peer(*, right: bool = True) -> dict[str, Any]:
    return {"kind": "peer", "from": 0, "to": 1, "granted": True, "right_small": right, "right_large": True}


LADDER: list[tuple[list[Outcome], list[dict[str, Any]], str, str]] = [
    ([Outcome("ok", (peer(), *WELL))], SUM, "healthy", "2 ordered pairs written and read back"),
    ([Outcome("ok", (peer(right=False), *WELL))], SUM, "wrong data", "0 -> 1: copy arrived wrong"),  # the mirror
    ([Outcome("ok", ({**WELL[0], "right": False}, WELL[1]))], SUM, "wrong data", "0 -> 1: kernel write arrived wrong"),
    ([Outcome("ok", WELL)], [{**SUM[0], "right": False}], "wrong data", "all_reduce of 12288 bytes: wrong sum"),
    ([Outcome("hang", (peer(), {"kind": "peer_begin", "from": 3, "to": 1}), "no end within 9 s: killed")], SUM, "hang",
     "copying from GPU 3 to 1"),
    ([Outcome("hang", (peer(right=False),), "no end")], SUM, "wrong data", "arrived wrong"),  # the graver of the two
    ([Outcome("failed", WELL, "rank 0: boom")], SUM, "inconclusive", "rank 0: boom"),
    ([Outcome("ok", WELL[:1])], SUM, "inconclusive", "1 of 2 ordered pairs"),
    ([], [], "inconclusive", "0 of 2"),
]  # fmt: skip


@pytest.mark.parametrize(("outcomes", "sums", "word", "why"), LADDER)
def test_the_ladder(outcomes: list[Outcome], sums: list[dict[str, Any]], word: str, why: str) -> None:
    told = ladder_of(outcomes, sums, 2)
    assert told["word"] == word
    assert why in told["why"][0]


def test_the_slowest_rank_counts_and_all_must_be_right() -> None:
    row = {"kind": "collective", "op": "all_reduce", "b": 1, "bytes": 12288, "graph": True, "right": True}
    times = {"us": 20.0, "us_low": 18.0, "us_high": 25.0}
    both = [row | times, row | times | {"us": 24.576}]
    assert merged(both, 2)[0]["us"] == 24.576
    assert merged(both, 2)[0]["bus_gb_s"] == 0.5
    assert merged(both, 3) == []  # one rank never told
    assert [told["right"] for told in merged([row | {"right": False}], 3)] == [False]  # and the one that told was wrong
    assert merged([both[0], row | {"right": False}], 2) == [
        {k: v for k, v in row.items() if k != "kind"} | {"right": False}
    ]


def test_sizes_are_those_of_a_decode_step() -> None:
    sizes = Sizes((1, 32), 12_288, 8)
    assert [sizes.all_reduce(b) for b in sizes.batches] == [12_288, 393_216]
    assert [sizes.all_to_all(b, 8) for b in sizes.batches] == [
        12_288,
        393_216,
    ]  # k = n: as many bytes as the hidden states


def test_who_holds_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '570, python3\\n570, python3\\n\\n'\n")  # one process on two H200, as it was told
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert held() == ["570, python3"]
    smi.write_text("#!/bin/sh\necho 'No running processes found'\n")
    assert held() == []


# -- two H200 on one host, NCCL 2.28.9: with peer-to-peer, and with NCCL_P2P_DISABLE=1


def test_what_two_gpus_measured() -> None:
    told = two_h200()
    assert told["ladder"]["word"] == "healthy"
    assert {row["b"] for row in told["collectives"]} == {1, 2, 4, 8, 16, 32, 64}
    assert all(row["right"] for row in told["collectives"])
    rows = {(row[0], row[1]): row for row in measured.rows(told)}
    assert rows["all-reduce", "64"] == ["all-reduce", "64", "768", "27.8", "14.5", "54.20"]
    assert ["GPU 0", "GPU 1", "14.2", "357.1", "right"] in measured.copy_rows(told)
    assert ["host", "GPU 0", "10.2", "55.2", "right"] in measured.copy_rows(told)


def test_graphs_count_where_the_server_decodes_with_them() -> None:
    told = two_h200()
    graphs, off, up_to_8 = used(told), used(told, graphs_off=True), used(told, graph_max=8)
    assert isinstance(graphs, Collectives)
    assert isinstance(off, Collectives)
    assert isinstance(up_to_8, Collectives)
    assert graphs.all_reduce[64].seconds == pytest.approx(14.5e-6, rel=0.01)
    assert off.all_reduce[64].seconds == up_to_8.all_reduce[64].seconds == pytest.approx(27.8e-6, rel=0.01)
    assert up_to_8.all_reduce[8] == graphs.all_reduce[8]


def test_latency_and_slope_tell_a_missing_peer_to_peer() -> None:
    direct, through_host = used(two_h200()), used(two_h200("collectives-two-h200-without-p2p"))
    assert isinstance(direct, Collectives)
    assert isinstance(through_host, Collectives)
    assert direct.line is not None
    assert through_host.line is not None
    assert direct.line.alpha < through_host.line.alpha < 20e-6
    assert through_host.line.beta > 5 * direct.line.beta
    assert direct.line.latency_share(786_432) > 0.5 > through_host.line.latency_share(786_432)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ranks": 8}, "over 2 GPUs, the server uses 8"),
        ({"told": {"token_bytes": 4096}}, "for 4096 bytes a token"),
        ({"told": {"backend": "gloo"}}, "with gloo, without GPUs"),
    ],
)
def test_what_was_measured_otherwise_is_not_used(change: dict[str, Any], reason: str) -> None:
    told = two_h200() | change.pop("told", {})
    found = used(told, **change)
    assert isinstance(found, Unusable)
    assert reason in found.reason


def test_the_fit_is_never_negative() -> None:
    exact = measured.fit({size: 5e-4 + size / 0.83e9 for size in (12_288, 98_304, 786_432)})
    assert exact is not None
    assert exact.alpha == pytest.approx(5e-4)
    assert 1e-9 / exact.beta == pytest.approx(0.83)
    falling = measured.fit({1.0: 3.0, 2.0: 2.0, 3.0: 1.0})
    assert falling is not None
    assert min(falling.alpha, falling.beta) >= 0
    assert measured.fit({1.0: 1.0, 2.0: 2.0}) is None


# -- the verdict with them


def flat(seconds: float, **change: Any) -> Collectives:
    times = {b: Timing(seconds, seconds, seconds) for b in (1, 8, 64)}
    known = {b: us * 1e-6 for b, us in ((1, 27), (8, 42), (64, 142))}
    return replace(Collectives(times, {}, known), **change)


def test_a_gain_has_an_interval_from_the_noise_that_is_known() -> None:
    told = verdict({64: 271.2}, collectives=flat(1447e-6), step_ci=5.4)
    best = told.gains[0]
    assert best.option.startswith("links as on a healthy node")
    assert best.low < best.tok_s < best.high
    assert best.high / best.low == pytest.approx(1.25, abs=0.15)
    assert verdict({64: 271.2}, collectives=flat(1447e-6), step_ci=5.4).gains == told.gains  # the same again
    assert told.advice.startswith("Worth trying, most promising first: links as on a healthy node")


def test_stop_tuning_is_said_only_with_the_list_and_never_of_what_is_unexplained() -> None:
    near = CEILING.memory(64) * 1e3 * 1.01
    assert verdict({64: near}).advice.startswith("STOP TUNING")
    least = (CEILING.memory(64) + CEILING.compute(64) + 156 * 3e-6) * 1e3
    bound = verdict({64: least * 1.02}, collectives=flat(3e-6))
    assert (bound.word, bound.advice[:11]) == ("memory", "STOP TUNING")
    assert "Looked at: less overhead at most +2%, two batches overlapped at most +1%" in bound.advice
    least = (CEILING.memory(64) + CEILING.compute(64) + 156 * 100e-6) * 1e3
    hidden = verdict({64: least * 1.01}, collectives=flat(100e-6))  # a third is communication, and half may be hidden
    assert (hidden.word, hidden.advice[:8]) == ("memory", "Nothing ")
    assert "two batches overlapped (at most +20%)" in hidden.advice
    open_still = verdict({64: 52.0}, collectives=flat(5e-6))
    assert (open_still.word, open_still.advice[:8]) == ("memory", "Nothing ")
    assert "less overhead (at most +" in open_still.advice
    assert verdict({64: 271.2}, collectives=flat(5e-6)).advice == ""
    assert verdict({64: 52.0}).advice == ""


def test_broken_links_are_a_contradiction_and_unusable_ones_are_told() -> None:
    broken = verdict({64: 271.2}, collectives=flat(1447e-6, word="wrong data", why=("0 -> 1: copy arrived wrong",)))
    assert "wrong data (0 -> 1: copy arrived wrong)" in broken.contradictions[0]
    other = verdict({64: 271.2}, collectives=Unusable("measured over 2 GPUs"))
    assert other.collectives == "measured over 2 GPUs"
    assert other.word == "unexplained"


def test_expert_parallelism_is_predicted_from_measured_all_to_alls() -> None:
    away = {64: Timing(200e-6, 200e-6, 200e-6)}
    told = verdict({64: 73.3}, collectives=flat(142e-6, all_to_all=away))
    expert = next(gain for gain in told.gains if gain.option == "expert parallelism")
    saved = 75 * 142e-6 - 150 * 200e-6
    assert expert.tok_s == pytest.approx(64 / (73.3e-3 - saved))


# -- on a host


def host_with_runtime(local: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> Any:
    monkeypatch.setattr(paths, "RUNTIMES", str(tmp_path / "runtimes"))
    monkeypatch.setattr(paths, "STATE", str(tmp_path / "state"))
    monkeypatch.setattr(between, "KEPT", str(tmp_path / "state/bench/collectives.json"))
    loaded = load(ROOT / "lab" / "inventory.yaml")
    place = Path(runtime_paths(loaded.runtime_for("glm5-a"), loaded.inventory.flash_attn)[0])
    (place / "venv/bin").mkdir(parents=True)
    (place / "built").touch()
    python = place / "venv/bin/python"
    python.write_text(program)
    python.chmod(0o755)
    local.name = "glm5-a"
    return loaded


def test_refused_while_a_server_holds_the_gpus(
    local: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held_by = '{"event": "error", "kind": "held", "text": "GPUs are in use: 570, python3"}'
    loaded = host_with_runtime(local, monkeypatch, tmp_path, f"#!/bin/sh\necho '{held_by}'\nexit 3\n")
    with pytest.raises(RunbookError, match="570, python3") as error:
        between.measure(local, loaded, report=Reporter(Recorder()), out=tmp_path / "out")
    assert "invoke bench.collectives --force" in (error.value.next or "")
    assert "on glm5-a: systemctl stop sglang" in (error.value.next or "")


def test_what_was_measured_stays_for_the_next_sweep_until_the_host_reboots(
    local: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    event = json.dumps({"event": "result", "result": two_h200()})
    program = f'#!/bin/sh\necho "$OMP_NUM_THREADS" "$@" >{tmp_path}/words\necho \'{event}\'\n'
    loaded = host_with_runtime(local, monkeypatch, tmp_path, program)
    quiet = Reporter(Recorder())
    assert between.latest(local, quiet) is None
    said = Recorder()
    told = between.measure(local, loaded, report=Reporter(said), out=tmp_path / "out")
    assert between.latest(local, quiet) == told
    threads, _, *words = (tmp_path / "words").read_text().split()
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--batches": ",".join(map(str, loaded.inventory.bench.concurrency)),
        "--token-bytes": "12288",  # hidden states of GLM-5: 6,144 in BF16
        "--sent-to": "8",
        "--limit": "120",
        "--environment": f"{paths.CURRENT}/env",
        "--verdict": paths.PEERS,
    }
    assert threads == "1"
    assert len(list((tmp_path / "out").glob("*-glm5-a-collectives/collectives.json"))) == 1
    between.show(told, Reporter(said), "glm5-a")
    assert any("healthy: 2 ranks, NVIDIA H200" in str(event) for event in said.events)
    local.put(json.dumps(told | {"boot_id": "another"}).encode(), between.KEPT)
    assert between.latest(local, quiet) is None


# -- for real, with gloo, by the runtime of the lab's real SGLang


def by_real_torch(folder: Path, *before: str) -> dict[str, Any]:
    """What the artefact tells of three ranks; `before` it, a program that runs it."""
    engine = pytest.importorskip("lab.engine")
    try:
        python = engine.prepare(lambda text: None).python
    except RunbookError as error:
        pytest.skip(error.message)
    artefact = folder / "collectives.pyz"
    artefact.write_bytes(build_zipapp("runbooks.bench.collectives", "cli:main"))
    options = ["--batches", "1,8", "--limit", "240", "--ranks", "3", "--out", "told.json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [str(python), *before, str(artefact), *options]
    subprocess.run(words, check=True, timeout=600, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return told


# One rank's sums are off by one; what 0 sends to 2 never lands; rank 0 takes two parcels for each other.
SPOILT = """
import importlib, runpy, sys
real = importlib.import_module
def spoilt(name, package=None):
    torch = real(name, package)
    if name == "torch" and not hasattr(torch, "spoilt"):
        torch.spoilt = dist = torch.distributed
        add, take, swap = dist.all_reduce, dist.recv, dist.all_to_all_single
        def all_reduce(tensor):
            add(tensor)
            tensor[7] += int(dist.get_rank() == 1)
        def recv(tensor, source):
            landed = tensor.clone()
            take(landed, source)
            if (source, dist.get_rank()) != (0, 2):
                tensor.copy_(landed)
        def all_to_all_single(out, mine):
            swap(out, mine)
            if dist.get_rank() == 0:
                parts = out.chunk(3)
                out.copy_(torch.cat([parts[0], parts[2], parts[1]]))
        dist.all_reduce, dist.recv, dist.all_to_all_single = all_reduce, recv, all_to_all_single
    return torch
importlib.import_module = spoilt
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_wrong_data_of_a_real_torch_is_called_that_and_no_hang(tmp_path: Path) -> None:
    program = tmp_path / "spoilt.py"
    program.write_text(SPOILT)
    told = by_real_torch(tmp_path, str(program))
    assert (told["ladder"]["word"], told["errors"]) == ("wrong data", [])
    assert told["ladder"]["why"] == [
        "0 -> 2: kernel write arrived wrong",
        "all_reduce of 12288 bytes: wrong sum",
        "all_to_all of 36864 bytes: wrong sum",
        "all_reduce of 98304 bytes: wrong sum",
        "all_to_all of 258048 bytes: wrong sum",
    ]
    assert measured.rows(told)


@pytest.mark.slow
def test_the_whole_path_by_a_real_torch_without_gpus(tmp_path: Path) -> None:
    told = by_real_torch(tmp_path)
    assert (told["backend"], told["ranks"], told["ladder"]["word"]) == ("gloo", 3, "healthy")
    assert [row[:2] for row in measured.rows(told)] == [
        ["all-reduce", "1"], ["all-reduce", "8"], ["all-to-all", "1"], ["all-to-all", "8"],
    ]  # fmt: skip
    assert told["ladder"]["why"] == ["6 ordered pairs written and read back on the destination"]
