"""Signatures of a server that does not start: flags, combinations, weights, runtimes, units."""

from __future__ import annotations

from runbooks.diagnose.signature import Signature

_SETTINGS = (
    "overlap|moe_a2a_backend|moe.?runner|tilelang|expert parallel|ep_size|tp_size|tensor parallel|kv.?cache|page.?size"
    "|quantization|attention.?backend|dsa|nsa|speculative|fusion|chunked.?prefill|dp.?attention|cuda.?graph"
    "|mem.?fraction|not divisible|divisible by|context.?length"
)
_FLASH = r"flash[-_ ]?attn|flash[-_]attention"


def arguments() -> tuple[Signature, ...]:
    return (
        Signature(
            "renamed-flag",
            r"error: (?:unrecognized arguments|ambiguous option): .*?(--(?:nsa-[\w-]+|cuda-graph-(?:max-)?bs\b(?!-)"
            r"|enable-nan-detection|disable-piecewise-cuda-graph|fp4-gemm-runner-backend))",
            "this SGLang has another name for {0}",
            "the canonical name in the profile (dsa_*, cuda_graph_max_bs_decode...): it is spelled for each version",
            "deploy-failed",
            "sglang #25821, #26335; names in 0.5.20's server_args.py",
            rank=0,
        ),
        Signature(
            "unknown-flag",
            r"error: unrecognized arguments: (.*)|error: (ambiguous option: .*)|error: no such option: (.*)",
            "SGLang does not know a flag of this profile: {0}",
            "name the argument by its canonical name in the profile; flags come and go between versions",
            "deploy-failed",
            "sglang #4116, #5032, #12818; names changed by #25821",
            rank=1,
        ),
        Signature(
            "bad-value",
            r"error: (argument .*: (?:invalid|expected|not allowed|ignored).*)"
            r"|error: (the following arguments are required.*)",
            "SGLang refuses a value of this profile: {0}",
            "correct the value in the profile, then deploy again",
            "deploy-failed",
            "argparse",
            rank=1,
        ),
        Signature(
            "no-mtp-layer",
            r"MTP speculative decoding layer \d+ weights missing|(?:nextn|mtp).{0,60}(?:weights? missing|not found in)",
            "the checkpoint has no MTP layer, and the profile asks for speculative decoding",
            "a profile without speculative decoding, or the checkpoint that has the layer",
            "deploy-failed",
            "local-inference-lab/rtx6kpro models/glm5.md",
            rank=1,
        ),
        Signature(
            "bad-combination",
            rf"(?:ValueError|AssertionError|NotImplementedError): (.*(?:{_SETTINGS}).*)",
            "SGLang refuses this combination of settings: {0}",
            "change the profile, then deploy again",
            "deploy-failed",
            "sglang #40286, InferenceX #2335; server_args.py",
            rank=3,
        ),
        Signature(
            "warm-up-failed",
            r"warm-?up (?:error|failed|request failed)|Initialization failed\. warmup",
            "it loaded and listens, and its own warm-up request got no answer",
            "the first exception above this line; else invoke health: does anything compute?",
            "deploy-failed",
            "sglang entrypoints/http_server.py",
            rank=5,
        ),
        Signature(
            "port-in-use",
            r"address already in use|Errno 98\b|EADDRINUSE|port \d+ is (?:not available|already in use|occupied)",
            "another process listens on the server's port",
            "find it with: ss -ltnp; a stale SGLang child is ended by: systemctl kill sglang.service",
            "deploy-failed",
            "sglang #22779",
            rank=1,
        ),
    )


def memory() -> tuple[Signature, ...]:
    return (
        Signature(
            "gpu-memory",
            r"(?:cuda|torch)\.OutOfMemoryError|(?:CUDA|Triton Error|cudaMalloc).{0,40}out of memory"
            r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|No available memory for the cache blocks"
            r"|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"
            r"|Not enough memory\. Please try to increase --mem-fraction-static|memory capacity is unbalanced",
            "the GPUs' memory does not suffice, or something else holds it",
            "nvidia-smi shows who holds it; then lower mem_fraction_static or cuda_graph_max_bs_decode in the profile",
            "deploy-failed",
            "sglang #29580; model_runner.py",
            rank=2,
        ),
        Signature(
            "host-memory",
            r"\[Errno 12\]|^(?!.*guest memory).*Cannot allocate memory|DefaultCPUAllocator: .*allocate"
            r"|^MemoryError\b|std::bad_alloc|ArrayMemoryError",
            "main memory is used up: an allocation failed",
            "free -g; give the VM more memory, or end what else runs there",
            "server-down",
            "malloc(3); sglang's loader maps whole shards",
            rank=2,
        ),
        Signature(
            "probably-oom",
            r"exit ?code:?[ =]? ?(?:-9|137)\b|status=137|exited with code 137"
            r"|(?:died|terminated|killed) .{0,40}\bSIGKILL\b",
            "something killed it with SIGKILL, most often the kernel's OOM killer; the kernel log would tell",
            "journalctl -k -e: a line 'Out of memory' or 'oom-kill' proves it",
            "server-down",
            "sglang: 'exit code -9 … a common cause is the OS OOM killer'",
            rank=6,
        ),
        Signature(
            "graph-capture",
            r"Capture .{0,20}cuda graph failed|operation not permitted when stream is capturing"
            r"|cudaErrorStreamCapture\w*|graph capture (?:failed|failure|error)|previous error during capture"
            r"|CUDA graph CaptureStatus|uncaptured work in another",
            "capturing the CUDA graphs failed",
            "lower cuda_graph_max_bs_decode in the profile (256 and less on 96 GB), or another graph backend",
            "deploy-failed",
            "sglang #29580, #25563",
            rank=3,
        ),
    )


