"""The stand-in of flash-attn's source distribution: 73 objects to compile, as the real one has."""

from __future__ import annotations

import gzip
import io
import tarfile
from itertools import product
from pathlib import Path

VERSION = "2.8.3.post2"
SOURCES = Path(__file__).parent / "src"

HEAD_SIZES = (32, 64, 96, 128, 192, 256)
KINDS = ("fwd", "bwd", "fwd_split")  # times head sizes, types and causal or not: 72 kernels, named as the real ones

_KERNEL = """\
// lab stand-in: no kernel
extern "C" int {name}(void) {{ return {size}; }}
"""
_API = """\
// lab stand-in of flash_api.cpp: the functions of the real module, each of which says that it is none
#include <Python.h>
{declared}
static int (*const kernels[])(void) = {{{named}}};

static PyObject *stand_in(PyObject *, PyObject *) {{
    PyErr_SetString(PyExc_RuntimeError, "flash_attn_2_cuda is the lab stand-in: it computes nothing");
    return nullptr;
}}
static PyObject *count(PyObject *, PyObject *) {{
    return PyLong_FromSize_t(sizeof kernels / sizeof *kernels);
}}
static PyMethodDef methods[] = {{
    {{"fwd", stand_in, METH_VARARGS, "Forward pass"}},
    {{"varlen_fwd", stand_in, METH_VARARGS, "Forward pass (variable length)"}},
    {{"bwd", stand_in, METH_VARARGS, "Backward pass"}},
    {{"varlen_bwd", stand_in, METH_VARARGS, "Backward pass (variable length)"}},
    {{"fwd_kvcache", stand_in, METH_VARARGS, "Forward pass, with KV-cache"}},
    {{"kernels", count, METH_NOARGS, "How many kernels were linked in"}},
    {{nullptr, nullptr, 0, nullptr}},
}};
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "flash_attn_2_cuda", "lab stand-in", -1, methods}};
PyMODINIT_FUNC PyInit_flash_attn_2_cuda(void) {{ return PyModule_Create(&module); }}
"""


def build_sdist(out: Path) -> Path:
    """Write flash_attn-VERSION.tar.gz into `out`, the same bytes for the same sources."""
    files = {str(path.relative_to(SOURCES)): path.read_text() for path in sorted(SOURCES.rglob("*.py"))}
    files.update(_csrc())
    top = f"flash_attn-{VERSION}"
    files["PKG-INFO"] = (
        f"Metadata-Version: 2.1\nName: flash_attn\nVersion: {VERSION}\nSummary: lab stand-in of Flash Attention\n"
    )
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, text in sorted(files.items()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode, entry.mtime = len(text.encode()), 0o644, 1767225600
            archive.addfile(entry, io.BytesIO(text.encode()))
    sdist = out / f"{top}.tar.gz"
    sdist.write_bytes(gzip.compress(raw.getvalue(), mtime=0))
    return sdist


def _csrc() -> dict[str, str]:
    files, names = {}, []
    for kind, size, number, causal in product(KINDS, HEAD_SIZES, ("fp16", "bf16"), ("", "_causal")):
        name = f"flash_{kind}_hdim{size}_{number}{causal}_sm80"
        names.append(name)
        files[f"csrc/flash_attn/src/{name}.cu"] = _KERNEL.format(name=name, size=size)
    declared = "\n".join(f'extern "C" int {name}(void);' for name in names)
    files["csrc/flash_attn/flash_api.cpp"] = _API.format(declared=declared, named=", ".join(names))
    return files
