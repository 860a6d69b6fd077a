"""The example inventory is the manual: it loads and explains every key; faults in a copy are said with their line."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runbooks.engine.errors import UsageError
from runbooks.engine.secret import Secret
from runbooks.inventory import Loaded, load, select
from runbooks.inventory.shape import Inventory, SecretRef

EXAMPLE = Path(__file__).parents[2] / "inventory.yaml"
TEXT = EXAMPLE.read_text()


def refused(folder: Path, text: str) -> str:
    path = folder / "my.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


def line_of(text: str, needle: str) -> int:
    return text[: text.index(needle)].count("\n") + 1


def structs(kind: type, seen: set[type]) -> Iterator[type]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from structs(field.type, seen)
    for inner in typing.get_args(kind):
        yield from structs(inner, seen)


def test_the_example_loads() -> None:
    loaded = load(EXAMPLE)
    assert loaded.inventory.gpus.count == 8
    assert loaded.model_for("glm5-a").shape.routed_expert_bytes == 407.7e9
    assert loaded.runtime_for("glm5-a").sglang == "0.5.23"
    assert loaded.inventory.bench.reference[64] == 1010.6
    assert loaded.place("gpus", "count") == f"{EXAMPLE}:{line_of(TEXT, '  count: 8')}"


def test_every_key_is_explained_in_a_comment() -> None:
    """`#   key   what it means`, or `# key: ...` for a key of the top level."""
    explained = set(re.findall(r"^\s*#\s+([a-z_0-9]+)(?::|\s{2,})", TEXT, re.MULTILINE))
    explained |= set(re.findall(r"[{`](env|file|command|generate):", TEXT))
    explained |= set(re.findall(r"^\s*#\s+([a-z_]+) \(optional", TEXT, re.MULTILINE))
    missing = {
        f"{struct.__name__}.{name}"
        for struct in structs(Inventory, set())
        for name in (field.name for field in msgspec.structs.fields(struct))
        if name not in explained
    }
    assert not missing


def test_routed_expert_bytes_follow_from_the_shape() -> None:
    shape = load(EXAMPLE).model_for("glm5-a").shape
    moe_intermediate_size = 2048
    weights = shape.moe_layers * shape.experts * 3 * shape.hidden * moe_intermediate_size
    assert shape.routed_expert_bytes == pytest.approx(weights * 0.5625, rel=1e-3)
    assert shape.kv_bytes_per_token == (576 * 2 + 132) * shape.layers


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    address: 192", "    adress: 192", "hosts.glm5-a.adress: unknown key; did you mean address?"),
        ("  count: 8", "  count: eight", "gpus.count: should be a whole number, found 'eight'"),
        ("  count: 8", "  count: true", "gpus.count: should be a whole number, found true"),
        ("  count: 8", "  count: 0", "gpus.count: should be above 0, found 0"),
        ('arch: "12.0"', "arch: 12.0", 'gpus.arch: should be text, found 12.0; put it in quotes: "12.0"'),
        ("hosts: [glm5-a]", "hosts: glm5-a", "groups.all-glm5.hosts: should be a list"),
        (
            "hosts: [glm5-a]",
            "hosts: [glm5-b]",
            "groups.all-glm5.hosts[0]: there is no host named 'glm5-b'; did you mean",
        ),
        ("runtime: sglang-0.5.23\n", "runtime: sglang-0.5.2\n", "runtime: there is no runtime named 'sglang-0.5.2'"),
        ("model: glm-5-nvfp4\n", "model: llama\n", "model: there is no model named 'llama'; there are: glm-5-nvfp4"),
        (
            "    extends: baseline",
            "    extends: basline",
            "profiles.final.extends: there is no profile named 'basline'",
        ),
        ("    extends: baseline", "    extends: dense", "goes in a circle: final -> dense -> final"),
        ("    # sudo: password", "    sudo: pasword", "hosts.glm5-a.sudo: should be auto or password, found 'pasword'"),
        ("    # token: {env: HF_TOKEN}", "    token: {env: A, file: b}", "a secret has exactly one source"),
        ("    # token: {env: HF_TOKEN}", "    token: {}", "a secret has exactly one source"),
        ("    # token: {env: HF_TOKEN}", "    token: hf_abc", "models.glm-5-nvfp4.token: should be a secret's source"),
        ("  port: 30000", "  port: 300000", "server.port: should be a port between 1 and 65535"),
        ("    user: ops", "    user: ops\n    user: root", "hosts.glm5-a.user: a second time; the first is on line"),
        ("    user: ops", "\tuser: ops", "a tab; YAML is indented by spaces only"),
        ("{1: 50.4", "{one: 50.4", "bench.reference.one: the key should be a whole number, found 'one'"),
        ("  glm5-a:\n", "  '!a':\n", "begins with no '.' or '-'"),
        ("    path: /srv", "    path: srv", "should be an absolute path"),
        (
            "source: hf:lukealonso",
            "source: lukealonso",
            "should be hf:OWNER/NAME, an http(s) folder, ssh://USER@HOST/PATH or an absolute path",
        ),
        ("  version: 580.126.20 ", "  # version: 580.126.20 ", "driver: the key 'version' is missing"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new, 1)
    shown = refused(tmp_path, text)
    assert said in shown
    assert re.search(r"my\.yaml:\d+  ", shown)


def test_the_line_is_the_line(tmp_path: Path) -> None:
    text = TEXT.replace("  count: 8", "  cuont: 8")
    assert f"my.yaml:{line_of(text, 'cuont: 8')}  gpus.cuont: unknown key; did you mean count?" in refused(
        tmp_path, text
    )


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = (
        TEXT.replace("  count: 8", "  count: x").replace("  port: 30000", "  port: x").replace("user: ops", "usr: ops")
    )
    assert "3 problems" in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- a\n", "should be a mapping"),
        ("just text\n", "should be a mapping"),
        ("hosts: {a: [}\n", "not YAML"),
        ("a: 1\n---\nb: 2\n", "another document"),
        ("hosts: &x [*x]\n", "an alias points at something that contains it"),
        ("hosts: !!python/name:os.system x\n", "could not determine a constructor"),
        ("? [a, b]\n: 1\n", "unknown key"),
        ("a: \x01\n", "not YAML"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('a: 1\nb:\n  c: "open\n  d: 2\n  e: "x"\nf: 3\n', 3, "the quote that is opened here ends on line 5"),
        ("a: 'open\nb: 'x'\n", 1, "the quote that is opened here ends on line 2"),
        ("a: {b: 'open,\n  c: 'x'}\n", 1, "the quote that is opened here ends on line 2"),
        ("a: 1\nb: 'open\nc: 2\n", 2, "a quote is opened here, and never closed"),
        ("a: 'fine,\n  on two lines'\nb: 1\n c: 2\n", 4, "not YAML"),  # another mistake, below a whole quote
    ],
)
def test_a_quote_that_is_not_closed_is_named_where_it_begins(tmp_path: Path, text: str, line: int, said: str) -> None:
    told = refused(tmp_path, text)
    assert f":{line}  " in told
    assert said in told


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no inventory at .*nowhere\.yaml") as caught:
        load(tmp_path / "nowhere.yaml")
    assert "cp inventory.yaml" in str(caught.value.next)
    with pytest.raises(UsageError, match="is a folder"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"hosts: \xe9\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        load(tmp_path / "latin.yaml")


def test_one_typo_that_many_places_name_is_one_line(tmp_path: Path) -> None:
    shipped = (Path(__file__).parents[2] / "inventory.yaml").read_text()
    (tmp_path / "my.yaml").write_text(shipped.replace("    extends: final\n", "    extends: finale\n"))
    with pytest.raises(UsageError, match=": 1 problem") as caught:
        load(tmp_path / "my.yaml")
    (said,) = caught.value.details
    above, *below = shipped.split("    extends: final\n")
    line, count = above.count("\n") + 1, len(below)
    assert said.startswith(f"my.yaml:{line}  profiles.")
    assert said.endswith(f"no profile named 'finale'; did you mean final?   (the first of {count} places)")
    few = shipped.replace("    extends: final\n", "    extends: finale\n", 3)
    (tmp_path / "my.yaml").write_text(few)
    with pytest.raises(UsageError, match=": 3 problems"):
        load(tmp_path / "my.yaml")


def test_what_is_no_inventory_by_its_size_is_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text("a: [" + "x, " * 500_000 + "]\n")
    for path in (tmp_path / "large.yaml", Path("/dev/zero")):
        with pytest.raises(UsageError, match="is larger than 1 MB"):
            load(path)


def test_anchors_and_yaml_12_words(tmp_path: Path) -> None:
    text = TEXT.replace(
        "  glm5-a:\n    address: 192.0.2.10 ",
        "  glm5-b: &b {address: 192.0.2.11, port: 2222}\n"
        "  no: {<<: *b, address: on}\n  glm5-a:\n    address: 192.0.2.10 ",
    )
    (tmp_path / "my.yaml").write_text(text)
    hosts = load(tmp_path / "my.yaml").inventory.hosts
    assert (hosts["no"].address, hosts["no"].port) == ("on", 2222)


def test_select(tmp_path: Path) -> None:
    more = "  glm5-b: {address: 192.0.2.11}\n  web-1: {address: 192.0.2.12}\n  glm5-a:\n"
    (tmp_path / "my.yaml").write_text(TEXT.replace("  glm5-a:\n", more, 1).replace("[glm5-a]", "[glm5-b, glm5-a]", 1))
    loaded = load(tmp_path / "my.yaml")
    assert select(loaded) == ["glm5-b", "web-1", "glm5-a"]
    assert select(loaded, ["glm5-*"]) == ["glm5-b", "glm5-a"]
    assert select(loaded, ["all-glm5", "!glm5-a"]) == ["glm5-b"]
    assert select(loaded, ["!all-glm5"]) == ["web-1"]
    assert select(loaded, ["glm5-a,web-1"]) == ["web-1", "glm5-a"]
    with pytest.raises(UsageError, match="did you mean glm5-a"):
        select(loaded, ["glm5a"])
    with pytest.raises(UsageError, match="no host is left"):
        select(loaded, ["web-1", "!web-*"])
    with pytest.raises(UsageError, match="no host or group matches 'x'"):
        select(loaded, ["!x"])


def test_secrets_are_read_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.yaml").write_text(TEXT)
    loaded = load(tmp_path / "my.yaml")
    monkeypatch.setenv("RUNBOOKS_TEST_SECRET", "secret-3")
    (tmp_path / "key").write_text("secret-4\n")
    (tmp_path / "key").chmod(0o600)
    assert loaded.secret(SecretRef(env="RUNBOOKS_TEST_SECRET")) == Secret("secret-3")
    assert loaded.secret(SecretRef(file="key")) == Secret("secret-4")
    assert loaded.secret(SecretRef(command=("echo", "secret-5"))) == Secret("secret-5")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(UsageError, match="others can read it"):
        loaded.secret(SecretRef(file="key"))


def test_the_shipped_server_has_a_key_that_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(EXAMPLE.read_text())
    loaded = load(path)
    ref = loaded.inventory.server.api_key
    assert ref is not None
    with pytest.raises(UsageError, match="secrets/api-key is not there"):
        loaded.secret(ref)
    assert [one.name for one in tmp_path.iterdir()] == ["inventory.yaml"]  # reading makes nothing
    first = loaded.source(ref).make()
    assert len(first.reveal()) > 40
    assert loaded.secret(ref) == first == loaded.source(ref).make()
    made = tmp_path / "secrets" / "api-key"
    assert (made.stat().st_mode & 0o777, made.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [one.name for one in made.parent.iterdir()] == ["api-key"]


def _server(tmp_path: Path, line: str) -> Loaded:
    path = tmp_path / "inventory.yaml"
    path.write_text(re.sub(r"  api_key: .*\n", line, EXAMPLE.read_text()))
    return load(path)


def test_a_server_without_a_line_has_a_key_too(tmp_path: Path) -> None:
    shipped = load(EXAMPLE).inventory.server
    assert _server(tmp_path, "").inventory.server == shipped
    assert _server(tmp_path, "  api_key: open\n").inventory.server.api_key is None


@pytest.mark.parametrize("line", ["  api_key:\n", "  api_key: null\n", "  api_key: none\n", "  api_key: sk-1\n"])
def test_no_server_is_open_by_accident(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match=r"should be a secret .* or `open`"):
        _server(tmp_path, line)


def test_only_the_servers_key_can_be_generated(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(
        EXAMPLE.read_text().replace("    user: ops", "    sudo_password: {file: p, generate: true}\n    user: ops", 1)
    )
    with pytest.raises(UsageError, match="only the server's API key can be generated"):
        load(path)


def test_only_a_file_can_be_generated(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(EXAMPLE.read_text().replace("file: secrets/api-key, generate", "env: KEY, generate"))
    with pytest.raises(UsageError, match="only a file can be generated"):
        load(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("      page_size: 64      ", "      page_sise: 64      ", "'page_sise'; did you mean page_size?"),
        ("          page_size: null", "          page-sise: null", "'page_sise'; did you mean page_size?"),
        ("      kv_cache_dtype: fp8_e4m3\n", "      kv_cache_dtyp: fp8_e4m3\n", "'kv_cache_dtyp'; did you mean kv_"),
        ("args: {mem_fraction_static: 0.85}", "args: {zzzzzzzz: 1}", "'zzzzzzzz'\n"),
        ("args: {mem_fraction_static: 0.85}", "args: {tp: 8}", "'tp'; did you mean tp_size?"),
        (
            "args: {mem_fraction_static: 0.85}",
            "args: {enable_pcie_oneshot_allreduce: true}",
            "'enable_pcie_oneshot_allreduce': only forks",
        ),
    ],
)
def test_an_argument_that_no_version_has_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new, 1)
    told = refused(tmp_path, text) + "\n"
    assert f"my.yaml:{line_of(text, new)}  profiles." in told
    assert f"no SGLang from 0.5.8.post1 to 0.5.23 has an argument {said}" in told


@pytest.mark.parametrize(
    "name", ["nsa_decode_backend", "--tensor-parallel-size", "enable_nan_detection", "cuda-graph-max-bs"]
)
def test_an_argument_that_some_version_has_waits_for_the_deploy(tmp_path: Path, name: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(TEXT.replace("args: {mem_fraction_static: 0.85}", f'args: {{"{name}": 8}}', 1))
    assert name in load(path).inventory.profiles["mem-085"].args


def test_what_is_expected_may_be_no_argument(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(TEXT.replace("expect: {attention_backend: flashinfer}", "expect: {weight_version: default2}", 1))
    load(path)
    path.write_text(TEXT.replace("expect: {attention_backend: flashinfer}", "expect: {load_time_of_all: 1}", 1))
    load(path)


def test_all_mistakes_of_a_list_are_said_at_once(tmp_path: Path) -> None:
    """Of the wrong kind, and of the right kind with a wrong value; elsewhere in the file as well."""
    text = re.sub(r"(?m)^  concurrency: \[.*?\]", "  concurrency: [1, 0, two]", TEXT)
    told = refused(tmp_path, text.replace("  version: 580.126.20 ", "  version: newest ", 1))
    assert "3 problems" in told
    for part in ("concurrency[1]: should be 1 or more", "concurrency[2]: should be a whole", "driver.version: should"):
        assert part in told