def kernels() -> tuple[Signature, ...]:
    return (
        Signature(
            "flash-attn-arch",
            r"no kernel image is available|FlashAttention only supports .*GPUs",
            "the flash-attn that is installed has no code for these cards (sm_120)",
            "build it with FLASH_ATTN_CUDA_ARCHS=120, version 2.8.3.post1 or newer: invoke provision --tags flash-attn",
            "flash-attn-build",
            "flash-attention #1638, #1563, #1785; Wan2GP PR 2286",
            rank=1,
            needs=_FLASH,
        ),
        Signature(
            "old-compiler",
            r"ptxas fatal|nvcc fatal\s*: (?:Un|Value)|PTX was compiled with an unsupported toolchain"
            r"|Unsupported gpu architecture|PTXAS error|Triton PTX codegen error|not supported on \.target"
            r"|Value 'sm_\d+\w?' is not defined"
            r"|requires CUDA (?:version )?>= ?1[23]|CUDA (?:toolkit )?1[23]\.\d or (?:newer|later) is required"
            r"|No supported CUDA architectures found|FlashInfer requires GPUs with",
            "the CUDA compiler is too old for these cards: sm_120 needs 12.8, and FlashInfer in practice 12.9",
            "cuda.package in the inventory, TRITON_PTXAS_PATH in the runtime's env: invoke provision --tags cuda",
            "deploy-failed",
            "triton #8539; vllm #50705; RLinf #92",
            rank=1,
        ),
        Signature(
            "unsupported-architecture",
            r"Unsupported architecture|no kernel image is available|is not compatible with the current PyTorch"
            r"|has no attribute 'get_num_sms'|NotImplementedError.*forward_mha"
            r"|name 'deep_gemm' is not defined|out of resource: shared memory|too much shared memory"
            r"|device kernel image is invalid|too many resources requested for launch"
            r"|smem .*(?:exceed|too|limit)|(?:exceed|too).* smem|not supported on (?:sm|compute capability) ?_?12"
            r"|Unsupported compute capability|Unknown SM arch|not supported on this GPU"
            r"|not (?:currently )?supported on your (?:device|GPU)"
            r"|is not compatible with the current PyTorch"
            r"|conditional MMA instruction|Failed to (?:initialize|run) cutlass|FlashAttention.?v?[34]\b.{0,80}(?:only"
            r"|requires?|not supported)"
            r"|fa[34] .{0,60}(?:only support|requires?|not support)",
            "a kernel in use was not made for SM120",
            "another attention or MoE backend in the profile, or a runtime that has the SM120 kernels",
            "deploy-failed",
            "sglang #26087, #29562, #37105, #15342; local-inference-lab/rtx6kpro common-issues.md",
            rank=2,
        ),
        Signature(
            "shape-mismatch",
            r"The size of tensor a \(\d+\) must match|expanded size of the tensor|KeyError: '(?:model|lm_head)\.[\w.]+'"
            r"|size mismatch for |shape .{0,40}(?:is invalid|mismatch)",
            "the weights do not fit the code that loads them: another model's checkpoint, or a version too old for it",
            "the runtime that is known to serve this checkpoint; compare revision and version",
            "deploy-failed",
            "sglang #29562",
            rank=3,
        ),
        Signature(
            "custom-all-reduce",
            r"(?:pcie|custom)_?all_?reduce\w*\.cuh?\b.*|invalid argument .*all_?reduce",
            "the custom all-reduce does not work on this box ({0})",
            "disable_custom_all_reduce in the profile; no expandable_segments beside it",
            "deploy-failed",
            "local-inference-lab/rtx6kpro common-issues.md",
            rank=2,
        ),
    )


