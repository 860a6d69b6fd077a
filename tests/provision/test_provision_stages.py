"""The stages as values: what they hold on which system, and the names of what they build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runbooks.engine.facts import Facts
from runbooks.engine.step import Change, Question, Stage, State, Step, Verdict
from runbooks.inventory import Loaded, load
from runbooks.inventory.runtimes import runtime_path, runtime_paths
from runbooks.inventory.shape import FlashAttn, PythonIndex, Runtime
from runbooks.provision import TAGS, stages
from runbooks.provision.driver import headers
from runbooks.provision.flash_attn import cause, max_jobs, wheel_folder
from runbooks.steps.build import BuiltOnce
from runbooks.steps.checks import free_space

UBUNTU = Facts(
    os_id="ubuntu", os_version="24.04", codename="noble", arch="x86_64", deb_arch="amd64", kernel="6.8.0-63-generic",
    boot_id="b", cores=128, memory_bytes=1024 * 10**9, python="3.12", systemd=255, virt="kvm", boot_loader="grub",
    fqdn="h",
)  # fmt: skip
DEBIAN = replace(UBUNTU, os_id="debian", os_version="12", codename="bookworm", kernel="6.1.0-28-cloud-amd64")
GUEST = replace(DEBIAN, virt="systemd-nspawn")


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(Path(__file__).parents[2] / "inventory.yaml")


def every_step(found: list[Stage]) -> dict[str, Step]:
    return {step.id: step for stage in found for step in stage.steps}


def blank(step: Step) -> dict[Question, State]:
    """A host on which nothing is there."""
    return {question: {} for question in step.questions()}


def test_stages_in_their_order(loaded: Loaded) -> None:
    found = stages(UBUNTU, loaded, "glm5-a")
    assert [stage.name for stage in found] == [
        "system", "base", "driver sources", "driver packages", "driver loaded", "cuda", "flash-attn", "runtime",
        "toolkit", "model",
    ]  # fmt: skip
    assert {tag for stage in found for tag in stage.tags} == set(TAGS) - {"node", "vm"}
    assert [stage.name for stage in found if stage.optional] == ["flash-attn", "toolkit"]
    for stage in found:
        assert len({step.id for step in stage.steps}) == len(stage.steps), "an id stands for one step of its stage"


def test_repositories_are_named_by_system(loaded: Loaded) -> None:
    for facts, name in ((UBUNTU, "ubuntu2404"), (DEBIAN, "debian12")):
        source: Any = every_step(stages(facts, loaded, "glm5-a"))["file /etc/apt/sources.list.d/nvidia.sources"]
        assert f"URIs: https://developer.download.nvidia.com/compute/cuda/repos/{name}/x86_64/\n" in source.content


@pytest.mark.parametrize(
    ("kernel", "meta"),
    [
        ("6.8.0-63-generic", "linux-headers-generic"),
        ("6.8.0-1015-kvm", "linux-headers-kvm"),
        ("6.1.0-28-amd64", "linux-headers-amd64"),
        ("6.1.0-28-cloud-amd64", "linux-headers-cloud-amd64"),
        ("6.12.48+deb13-amd64", "linux-headers-amd64"),
        ("6.12.48+deb13+1-cloud-amd64", "linux-headers-cloud-amd64"),
        ("6.14.0-29-generic", "linux-headers-generic"),
    ],
)
def test_headers_of_this_kernel_and_the_next(kernel: str, meta: str) -> None:
    assert headers(replace(UBUNTU, kernel=kernel)) == (f"linux-headers-{kernel}", meta)


def test_a_container_has_no_kernel_side(loaded: Loaded) -> None:
    machine, guest = (set(every_step(stages(facts, loaded, "glm5-a"))) for facts in (DEBIAN, GUEST))
    assert guest < machine
    assert {step.split(" ")[0] for step in machine - guest} == {
        *("sysctl", "packages", "initramfs", "open"),
        *("module", "time"),  # of every kernel; synchronisation
    }


NOTHING_TO_DO = (
    *("cloud-init", "initramfs ", "one entry for", "without ", "module of every kernel"),
    *("apt's timers", "mirror "),
)
"""On a host with nothing there: what only mends what is wrong."""


def test_a_blank_host_wants_everything(loaded: Loaded) -> None:
    """Every step that is no check wants a change, says what, and its script is one that a shell can read."""
    import subprocess

    for name, step in every_step(stages(UBUNTU, loaded, "glm5-a")).items():
        plan = step.plan(blank(step))
        if isinstance(plan, Verdict) or name.startswith(NOTHING_TO_DO):
            continue
        assert isinstance(plan, Change), name
        assert plan.diff, name
        done = subprocess.run(["sh", "-n"], input=plan.script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"


RUNTIME = Runtime(sglang="0.5.23", why="w", packages=("sglang==0.5.23", "torch==2.14.1"))
FLASH = FlashAttn(version="2.8.3.post2", archs="120")


def test_a_runtime_is_named_by_what_is_in_it() -> None:
    path = runtime_path(RUNTIME, FLASH)
    assert path.startswith("/opt/runbooks/runtimes/")
    assert len(path.rpartition("/")[2]) == 12
    mirror = PythonIndex(url="https://mirror.example/simple")
    other_why = Runtime(sglang="0.5.23", why="x", packages=RUNTIME.packages, index=mirror)
    assert runtime_path(other_why, FLASH) == path
    others = {
        runtime_path(RUNTIME, None),
        runtime_path(RUNTIME, FlashAttn(version="2.8.4", archs="120")),
        runtime_path(Runtime(sglang="0.5.23", why="w", packages=("sglang==0.5.23",)), FLASH),
        runtime_path(Runtime(sglang="0.5.23", why="w", packages=RUNTIME.packages, env={"A": "1"}), FLASH),
    }
    assert len(others | {path}) == 5
    off = FlashAttn(version="2.8.3.post2", archs="120", enabled=False)
    assert runtime_paths(RUNTIME, off) == (runtime_path(RUNTIME, None),)
    assert runtime_paths(RUNTIME, FLASH) == (path, runtime_path(RUNTIME, None))
    assert runtime_paths(RUNTIME, FlashAttn(version="1", archs="120", required=True)) == (
        runtime_path(RUNTIME, FlashAttn(version="1", archs="120")),
    )


def test_a_wheel_is_named_by_what_decides_its_bytes(loaded: Loaded) -> None:
    inventory, runtime = loaded.inventory, loaded.runtime_for("glm5-a")
    here = wheel_folder(UBUNTU, inventory, runtime)
    assert here.startswith("/var/lib/runbooks/wheels/flash-attn-2.8.3.post2-")
    other_torch = Runtime(sglang="0.5.23", why="w", packages=("sglang==0.5.23", "torch==2.13.0"))
    assert wheel_folder(UBUNTU, inventory, other_torch) != here
    assert wheel_folder(replace(UBUNTU, python="3.13"), inventory, runtime) != here
    assert wheel_folder(replace(UBUNTU, kernel="7", cores=1), inventory, runtime) == here


@pytest.mark.parametrize(
    ("cores", "gigabytes", "jobs"), [(2, 24, 1), (16, 512, 8), (128, 96, 9), (128, 1024, 64), (1, 2, 1), (64, 8, 1)]
)
def test_as_many_compilers_as_the_memory_holds(cores: int, gigabytes: int, jobs: int) -> None:
    assert max_jobs(cores, gigabytes * 10**9) == jobs


def states_for_runtime(step: Any, *, mark: bool = False, failed: str = "") -> dict[Question, State]:
    wheel = step._wheel
    found: dict[Question, State] = dict(blank(step)) | {question: {} for question in wheel.questions()}
    if mark:
        found[wheel.mark] = {"type": "file"}
        found[wheel._file] = {"out": f"{wheel.folder}/flash_attn.whl"}
    if failed:
        found[wheel.failure] = {"type": "file", "text": f"{failed}\nlast line: nvcc error : died due to signal 11\n"}
    return found


@pytest.mark.parametrize(
    ("mark", "failed", "runtime", "wheel"),
    [
        (False, "", "with flash-attn", "build"),
        (True, "", "with flash-attn", "fine"),
        (False, "compile", "without flash-attn", "remembered"),
        (False, "before", "without flash-attn", "build"),
        (False, "unfinished", "without flash-attn", "build"),
    ],
)
def test_a_failed_flash_attn_gives_a_runtime_without_it(
    loaded: Loaded, mark: bool, failed: str, runtime: str, wheel: str
) -> None:
    step: Any = every_step(stages(UBUNTU, loaded, "glm5-a"))["runtime sglang 0.5.23"]
    answers = states_for_runtime(step, mark=mark, failed=failed)
    change = step.plan(answers)
    assert runtime in change.diff[-1].line
    wanted = loaded.inventory.flash_attn if runtime.startswith("with ") else None
    assert runtime_path(loaded.runtime_for("glm5-a"), wanted) in change.script
    plan = step._wheel.plan(answers)
    assert {"build": Change, "remembered": Verdict, "fine": type(None)}[wheel] is type(plan)
    if isinstance(plan, Verdict):
        assert "nvcc crashed" in plan.line
        assert "to try again" in str(plan.next)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "torch was not there"),
        ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", "nvcc crashed"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "out of memory"),
        ("fatal error: error writing to /tmp/x.s: No space left on device", "the disk is full"),
        ("OSError: CUDA_HOME environment variable is not set.", "no nvcc"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120'", "CUDA too old"),
        ("ERROR: No matching distribution found for flash-attn==9", "no such version"),
        ("something new", "see its last lines"),
    ],
)
def test_known_causes_of_a_failed_build(line: str, said: str) -> None:
    assert said in cause(["[12/73] nvcc -c x.cu", line, "error: subprocess-exited-with-error"])


def test_a_token_is_read_only_when_something_must_come(loaded: Loaded) -> None:
    from runbooks.engine.secret import Secret
    from runbooks.steps.downloads import Download

    asked: list[str] = []

    def token() -> Secret:
        asked.append("x")
        return Secret("hf_s3ntinel")

    step = Download(source="hf:o/n", path="/srv/m", size=1, token=token)
    free: State = {"out": "/d 1 1 999 1% /"}
    done: State = {"out": "hf:o/n main\nwhole"}
    assert step.plan(dict(zip(step.questions(), [done, free], strict=True))) is None
    assert not asked
    change = step.plan(dict(zip(step.questions(), [{}, free], strict=True)))
    assert isinstance(change, Change)
    assert "s3ntinel" not in change.script + repr(change)
    assert set(change.uploads) == {"fetch.pyz", "token"}


def test_a_proxy_is_told_to_all_that_downloads(loaded: Loaded) -> None:
    proxy = "http://proxy.example:3128"
    inventory = msgspec.structs.replace(loaded.inventory, proxy=proxy)
    found = every_step(stages(UBUNTU, replace(loaded, inventory=inventory), "glm5-a"))
    apt: Any = found["file /etc/apt/apt.conf.d/51runbooks-proxy"]
    assert f'Acquire::https::Proxy "{proxy}"' in apt.content
    told = set()
    for name, step in found.items():
        plan = step.plan(blank(step) | {free_space("/srv/models/GLM-5-NVFP4"): {"out": "/d 1 1 999999999 1% /"}})
        if isinstance(plan, Change) and proxy in plan.script and "apt.conf.d" not in name:
            told.add(name)
    assert told == {
        *(
            "apt key nvidia",
            "flash-attn 2.8.3.post2 wheel",
            "runtime sglang 0.5.23",
            "download /srv/models/GLM-5-NVFP4",
        ),
    }
    assert "file /etc/apt/apt.conf.d/51runbooks-proxy" not in every_step(stages(UBUNTU, loaded, "glm5-a"))


def test_building_once_says_where(loaded: Loaded) -> None:
    step = BuiltOnce(name="b", folder="/opt/x", recipe="true", shown=())
    change = step.plan({question: {} for question in step.questions()})
    assert isinstance(change, Change)
    assert change.diff[0].line == "new, /opt/x"
