"""`python -m bench.gpu.example ARCHIVE`: the bundled example results, from what measure.sh brought home.

`python -m bench.gpu.example --tools FOLDER` builds the three programs that measure.sh runs.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from runbooks.bench import EXAMPLE, hardware, measured
from runbooks.bench.results import FORMAT, as_json, digest_of
from runbooks.bench.sweep import finish
from runbooks.engine.artefact import build_zipapp
from runbooks.inventory.shape import ModelShape

CARDS = 2
DENSE, HIDDEN, EXPERTS, WIDTH, HEADS, VOCABULARY = 1, 6144, 256, 2048, 64, 154_880
BYTES = 2  # BF16
ABOUT = (
    "GLM-5's own layers (transformers' GlmMoeDsa) at full width with random weights, as many as two cards hold, served "
    "by bench/gpu: not SGLang, not the trained model, and no RTX PRO 6000"
)
_STEERING = re.compile(r"^(NCCL|CUDA|TORCH|PYTORCH|OMP|TRITON)\w*=")


def shape_of(layers: int, ranks: int) -> ModelShape:
    """What one decode step of this engine reads. It keeps keys and values expanded, each rank those of its heads, and
    some small projections whole on every rank."""
    moe = layers - DENSE
    expert = 3 * HIDDEN * WIDTH
    split = (
        layers * (2048 * HEADS * 256 + 512 * HEADS * 448 + HEADS * 256 * HIDDEN) + moe * expert + 3 * HIDDEN * 12_288
    )
    whole = layers * (HIDDEN * (2048 + 576) + 2048 * 32 * 128 + HIDDEN * 160) + moe * HIDDEN * EXPERTS
    whole += HIDDEN * VOCABULARY
    return ModelShape(
        hidden=HIDDEN,
        layers=layers,
        moe_layers=moe,
        experts=EXPERTS,
        experts_per_token=8,
        routed_expert_bytes=float(moe * EXPERTS * expert * BYTES),
        other_weight_bytes=float((split + whole * ranks) * BYTES),  # whole on every rank: read by each of them
        active_params=float(moe * 8 * expert + split + whole),
        kv_bytes_per_token=layers * (HEADS // ranks * 512 + 128) * BYTES,
        index_topk=2048,
    )


def make(archive: Path, out: Path) -> str:
    """Returns the verdict."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / out.name
        with tarfile.open(archive) as tar:
            tar.extractall(run, filter="data")
        argv = (run / "argv").read_text().strip()
        layers = int(argv.split("--layers ")[1].split()[0])
        machine = _sections((run / "machine.txt").read_text())
        loadgen = json.loads((run / "raw" / "run.json").read_text())
        told = {
            "format": FORMAT,
            "host": "two-h200",
            "release": {},
            "command": "bench/gpu/measure.sh",
            "loadgen": loadgen,
            "canary": None,
            "about": ABOUT,
            "model": {
                "name": f"GLM-5 layers x {layers}, random weights",
                "source": f"zai-org/GLM-5 by its configuration, {layers} of 78 layers, BF16, random weights",
                "shape": msgspec.to_builtins(shape_of(layers, CARDS)),
            },
            "gpus": {"name": "NVIDIA H200", "count": CARDS},
            "reference": {},
            "reference_source": "",
            "link": "NVLink",
            "raw_sha256": {log.name: digest_of(log) for log in sorted((run / "raw").glob("*.bin"))},
        }
        for name in ("argv", "machine.txt", "raw/run.json"):
            (run / name).unlink()
        collectives = json.loads((run / measured.FILE).read_text())
        (run / measured.FILE).write_text(as_json(collectives | {"measured_on": "two-h200"}))
        (run / "run.json").write_text(as_json(told))
        (run / "provenance.json").write_text(as_json(_provenance(machine, argv)))
        assert (run / hardware.FILE).stat().st_size
        shutil.rmtree(out, ignore_errors=True)  # the old one goes when the new one is whole
        shutil.copytree(run, out)
    return finish(out).verdict.line


def _sections(text: str) -> dict[str, str]:
    parts = re.split(r"^@@ (.+)\n", text, flags=re.M)[1:]
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _provenance(machine: dict[str, str], argv: str) -> dict[str, Any]:
    packages = re.findall(r"^((?:torch|transformers|triton|nvidia-nccl\S*) +\S+)", machine["python3 -m pip list"], re.M)
    environment = [line for line in machine["env"].splitlines() if _STEERING.match(line)]
    cpu = [
        line
        for line in machine["lscpu"].splitlines()
        if re.match(r"(Model name|Socket|Core|Thread|CPU\(s\)|NUMA)", line)
    ]
    return {
        "system": {
            "kernel": machine["uname -srvm"],
            "cpu": "\n".join(cpu),
            "memory": machine["cat /proc/meminfo"].splitlines()[0],
            "driver": machine["cat /proc/driver/nvidia/version"],
        },
        "gpus": {
            "nvidia_smi": machine["nvidia-smi"],
            "nvidia_smi_q": machine["nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,ECC,TEMPERATURE"],
            "topology": machine["nvidia-smi topo -m"],
            "peer_to_peer": machine["nvidia-smi topo -p2p r"],
        },
        "server": {"argv": argv, "environment": "\n".join(sorted(environment)), "packages": "\n".join(packages)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path, nargs="?")
    parser.add_argument("--tools", type=Path)
    parser.add_argument("--out", type=Path, default=EXAMPLE)
    options = parser.parse_args()
    if options.tools:
        options.tools.mkdir(parents=True, exist_ok=True)
        for name in ("loadgen", "sampler", "collectives"):
            (options.tools / f"{name}.pyz").write_bytes(build_zipapp(f"runbooks.bench.{name}", "cli:main"))
        print(f"{options.tools}, made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    if options.archive:
        print(make(options.archive, options.out))


if __name__ == "__main__":
    main()