def model() -> tuple[Signature, ...]:
    return (
        Signature(
            "model-unknown",
            r"KeyError: 'glm_\w+'|does not recognize this architecture|model type .\w+. but Transformers"
            r"|Model architectures .* are not supported",
            "the runtime's software is too old for this model",
            "a runtime with transformers 5.2 or newer: invoke provision --tags runtime",
            "deploy-failed",
            "sglang #19408; zai-org/GLM-5 #22",
            rank=1,
        ),
        Signature(
            "weights-broken",
            r"Header ?TooLarge|Header ?TooSmall|InvalidHeader|SafetensorError|MetadataIncompleteBuffer"
            r"|Incomplete ?Metadata|InvalidJSON.*safetensors|git-lfs\.github\.com/spec|(?:checksum|sha256).*mismatch"
            r"|consistency check failed|PytorchStreamReader failed|failed finding central directory",
            "a weights file is truncated, or is a pointer instead of the file",
            "invoke provision --tags model",
            "model-download",
            "transformers #27923",
            rank=1,
        ),
        Signature(
            "weights-unreadable",
            r"(?:FileNotFoundError|PermissionError|OSError)[^\n]*\.(?:safetensors|json|bin|model)\b"
            r"|HFValidationError|Cannot find any model weights|does not appear to have a file named"
            r"|not a valid (?:JSON|model)|is not a local folder and is not a valid model",
            (
                "the model's files are missing, or the server's user may not read them (SGLang says 'No such file' "
                "for both)"
            ),
            "invoke provision --tags model; then look at the owner and mode of the folder",
            "model-download",
            "seen on SGLang 0.5.10.post1: mode 0600 gives FileNotFoundError",
            rank=1,
        ),
        Signature(
            "model-access",
            r"GatedRepoError|RepositoryNotFoundError|(?:40[13]|429) Client Error.*|Access to model .* is restricted",
            "the model's source refuses the download ({0})",
            "the token in the inventory, and whether its owner accepted the model's terms",
            "model-download",
            "huggingface_hub",
            rank=2,
        ),
        Signature(
            "needs-code",
            r"trust_remote_code=True|option `?trust_remote_code",
            "the checkpoint wants code of its own to be run, and the profile does not allow it",
            "trust_remote_code in the profile, if its source is trusted",
            "deploy-failed",
            "transformers",
            rank=2,
        ),
    )


def runtime() -> tuple[Signature, ...]:
    return (
        Signature(
            "module-missing",
            r"ModuleNotFoundError: No module named|python[\d.]*: No module named|undefined symbol: ?(?:_Z|cu)"
            r"|ImportError: Please install |Cannot find a working triton"
            r"|version `GLIBC\w*_[\d.]+' not found"
            r"|ImportError: (?!.*circular).*(?:\.so|cannot import name|DLL)"
            r"|error while loading shared libraries|cannot open shared object file|Could not load any common_ops"
            r"|Torch not compiled with CUDA|AttributeError: module '\w+' has no attribute|version `GLIBC",
            "the runtime is incomplete, or its packages do not fit together",
            "invoke provision --tags runtime",
            "deploy-failed",
            "flash-attention #1644, #1832, #975",
            rank=2,
        ),
        Signature(
            "shm-full",
            r"/dev/shm.*(?:No space left|full)|(?:No space left|not enough).*/dev/shm|Bus error|SIGBUS|signal 7\b",
            "/dev/shm or a disk is full: memory that was promised to a mapping is not there",
            "df -h / /dev/shm; what lies in /dev/shm after all servers ended may go",
            "disk-full",
            "nccl #290, #342, #525; sglang #6083",
            rank=1,
        ),
        Signature(
            "disk-full",
            r"No space left on device|ENOSPC|Disk quota exceeded|You don't have enough free space",
            "a disk, or /dev/shm, is full",
            "df -h / /dev/shm shows which one",
            "disk-full",
            "nccl #290, #342; sglang #6083",
            rank=1,
        ),
        Signature(
            "too-many-files",
            r"Too many open files|EMFILE|BlockingIOError: .*Resource temporarily|can't start new thread|Cannot fork"
            r"|fork: retry",
            "a limit on files, threads or processes is reached",
            "the unit of a release sets LimitNOFILE and TasksMax: invoke deploy writes it again",
            "server-down",
            "systemd.exec(5)",
            rank=2,
        ),
        Signature(
            "unit-broken",
            r"status=2\d\d/[A-Z_]+|Failed to locate executable|Failed to load environment files"
            r"|Failed at step \w+ spawning|bad unit file setting|has a bad unit file"
            r"|^(?!.*modprobe).*Exec format error",
            "systemd cannot start the program: its file, user or folders are not there",
            "invoke provision, then deploy again",
            "deploy-failed",
            "systemd.exec(5)",
            rank=1,
        ),
        Signature(
            "start-timeout",
            r"start operation timed out|Failed with result 'timeout'|Start-pre operation timed out",
            "systemd ended it because the start took too long: loading and capturing take many minutes",
            "the unit of a release has no such limit: invoke deploy writes it again",
            "start-slow",
            "systemd.service(5)",
            rank=3,
        ),
        Signature(
            "no-permission",
            r"PermissionError: \[Errno 13\][^\n]*: '([^']+)'|\[Errno 30\] Read-only file system: '([^']+)'",
            "the server's user may not use {0}",
            "its owner and mode; the unit of a release lets the server write into its own caches only",
            "deploy-failed",
            "systemd.exec(5), ProtectSystem= and ProtectHome=",
            rank=3,
        ),
        Signature(
            "unit-key",
            r"Unknown (?:key|key name|lvalue) '([^']*)' in section",
            "systemd does not know {0} in that section of the unit, and goes on without it",
            "StartLimit* belong into [Unit]; invoke deploy writes the unit of a release again",
            "deploy-failed",
            "git.sublimity.de left4me, commit fc371711; systemd.unit(5)",
            rank=6,
        ),
    )
