"""Whether what moved is right: data of a torch in numpy, spoilt in each way that a bad link or switch spoils it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from runbooks.bench import between
from runbooks.bench.collectives import cli, reduce, torches
from runbooks.bench.collectives.group import Emit, Outcome
from runbooks.engine.report import Reporter
from runbooks.session import Session
from tests.recorder import Recorder

RANKS = 8  # as many as there are cards
SIZE = 12_288 * RANKS


class Tensor(np.ndarray[Any, Any]):
    def to(self, kind: Callable[[Tensor], Tensor]) -> Tensor:
        return kind(self)

    def float(self) -> Tensor:
        return self.astype(np.float64).view(Tensor)

    def zero_(self) -> None:
        self[:] = 0

    def copy_(self, other: Tensor) -> None:
        self[:] = other


def bfloat16(values: Tensor) -> Tensor:
    """Whole numbers up to 256 are exact in it: none other may be sent."""
    assert values.min() >= 0
    assert values.max() <= 256
    return values.copy()


class Links:
    """What arrives at `rank`, spoilt by `spoil` before it lands."""

    def __init__(self, spoil: Callable[[Any], None]) -> None:
        self.spoil, self.rank = spoil, 0

    def all_reduce(self, buffer: Tensor) -> None:
        sent = np.stack([reduce.values(buffer.size, rank, None) for rank in range(RANKS)])
        self.spoil(sent)
        buffer[:] = sent.sum(axis=0)

    def barrier(self) -> None:
        pass

    def all_to_all_single(self, out: Tensor, mine: Tensor) -> None:
        part = mine.size // RANKS
        sent = np.stack([reduce.parcel(part, source, self.rank, RANKS, None) for source in range(RANKS)])
        self.spoil(sent)
        out[:] = sent.reshape(-1)


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Links:
    made = Links(lambda sent: None)
    fake = SimpleNamespace(
        arange=lambda count, device: np.arange(count).view(Tensor), bfloat16=bfloat16, distributed=made,
        equal=np.array_equal, cat=lambda parts: np.concatenate(parts).view(Tensor), zeros_like=np.zeros_like,
    )  # fmt: skip
    monkeypatch.setattr(torches, "torch", lambda: fake)
    return made


def one_bit(sent: Any) -> None:
    sent[5][-1] += 1


def lost(sent: Any) -> None:
    sent[3] = 0


def twice(sent: Any) -> None:
    """The data of the first card came again in place of the fifth's."""
    sent[4] = sent[0]


def crossed(sent: Any) -> None:
    sent[[2, 6]] = sent[[6, 2]]


def late(sent: Any) -> None:
    """The last words of it are still on their way."""
    sent[7][-16:] = 0


@pytest.mark.parametrize("op", sorted(reduce.OPERATIONS))
@pytest.mark.parametrize("spoil", [one_bit, lost, twice, crossed, late])
def test_wrong_data_is_seen_on_every_rank(links: Links, op: str, spoil: Callable[[Any], None]) -> None:
    for rank in range(RANKS):
        links.rank = rank
        call, refill, right = reduce.OPERATIONS[op](SIZE, RANKS, rank, None)
        assert not right()  # nothing has arrived yet
        refill()
        call()
        assert right()
        links.spoil = spoil
        refill()
        call()
        assert right() is (op == "all_reduce" and spoil is crossed)  # a sum is the same in any order
        links.spoil = lambda sent: None


@pytest.mark.parametrize("op", sorted(reduce.OPERATIONS))
@pytest.mark.parametrize(("direct", "replayed"), [(True, True), (True, False), (False, True), (False, False)])
def test_with_a_graph_and_without_each_is_judged_by_itself(
    links: Links, monkeypatch: pytest.MonkeyPatch, op: str, direct: bool, replayed: bool
) -> None:
    """And both are told, wrong or not: the other ranks wait for this one."""
    spoil = {True: links.spoil, False: one_bit}

    def replay(call: Callable[[], None]) -> None:
        links.spoil = spoil[replayed]
        call()

    def captured(call: Callable[[], None], device: Any, calls: int) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: replay(call))

    monkeypatch.setattr(torches, "settle", lambda device: None)
    monkeypatch.setattr(torches, "timed", lambda call, device, calls, before: [30.0, 20.0, 40.0])
    monkeypatch.setattr(torches, "captured", captured)
    links.spoil = spoil[direct]
    told: list[dict[str, Any]] = []
    reduce._one(lambda kind, **row: told.append(row), op, 8, SIZE, RANKS, 0, SimpleNamespace(type="cuda"))
    assert [(row["graph"], row["right"], row["us"]) for row in told] == [(False, direct, 30.0), (True, replayed, 3.0)]
    assert all((row["op"], row["b"], row["bytes"]) == (op, 8, SIZE) for row in told)


def test_no_two_ranks_send_the_same_and_sums_are_exact(links: Links) -> None:
    sent = [reduce.values(64, rank, None) for rank in range(30)]
    assert all(not np.array_equal(one, other) for one, other in combinations(sent, 2))
    assert sum(reduce.values(6_144 * 64, rank, None) for rank in range(28)).max() <= 256
    parcels = [reduce.parcel(6_144, source, to, 15, None) for source in range(15) for to in range(15)]
    assert len({one.tobytes() for one in parcels}) == 15 * 15


@pytest.mark.parametrize(("well", "errors"), [(True, []), (False, ["GPU 1: not what was sent came back"])])
def test_what_the_host_gets_back_wrong_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, well: bool, errors: list[str]
) -> None:
    card = {"kind": "host", "rank": 0, "right_small": True, "right_large": True}
    look = {"kind": "look", "backend": "nccl", "torch": "2", "nccl": "2", "cards": ["a", "b"], "granted": []}
    rows: dict[str, list[dict[str, Any]]] = {
        "what-torch-sees": [look],
        "host-copies": [card | {"gpu": 0}, card | {"gpu": 1, "right_large": well}],
    }

    def together(ranks: int, limit: float, work: Callable[[int, Emit], None], folder: Path) -> Outcome:
        return Outcome("ok", tuple(rows.get(folder.name, ())))

    monkeypatch.setattr(cli, "together", together)
    told = cli.measure(cli.arguments([]), tmp_path)
    assert [one["text"] for one in told["errors"]] == errors


@pytest.mark.parametrize(
    ("change", "rc"),
    [
        ({}, 0),
        ({"ladder": {"word": "wrong data", "why": ["0 -> 1: copy arrived wrong"]}}, 1),
        ({"errors": [{"part": "host copies", "state": "wrong data", "text": "GPU 1: not what was sent came back"}]}, 1),
    ],
)
def test_a_measurement_that_found_anything_wrong_does_not_end_with_0(change: dict[str, Any], rc: int) -> None:
    said, told = Recorder(), json.loads((Path(__file__).parent / "data" / "collectives-two-h200.json").read_text())
    session = SimpleNamespace(
        each=lambda _: [SimpleNamespace(value=told | change, host="glm5-a")],
        report=Reporter(said),
        tell_errors=lambda _: 0,
    )
    assert between.collectives_hosts(cast(Session, session)) == rc
    assert any("wrong" in event.text for event in said.events) is bool(rc)
