"""Every way known to us in which a benchmark of this kind was wrong: found out or excluded, each with its test.

The list is of faults that users of other clients reported in public; the words say what we do about each.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.traps import TRAPS
from runbooks.bench.loadgen import rawlog
from runbooks.bench.loadgen.summary import point_of
from runbooks.bench.validity import Limits, faults, without_sense
from tests.bench.generator import error_of, measured, truth

PLAYED = "test_traps_end_as_the_right_number_or_as_invalid"

# Number -> what went wrong, where; what we do; the test that would fail. An empty test: it cannot reach us, and why.
KNOWN: dict[int, tuple[str, str, str]] = {
    1: ("an event counted as a token (vllm #27485)", "usage counts, in rates and times", PLAYED),
    2: (
        "a parser swallows steps (sglang #36272)",
        "usage of each chunk places them",
        "test_usage_of_each_chunk_places_tokens_where_they_came",
    ),
    3: ("peak rates of chunks (sglang #33193)", "tokens of usage in every rate", "test_a_whole_point"),
    4: ("chunks as tokens (llama-benchy #11)", "usage counts", PLAYED),
    5: ("reasoning_content ignored (sglang #23954)", "it is output", "test_reasoning_and_tools_are_tokens_too"),
    6: ("delta.reasoning ignored (guidellm #737)", "it is output", "test_reasoning_and_tools_are_tokens_too"),
    7: ("reasoning only: no TTFT (inference-perf #559)", "it is output", "test_reasoning_and_tools_are_tokens_too"),
    8: ("a first chunk of many tokens (genai-bench #81)", "TPOT counts what came after it", PLAYED),
    9: ("the role chunk as first token (vllm #3768)", "no text and no usage: no token", "test_role_chunk_is_no_token"),
    10: ("the usage chunk has no choices (sglang #5451)", "read as what it is", PLAYED),
    11: ("text tokenised again shrinks (flexible-inference-bench #66)", "never done", PLAYED),
    12: ("ITL with TTFT in it (llmperf #99)", "defined once", "test_a_whole_point"),
    13: (
        "ITL means two things (vllm #6531)",
        "ITL, TPOT and step are three",
        "test_a_pause_is_not_the_time_of_a_token",
    ),
    14: ("TTFT of what was not streamed (sglang #23215)", "every request streams", "test_target_and_request"),
    15: ("faster than memory allows (premAI #187)", "the roofline rejects it", "test_validity"),
    16: ("ignore_eos not passed on (vllm #18687)", "a short output has failed", PLAYED),
    17: ("one token each (perf-eval #20)", "a short output has failed", PLAYED),
    18: ("lengths of 128 or 0 (tenstorrent/vllm #354)", "each request is held to its own", PLAYED),
    19: ("prompts of the wrong length (sglang #15732)", "usage checks each", "test_validity"),
    20: ("a range ratio of 0.0 (sglang random dataset)", "a length is a length", "test_lengths"),
    21: ("identical prompts (pegainfer #308)", "all are unique", "test_a_sweep_is_what_the_server_saw"),
    22: ("pad tokens (fw-ai #7)", "common words", "test_prompts_are_of_exactly_the_length_asked_for"),
    23: ("12 prompts for all (sample-apj #181)", "unique", "test_a_sweep_is_what_the_server_saw"),
    24: (
        "a ladder hits the prefix cache (vllm #52884)",
        "nothing repeats, in no point and no run",
        "test_a_sweep_is_what_the_server_saw",
    ),
    25: ("cache state not recorded (sglang #39651)", "usage and the server's counter tell it", PLAYED),
    26: (
        "a warm-up of 100 at once (sglang #39398)",
        "it runs at the point's own load",
        "test_a_sweep_is_what_the_server_saw",
    ),
    27: (
        "a burst inside the window (evalscope #1641)",
        "handed over, never drained",
        "test_a_cold_start_is_over_first",
    ),
    28: ("a cold engine (aws-do-eks #88)", "ramp and warm-up come first", "test_a_cold_start_is_over_first"),
    29: ("compilation at run time (sglang #28706)", "the same", "test_a_cold_start_is_over_first"),
    30: ("ramp and drain in the rate (sglang #30918)", "a window", "test_borders_cut_a_step_in_two"),
    31: (
        "cut requests not counted (guidellm #77)",
        "their tokens are",
        "test_interrupted_leaves_a_valid_partial_result",
    ),
    32: ("above the captured graphs (sglang #33483)", "INVALID, said so", "test_above_the_captured_graphs"),
    33: ("failed requests skipped (InferenceX #357)", "over 1 %: INVALID", PLAYED),
    34: ("retries counted as success (gpustack #1677)", "nothing is asked twice", "test_a_refusal_is_not_asked_again"),
    35: ("a broken stream is a success (ragflow #19498)", "it needs its end", PLAYED),
    36: ("NaN as text (sglang #33187)", "tokens that never repeat; the canary", "test_nan_that_became_equal_chances"),
    37: ("one silent stream blocks all (tokenspeed #134)", "silence has a limit", PLAYED),
    38: ("time-outs flatter latency (vllm-omni #5549)", "failures make it INVALID", PLAYED),
    39: ("queue deadlock between processes (vllm #53075)", "no queues", "test_a_sweep_counts_every_token"),
    40: ("a 64 KiB read buffer (vllm #39963)", "what is left comes with the next turn", PLAYED),
    41: (
        "client-bound (InferenceX)",
        "null server, CPU, split test",
        "test_passes_are_one_point_and_the_split_test_is_two",
    ),
    42: ("slower at many requests (guidellm #470)", "the same", "test_the_client_proves_that_it_is_not_the_limit"),
    43: ("100 connections (gpustack #2324)", "one for each stream", "test_each_of_many_streams_has_its_connection"),
    44: ("8,000 streams in one process (tokenomics #8)", "128 a process", "test_processes_follow_the_streams"),
    45: (
        "coordinated omission (wrk #485)",
        "intended start times",
        "test_an_open_loop_asks_a_server_that_stands_still",
    ),
    46: ("a busy GPU that only waits (rtx6kpro #25)", "watts stand beside it", "test_bench_hardware"),
    47: ("unlike workloads compared (sglang #29580)", "refused", "test_bench_whatif"),
}

# Trap -> what a reason of INVALID says, or None for the right number; the kinds of failed requests.
ENDS: dict[str, tuple[str | None, set[str]]] = {
    "": (None, set()),
    "lumps": (None, set()),
    "flood": (None, set()),
    "spaces": (None, set()),
    "swallow": (None, set()),
    "reasoning": (None, set()),
    "thinking": (None, set()),
    "tools": (None, set()),
    "no-role": (None, set()),
    "strict": (None, set()),
    "no-done": (None, set()),
    "no-metrics": (None, set()),
    "stale": (None, set()),
    "no-usage": ("events are not tokens", set()),
    "short": ("x short output", {"short output"}),
    "one": ("x short output", {"short output"}),
    "nan": ("NaN stop", {"NaN stop"}),
    "bang": ("'!!!!'", {"garbage: '!!!!'"}),
    "echo": ("one token is most of the text", {"garbage: one token is most of the text: 'and'"}),
    "error": ("error in the stream: out of memory", {"error in the stream: out of memory"}),
    "cut": ("requests failed", {"connection: closed by the server within the answer"}),
    "refuse": ("x HTTP 503", {"HTTP 503"}),
    "some-refuse": ("x HTTP 503", {"HTTP 503"}),
    "silent": ("no byte for", {"silent: no byte for 0.8 s"}),
    "cached": ("prefix cache", set()),
    "quiet-cache": ("prefix cache", set()),
    "fat": (None, set()),
    "liar": ("the server", set()),
}
ALONE = {"slow-start", "graphs", "busy", "small", "html", "locked", "random"}  # each has a test of its own


def test_each_known_trap_has_its_test() -> None:
    there = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    names = {path.stem for path in Path(__file__).parent.glob("test_*.py")} | set(re.findall(r"def (test_\w+)", there))
    assert sorted(KNOWN) == list(range(1, 48))
    for number, (_, _, test) in KNOWN.items():
        assert any(name.startswith(test) for name in names), number
    assert set(TRAPS) == set(ENDS) | ALONE


@pytest.mark.served
def test_traps_end_as_the_right_number_or_as_invalid(pyz: Path, traps: str, tmp_path: Path) -> None:
    """Five at once: they mostly wait."""

    def play(trap: str) -> list[rawlog.Block]:
        silence = "0.8" if trap == "silent" else "20"  # s; and a window of whole answers on a machine that is busy
        more = ("--concurrency", "2", "--silence", silence, "--drain", "3", "--again", "0", "--window", "1")
        assert measured(pyz, f"{traps}/{trap}", tmp_path / f"of-{trap}", *more)[0] == 0, trap
        return list(rawlog.decode((tmp_path / f"of-{trap}" / "00-c2.bin").read_bytes()))

    with ThreadPoolExecutor(5) as pool:
        logs = list(pool.map(play, ENDS))
    for (trap, (reason, failures)), blocks in zip(ENDS.items(), logs, strict=True):
        point = point_of(blocks)
        found = [fault for fault in faults(point, Limits(), None) if not fault.startswith("the client was")]
        assert (found == []) if reason is None else any(reason in fault for fault in found), (trap, found)
        assert set(point["requests"]["failures"]) == failures, trap
        if reason is None:
            asked = sum(meta["asked"] for meta, _ in blocks if meta["kind"] == "request")
            assert point["tokens"]["output"] == asked, trap
            assert_true_to_time(point, trap)


def assert_true_to_time(point: dict[str, Any], trap: str) -> None:
    """Rates and times of two streams of 32 tokens: whatever the events were like, they fit to how long it took.

    Held against its own answers, whose beginning and end no event hides: a busy machine changes nothing.
    """
    whole, token = point["e2e_ms"]["p50"], point["tpot_ms"]["p50"]
    rate = 2 * 32 / whole * 1e3
    assert 0.6 * rate < point["tok_s"] < 1.25 * rate, (trap, point["tok_s"], rate)
    slack = 2.5 if trap == "flood" else 1.3  # its one step behind the lump is all that is timed
    assert whole / 32 / slack < token < whole / 31 * slack, (trap, token, whole)
    first = point["ttft_ms"]["p50"]
    assert first > 0.8 * whole if trap == "flood" else 0 < first < 0.4 * whole, (trap, first, whole)


@pytest.mark.served
def test_nan_that_became_equal_chances(pyz: Path, traps: str, tmp_path: Path) -> None:
    """No answer of it has failed: each ends well, at full length, and in time."""
    more = ("--concurrency", "2", "--output-len", "128", "--window", "1")
    for trap, found in (("random", ["garbage: hardly a token comes twice in"]), ("", [])):
        assert measured(pyz, f"{traps}/{trap}", tmp_path / f"of-{trap}", *more)[0] == 0
        point = point_of(rawlog.decode((tmp_path / f"of-{trap}" / "00-c2.bin").read_bytes()))
        assert point["requests"]["failed"] == 0
        said = without_sense(point, None)
        assert [fault[: len(begin)] for fault, begin in zip(said, found, strict=True)] == found, trap


@pytest.mark.served
def test_a_refusal_is_not_asked_again(pyz: Path, traps: str, tmp_path: Path) -> None:
    url = f"{traps}/some-refuse~once"
    assert measured(pyz, url, tmp_path, "--concurrency", "2")[0] == 0
    requests = point_of(rawlog.decode((tmp_path / "00-c2.bin").read_bytes()))["requests"]
    assert requests["failed"] > 1
    assert truth(url)["requests"] == truth(url)["prompts"] == requests["sent"]


@pytest.mark.served
def test_above_the_captured_graphs(pyz: Path, traps: str, tmp_path: Path) -> None:
    assert measured(pyz, f"{traps}/graphs", tmp_path, "--concurrency", "40")[0] == 0
    info = json.loads((tmp_path / "run.json").read_text())["server_info_before"]
    point = point_of(rawlog.decode((tmp_path / "00-c40.bin").read_bytes()))
    assert "CUDA graphs end at 32 streams: above that decode runs without" in faults(point, Limits.of(info), None)


@pytest.mark.served
def test_a_cold_start_is_over_first(pyz: Path, traps: str, tmp_path: Path) -> None:
    """Ten requests wait for a second each; none of them is in the window."""
    assert measured(pyz, f"{traps}/slow-start", tmp_path, "--concurrency", "2", "--warmup", "3")[0] == 0
    blocks = list(rawlog.decode((tmp_path / "00-c2.bin").read_bytes()))
    slow = [meta for meta, reads in blocks if meta["kind"] == "request" and reads[-1][0] - meta["start"] > 1e9]
    assert slow
    assert point_of(blocks)["ttft_ms"]["max"] < 900


@pytest.mark.served
@pytest.mark.parametrize(
    ("trap", "rc", "said"),
    [
        (
            "html",
            1,
            "/v1/models answered 200 with a page of HTML, not JSON: is this a server with an OpenAI-compatible",
        ),
        ("locked", 1, "/v1/models answered 401: it wants another API key, or one at all ($RUNBOOKS_API_KEY)"),
        ("small", 2, "a prompt and its answer are up to 72 tokens (40 in, 32 out), and the server takes 64"),
        ("busy", 3, "the server has 3 live or queued requests"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(
    pyz: Path, traps: str, tmp_path: Path, trap: str, rc: int, said: str
) -> None:
    code, events = measured(pyz, f"{traps}/{trap}", tmp_path / "out")
    assert code == rc
    assert said in error_of(events)
    assert "<" not in error_of(events)
    assert not (tmp_path / "out").exists()


@pytest.mark.served
def test_a_busy_server_is_measured_only_when_told(pyz: Path, traps: str, tmp_path: Path) -> None:
    """And then what the others cost is not hidden: their requests are in the server's gauges."""
    assert measured(pyz, f"{traps}/busy", tmp_path, "--concurrency", "1", "--force")[0] == 0
    point = next(meta for meta, _ in rawlog.decode((tmp_path / "00-c1.bin").read_bytes()) if meta["kind"] == "point")
    assert point["counters"]["before"]["running"] == 3
