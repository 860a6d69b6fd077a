"""The signature table: what a line looks like, what it means, which page, and where that was seen in public.

`rank` says how near a line stands to the beginning of the crash chain: 0 is a root (the kernel killed it), 9 is an echo
(systemd saw status 9/KILL, which NaN, an OOM kill and a clean stop of SGLang 0.5.10 all end in). The lowest rank wins.
Patterns are for the kind of line, not for the instance: no addresses, versions or names of one machine.
"""

from __future__ import annotations

from runbooks.diagnose import machine
from runbooks.diagnose.signature import Signature


def _start() -> tuple[Signature, ...]:
    return (
        Signature(
            "unknown-flag",
            r"error: unrecognized arguments: (.*)|error: (ambiguous option: .*)",
            "SGLang does not know a flag of this profile: {0}",
            "name the argument by its canonical name in the profile; flags come and go between versions",
            "deploy-failed",
            "sglang #4116, #5032, #12818; names changed by #25821",
            rank=1,
        ),
        Signature(
            "bad-value",
            r"error: (argument .*: (?:invalid|expected).*)",
            "SGLang refuses a value of this profile: {0}",
            "correct the value in the profile, then deploy again",
            "deploy-failed",
            "argparse",
            rank=1,
        ),
        Signature(
            "bad-combination",
            (
                r"(?:ValueError|AssertionError): (.*(?:two batch overlap|moe_a2a_backend|tilelang DSA|expert parallel "
                r"size|kv.?cache).*)"
            ),
            "SGLang refuses this combination of settings: {0}",
            "change the profile, then deploy again",
            "deploy-failed",
            "sglang #40286; server_args.py",
            rank=2,
        ),
        Signature(
            "no-mtp-layer",
            r"MTP speculative decoding layer \d+ weights missing",
            "the checkpoint has no MTP layer, and the profile asks for speculative decoding",
            "a profile without speculative decoding, or the checkpoint that has the layer",
            "deploy-failed",
            "local-inference-lab/rtx6kpro models/glm5.md",
            rank=1,
        ),
        Signature(
            "port-in-use",
            r"address already in use|Errno 98\b|port \d+ is (?:not available|already in use|occupied)",
            "another process listens on the server's port",
            "find it with: ss -ltnp; a stale SGLang child is ended by: systemctl kill sglang.service",
            "deploy-failed",
            "sglang #22779",
            rank=1,
        ),
        Signature(
            "gpu-memory",
            r"(?:cuda|torch)\.OutOfMemoryError|CUDA out of memory|Not enough memory\. Please try to increase "
            r"--mem-fraction-static"
            r"|memory capacity is unbalanced",
            "the GPUs' memory does not suffice, or something else holds it",
            "nvidia-smi shows who holds it; then lower mem_fraction_static or cuda_graph_max_bs_decode in the profile",
            "deploy-failed",
            "sglang #29580; model_runner.py",
            rank=2,
        ),
        Signature(
            "unsupported-architecture",
            r"Unsupported architecture|no kernel image is available|sm_120.? is not defined|has no attribute "
            r"'get_num_sms'"
            r"|name 'deep_gemm' is not defined|out of resource: shared memory|smem",
            "a kernel in use was not made for SM120",
            "another attention or MoE backend in the profile, or a runtime that has the SM120 kernels",
            "deploy-failed",
            "sglang #26087, #29562, #37105; triton #8539",
            rank=2,
        ),
        Signature(
            "model-unknown",
            r"KeyError: 'glm_moe_dsa'|does not recognize this architecture|model type .glm_moe_dsa. but Transformers",
            "the runtime's transformers is too old for this model",
            "a runtime with transformers 5.2 or newer: invoke provision --tags runtime",
            "deploy-failed",
            "sglang #19408; zai-org/GLM-5 #22",
            rank=1,
        ),
        Signature(
            "weights-broken",
            (
                r"HeaderTooLarge|InvalidHeader|SafetensorError|MetadataIncompleteBuffer|IncompleteMetadata"
                r"|InvalidJSON.*safetensors"
            ),
            "a weights file is truncated, or is a pointer instead of the file",
            "invoke provision --tags model",
            "model-download",
            "transformers #27923",
            rank=1,
        ),
        Signature(
            "weights-unreadable",
            r"(?:FileNotFoundError|PermissionError|OSError)[^\n]*\.(?:safetensors|json|bin)\b"
            r"|HFValidationError|Cannot find any model weights|does not appear to have a file named"
            r"|not a valid (?:JSON|model)",
            (
                "the model's files are missing, or the server's user may not read them (SGLang says 'No such file' "
                "for both)"
            ),
            "invoke provision --tags model, then compare owners: ls -l in the model's folder",
            "model-download",
            "seen on SGLang 0.5.10.post1 with files of mode 0600",
            rank=2,
        ),
        Signature(
            "module-missing",
            (
                r"ModuleNotFoundError: No module named|python[\d.]*: No module named|undefined symbol: "
                r"_Z|ImportError: .*\.so"
            ),
            "the runtime is incomplete, or its packages do not fit together",
            "invoke provision --tags runtime",
            "deploy-failed",
            "flash-attention #1644, #1832",
            rank=2,
        ),
        Signature(
            "disk-full",
            r"No space left on device|ENOSPC|Bus error",
            "a disk, or /dev/shm, is full",
            "df -h / /dev/shm shows which one",
            "disk-full",
            "nccl #290, #342; sglang #6083",
            rank=1,
        ),
        Signature(
            "unit-broken",
            r"status=203/EXEC|Failed to locate executable|status=217/USER|status=226/NAMESPACE|Failed to load "
            r"environment files"
            r"|Failed at step \w+ spawning",
            "systemd cannot start the program: its file, user or folders are not there",
            "invoke provision, then deploy again",
            "deploy-failed",
            "systemd.exec(5)",
            rank=1,
        ),
    )


