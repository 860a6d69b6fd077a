"""The flag tables and every shipped profile, held against the parsers of real SGLang wheels. Needs a package index."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from lab.engine import flags as real
from lab.engine.prepared import PYTHON
from runbooks.engine.errors import UsageError
from runbooks.inventory import load
from runbooks.sglang.argv import build

SHIPPED = load(Path(__file__).parents[2] / "inventory.yaml").inventory
MODEL = SHIPPED.models[SHIPPED.model]
RUNTIME = SHIPPED.runtimes[SHIPPED.runtime]
SEED = [
    ["--model-path=/m", "--nsa-decode-backend", "trtllm", "--nsa-prefill-backend", "trtllm"],
    ["--model-path=/m", "--enable_metrics"],
]


@pytest.mark.slow
@pytest.mark.parametrize(("version", "taken"), [("0.5.9", [True]), ("0.5.10.post1", [True]), ("0.5.23", [False])])
def test_the_real_parser_is_what_our_table_says_and_takes_what_we_spell(version: str, taken: list[bool]) -> None:
    runtime = msgspec.structs.replace(RUNTIME, sglang=version)
    spelled: dict[str, tuple[str, ...]] = {}
    for name in SHIPPED.profiles:
        try:
            spelled[name] = build(SHIPPED, name, model=MODEL, runtime=runtime, advise=False).argv
        except UsageError:
            continue
    arguments, refused = real.read(version, [*spelled.values(), *SEED])
    assert real.differences(real.of_table(version), arguments) == []
    assert {name: said for name, said in zip(spelled, refused, strict=False) if said} == {}
    assert [said is None for said in refused[len(spelled) :]] == [*taken, False]
    assert len(spelled) >= 4
    assert PYTHON == (3, 11)


def test_a_version_that_changes_nothing_grows_every_line_and_none_else() -> None:
    data = json.loads(real.TABLES.read_text())
    last = data["versions"][-1]
    grown = real.merged(data, "9.9.9", real.of_table(last))
    assert grown["versions"][-1] == "9.9.9"
    assert len(grown["arguments"]) == len(data["arguments"])
    assert {line["to"] for line in grown["arguments"]} >= {"9.9.9"}
    assert last not in {line["to"] for line in grown["arguments"]}
    assert real.dump(data) == real.TABLES.read_text()


def test_what_changed_begins_a_new_line() -> None:
    data = {"versions": ["1"], "arguments": [{"from": "1", "to": "1", "options": ["--a"], "dest": "a", "kind": "flag"}]}
    new = [{"options": ["--a"], "dest": "a", "kind": "store"}, {"options": ["--b"], "dest": "b", "kind": "flag"}]
    assert real.differences(data["arguments"], new) == [  # type: ignore[arg-type]
        "new: --b kind flag",
        "changed: --a kind: flag -> store",
    ]
    lines = real.merged(data, "2", new)["arguments"]
    assert [(line["from"], line["to"], line["options"][0]) for line in lines] == [
        ("1", "1", "--a"),
        ("2", "2", "--a"),
        ("2", "2", "--b"),
    ]