def _running() -> tuple[Signature, ...]:
    return (
        Signature(
            "nan",
            r"probability tensor contains either|NaN in the logits|NaN detected|nan or element < 0"
            r"|TensorCompare\.cu|not JSON compliant",
            "the model computes NaN: the sampler's assert takes the server down",
            "invoke rollback, then the page",
            "nan-output",
            "sglang #35324, flashinfer #2708; seen on SGLang 0.5.9 and 0.5.23",
            rank=1,
        ),
        Signature(
            "driver-mismatch",
            r"Driver/library version mismatch|CUDA driver version is insufficient|Failed to initialize NVML",
            "the loaded kernel module and the driver's libraries have different versions",
            "invoke provision --tags driver (reboots when it has to)",
            "driver-mismatch",
            "unattended upgrades; canonical and homelab reports",
            rank=1,
            where="any",
        ),
        Signature(
            "no-gpus",
            r"No devices were found|No CUDA GPUs are available|no CUDA-capable device|No NVIDIA devices probed",
            "the driver finds no GPU",
            "invoke health, then invoke provision --tags driver",
            "gpu-lost",
            "NVIDIA/open-gpu-kernel-modules #862",
            rank=1,
            where="any",
        ),
        Signature(
            "launch-failure",
            (
                r"unspecified launch failure|illegal memory "
                r"access|CUDA_ERROR_(?:INVALID_VALUE|LAUNCH_FAILED|ILLEGAL_ADDRESS)"
            ),
            "a GPU kernel crashed",
            "invoke rollback; the lines before it name the kernel",
            "nan-output",
            "sglang #29453; vllm #34948",
            rank=2,
        ),
        Signature(
            "device-assert",
            r"device-side assert triggered",
            "an assert in a GPU kernel fired; with sampling this is nearly always NaN",
            "invoke rollback, then the page",
            "nan-output",
            "sglang #35324",
            rank=2,
        ),
        Signature(
            "nccl",
            (
                r"ncclSystemError|ncclInternalError|ncclUnhandled|NCCL error|NCCL "
                r"WARN|ProcessGroupNCCL.*(?:timeout|timed out)"
            ),
            "the GPUs cannot talk to each other",
            "NCCL_DEBUG=INFO in the profile's environment shows where; peer-to-peer in a VM is the first suspect",
            "server-down",
            "nccl #1999, #2079, #2335",
            rank=3,
        ),
        Signature(
            "watchdog",
            r"(?:Scheduler|Detokenizer|TokenizerManager)? ?watchdog timeout",
            "the scheduler made no progress for the watchdog's time and was ended",
            "GPUs at 100 % and about 140 W mean a hung collective: invoke health",
            "server-down",
            "scheduler.py; vllm #51921",
            rank=4,
        ),
        Signature(
            "health-check-failed",
            r"Health check failed\. Server couldn't get a response from detokenizer",
            "no token came for 20 seconds: a long prefill, or a hang",
            "invoke health tells busy from stuck",
            "server-down",
            "sglang #22511, #26482, #10856",
            rank=5,
        ),
        Signature(
            "scheduler-died",
            r"Scheduler hit an exception|scheduler_?\d* .*(?:died|crashed)|scheduler died during initialization"
            r"|Received sigquit from a child process|SIGQUIT received",
            "SGLang's scheduler died; the exception stands above this line",
            "journalctl -u sglang -e shows the exception",
            "server-down",
            "managers/scheduler.py",
            rank=7,
        ),
        Signature(
            "restart-limit",
            r"Start request repeated too quickly",
            "systemd gave up after several starts that failed",
            "find the first failure above; then: systemctl reset-failed sglang",
            "server-down",
            "systemd.unit(5)",
            rank=8,
        ),
        Signature(
            "stopped",
            r"SIGTERM received|Stopping sglang|Gracefully exiting",
            "somebody stopped it (SGLang 0.5.10 then ends with status 9/KILL, which looks like a crash)",
            "systemctl start sglang",
            "server-down",
            "seen on SGLang 0.5.10.post1 under systemd",
            rank=8,
        ),
    )


SIGNATURES: tuple[Signature, ...] = (*machine.kernel(), *_start(), *_running(), *machine.build())

HARMLESS = (
    r"Ignore import error when loading",  # optional model classes
    # every open module that nobody signed says so
    r"module verification failed: signature and/or required key missing - tainting kernel",
    r"Config file not found at .*\.json",  # a slower default, not a failure
    r"UserWarning|DeprecationWarning|FutureWarning",
    r"server_args=",  # repeats every setting, names of failures among them
)
"""Lines that speak of failures and are none."""
