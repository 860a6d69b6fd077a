"""Signatures of a server that started: NaN, crashes, hangs, and the echoes that a death leaves."""

from __future__ import annotations

from runbooks.diagnose.signature import Signature

_NAN = (
    r"probability tensor contains either|NaN in the logits|NaN detected|nan or element < 0|NaN happened"
    r"|TensorCompare\.cu|out of range integral type conversion"
    r"|not JSON compliant|nan values? (?:in|detected)|\b(?:max|sum|sump) = -?nan\b"
    r"|\b(?:logits?|logprobs?|probabilit(?:y|ies)|activations?|hidden.?states?)\b.{0,40}\bNaNs?\b"
)


def numbers() -> tuple[Signature, ...]:
    return (
        Signature(
            "nan-speculative",
            _NAN,
            "NaN, with speculative decoding on: its verification reads NaN after a prefix hit, and all ranks die",
            "a profile without speculative decoding; until then invoke rollback",
            "nan-output",
            "sglang #19796, #20043, #19897",
            rank=1,
            when={"speculative_algorithm": "(?!none$|null$|false$).+"},
        ),
        Signature(
            "nan-fp4-gemm",
            _NAN,
            "NaN, with an SGLang whose FP4 GEMM is CUTLASS by default: its tiles race at 64 requests and more",
            "fp4_gemm_runner_backend flashinfer_cudnn in the profile, or a newer runtime: its JIT cache starts empty",
            "nan-output",
            "flashinfer #2708, PR #2716; sglang #16534",
            rank=1,
            when={"quantization": "modelopt_fp4|nvfp4_online"},
            before="0.5.10",
        ),
        Signature(
            "nan-sparse-kernel",
            _NAN,
            "NaN, with a sparse attention kernel that was not made for SM120",
            "another dsa_prefill_backend and dsa_decode_backend: flashinfer_sparse_mla from SGLang 0.5.17 on",
            "nan-output",
            "sglang #26087, #26928, #29562, #37105",
            rank=1,
            when={"dsa_decode_backend": r"flashmla\w*|fa3|trtllm|tilelang"},
        ),
        Signature(
            "nan",
            _NAN,
            "the model computes NaN: the sampler's assert takes the server down",
            "invoke rollback, then the page",
            "nan-output",
            "sglang #35324, #8367, #5984, flashinfer #2708; seen on SGLang 0.5.9 and 0.5.23",
            rank=1,
        ),
        Signature(
            "token-zero",
            r"([!+])\1{15,}|(?:\\u0021){8,}|(?:!\s?\.){6,}",
            "an answer is one character for ever, which is token 0 or a kernel's garbage",
            "invoke canary proves it and names the likely causes",
            "nan-output",
            "vllm #55766, #47367; sglang #24321",
            rank=2,
        ),
        Signature(
            "empty-answer",
            r'"finish_reason": ?"stop".*"completion_tokens": ?[01]\b|"completion_tokens": ?[01]\b.*"finish_reason": ?'
            r'"stop"|"completion_tokens": ?0\b',
            "an answer ended at once: no token, or one",
            "invoke canary: FP8 KV without scales, or the custom all-reduce, do this",
            "canary-degraded",
            "local-inference-lab/rtx6kpro models/glm5.md",
            rank=4,
        ),
        Signature(
            "constant-logprob",
            r"(\"logprob\": ?-?\d+\.\d+)(?:.{1,400}?\1){7,}",
            "every token of an answer has the same probability: the numbers behind it are not numbers",
            "invoke canary proves it and names the likely causes",
            "nan-output",
            "vllm #52938",
            rank=2,
        ),
        Signature(
            "repetition",
            r"\b(\w{2,}[^\w]{1,3})(?:\1){11,}",
            "an answer repeats one word for ever: a kernel's garbage, or a model at its limits",
            "invoke canary --battery full tells from which length on",
            "canary-degraded",
            "local-inference-lab/rtx6kpro, models/glm5.1: collapse near 40k tokens; sglang #24321",
            rank=4,
            needs=r"\"content\"|\"text\"",
        ),
        Signature(
            "launch-failure",
            r"unspecified launch failure|CU(?:BLAS|DNN)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)"
            r"|illegal memory access|illegal instruction was encountered|misaligned address"
            r"|the launch timed out and was terminated|Failed to (?:encode|initialize) .{0,10}(?:tensor ?map|TMA desc)"
            r"|CUDA_ERROR_(?:INVALID_VALUE|LAUNCH_FAILED|ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION)"
            r"|cudaErrorIllegalAddress|cudaErrorLaunchFailure|Xid \([^)]*\): (?:13|31)\b",
            "a GPU kernel crashed",
            "invoke rollback; the lines before it name the kernel. With speculative decoding: fewer draft tokens",
            "nan-output",
            "sglang #29453; vllm #34948",
            rank=2,
            where="any",
        ),
        Signature(
            "device-assert",
            r"device-side assert triggered|cudaErrorAssert|\.cuh?:\d+: .*(?:block|thread): \[.*Assertion .*failed",
            "an assert in a GPU kernel fired; with sampling this is nearly always NaN",
            "invoke rollback, then the page",
            "nan-output",
            "sglang #35324",
            rank=2,
        ),
        Signature(
            "scale-format",
            r"scale_fmt .{0,40}not ue8m0|UE8M0.*(?:accuracy|mismatch|assum)|KV cache scal\w+ factors? .{0,60}1\.0",
            "scales of another format than the kernel takes for granted: wrong numbers are possible",
            "SGLANG_ENABLE_JIT_DEEPGEMM=0 or a bf16 KV cache in the profile; then invoke canary --battery full",
            "nan-output",
            "sglang #19948; SGLang's GLM-5 cookbook",
            rank=6,
        ),
    )


def together() -> tuple[Signature, ...]:
    return (
        Signature(
            "nccl-shm",
            r"Error while (?:creating|attaching to) shared memory segment|/dev/shm/nccl-\w+",
            "NCCL finds no room in /dev/shm",
            "df -h /dev/shm; what lies there after all servers ended may go",
            "disk-full",
            "nccl #290, #342, #525",
            rank=1,
        ),
        Signature(
            "nccl",
            r"nccl(?:System|Internal|Unhandled|Remote|InvalidUsage)\w*|NCCL error|NCCL WARN"
            r"|ProcessGroupNCCL.*(?:timeout|timed out)|Watchdog caught collective operation timeout"
            r"|collective operation.*timed? ?out|watchdog got stuck|Dist(?:Backend|Store|Network)Error|gloo/transport"
            r"|gloo::\w+|socket(?:Start|Poll)Connect.*failed",
            "the GPUs cannot talk to each other",
            "NCCL_DEBUG=INFO in the profile's environment shows where; peer-to-peer in a VM is the first suspect",
            "server-down",
            "nccl #1999, #2079, #2335; vllm #33041",
            rank=3,
        ),
        Signature(
            "peer-access",
            r"mapping of buffer object failed|cudaErrorMapBufferObjectFailed|peer access is (?:not supported|already)"
            r"|peer-to-peer access .*(?:failed|unsupported)|error 205\b",
            "peer-to-peer between the cards is granted and does not work",
            "NCCL_P2P_DISABLE=1 in the profile's environment, and p2p: off for the VM",
            "server-down",
            "tinygrad/open-gpu-kernel-modules #44; NVIDIA/nccl #2335",
            rank=2,
            where="any",
        ),
        Signature(
            "peer-chipset",
            r"^GPU\d+\s.*\bCNS\b",
            "the driver does not know this (virtual) chipset, so it offers no peer-to-peer between the cards",
            "nothing is broken: collectives go through main memory; the page says what a VM can have",
            "peer-to-peer",
            "noonghunna/club-3090 PR #884, #890",
            rank=7,
        ),
        Signature(
            "wrong-sums",
            r"Out of bounds values : [1-9]\d* FAILED|#wrong.*[1-9]|all.?reduce.*(?:wrong|mismatch)\b.*(?:value|sum"
            r"|result)",
            "a collective sums wrong: peer-to-peer is granted, and its writes land somewhere else",
            "p2p: off for the VM, NCCL_P2P_DISABLE=1 in the profile's environment; then invoke bench.collectives",
            "peer-to-peer",
            "NVIDIA/nccl #2335; club-3090 #873",
            rank=1,
            where="any",
        ),
        Signature(
            "hangs-in-nccl",
            r"using nccl==|Init torch distributed begin|NCCL INFO .*(?:via P2P|Init START)",
            "the start stands still where the cards are connected to each other: peer-to-peer, IOMMU or ACS",
            "p2p: off for the VM, NCCL_P2P_DISABLE=1 in the profile's environment, iommu=pt on the node",
            "start-slow",
            "club-3090 #873; nccl #1999, #2079; vllm #51513; rtx6kpro #15, #21",
            rank=6,
            last=True,
        ),
        Signature(
            "hangs-in-capture",
            r"Registering \d+ cuda graph addresses|Capture cuda graph b(?:egin|s\b)|Capturing batches",
            "the last that it said is the capture of CUDA graphs: minutes are ordinary, more than ten are a hang",
            "wait ten minutes; then fewer sizes (cuda_graph_max_bs_decode), and disable_custom_all_reduce in the "
            "profile",
            "start-slow",
            "sglang #29580, PR #11275",
            rank=7,
            last=True,
        ),
        Signature(
            "prefix-lost",
            r"#cached-token: 0\b",
            "no prompt finds its prefix in the cache, with speculative decoding on",
            "a profile without speculative decoding, where prompts share a beginning",
            "slow-throughput",
            "sglang #32459",
            rank=7,
            when={"speculative_algorithm": "(?!none$|null$|false$).+"},
        ),
        Signature(
            "watchdog",
            r"(?:Scheduler|Detokenizer|TokenizerManager|Tokenizer)? ?watchdog timeout",
            "the scheduler made no progress for the watchdog's time and was ended",
            "GPUs at 100 % and about 140 W mean a hung collective: invoke health",
            "server-down",
            "scheduler.py; vllm #51921",
            rank=4,
        ),
        Signature(
            "health-check-failed",
            r"Health check failed\. Server couldn't|couldn't get a response from (?:the )?detokenizer",
            "no token came for 20 seconds: a long prefill, or a hang",
            "invoke health tells busy from stuck",
            "server-down",
            "sglang #22511, #26482, #10856; zai-org/GLM-5 #52",
            rank=5,
        ),
        Signature(
            "kv-full",
            r"KV cache pool is full|Retract requests|out of (?:KV|token) (?:cache|slots)",
            "the KV cache is full: running requests are put back and computed again",
            "fewer or shorter requests at once: max_running_requests in the profile, or a larger mem_fraction_static",
            "slow-throughput",
            "schedule_batch.py",
            rank=6,
        ),
        Signature(
            "kv-exhausted",
            r"(?:Prefill|Decode) out of memory\b",
            "the KV cache ran out in the middle of a batch, which ends the scheduler",
            "max_running_requests or chunked_prefill_size lower in the profile, or mem_fraction_static higher",
            "server-down",
            "sglang managers/schedule_batch.py, mem_cache/common.py",
            rank=3,
        ),
        Signature(
            "kv-leak",
            r"(?:pool|cache|kv|token|req|allocator)\w*.{0,40}\bmemory leak (?:detected|check)|pool leak detected",
            "SGLang counted its KV cache and found places that nobody owns: a bug of the cache, and it ends itself",
            "a newer runtime; until then disable_radix_cache in the profile, without speculation",
            "server-down",
            "sglang managers/scheduler_runtime_checker_mixin.py",
            rank=3,
        ),
        Signature(
            "slow-kernel",
            r"fall(?:s|ing|en)? back to .{0,60}(?:slow|default tactic|dequant|marlin|unfused|eager)"
            r"|no (?:suitable|valid|supported) (?:tile|tactic|kernel config)",
            "a kernel made for these cards was not found, and a slower one runs",
            "a runtime with a FlashInfer that has the SM120 tiles",
            "slow-throughput",
            "flashinfer #2577, PR #2725",
            rank=6,
        ),
    )


_DEATH = (
    r"Scheduler hit an exception|EngineDeadError|Engine core initialization failed"
    r"|scheduler\w* (?:[^\n]* )?(?:died|crashed|is dead)|sigquit (?:from a child|received)"
)
# Its last death, with no end or start of the server after it, and then a probe that is content.
_ANSWERS_STILL = (
    rf"(?s)\A(?>.*(?:{_DEATH}))(?!.*(?:Main process exited|server_args=|fired up and ready|Start(?:ing|ed) sglang))"
    r".*GET /health(?:_generate)? HTTP/\d\.\d\"? 200"
)


def echoes() -> tuple[Signature, ...]:
    """What stands at the end of many chains. Blamed only where nothing better is found."""
    return (
        Signature(
            "left-over-process",
            r"Found left-over process \d+ \(([^)]*)\)|^(?!.*\brb-).*remains running after unit stopped|<defunct>"
            r"|still around after (?:final )?SIGKILL|uvm_spin_loop",
            "a process of an earlier server lives on: it keeps the port and the GPUs' memory",
            "systemctl kill --signal=KILL sglang; one that does not go needs a reboot",
            "server-down",
            "sglang #22779, #18421, #3695; vllm #25127",
            rank=4,
            where="any",
        ),
        Signature(
            "segfault",
            r"segfault at [0-9a-f]+|Segmentation fault|Fatal Python error|code=dumped|SIGSEGV|SIGABRT|core dumped",
            "a process crashed in native code",
            "the lines before it name the library; then another backend, or invoke rollback",
            "server-down",
            "signal(7)",
            rank=5,
            where="any",
        ),
        Signature(
            "scheduler-died",
            _DEATH,
            "SGLang's scheduler died; the exception stands above this line",
            "journalctl -u sglang -e shows the exception",
            "server-down",
            "managers/scheduler.py",
            rank=7,
        ),
        Signature(
            "health-lies",
            _DEATH,
            "the scheduler is dead, and the health check still answers 200: nobody gets a token",
            "invoke health asks for a real completion; then invoke rollback, or systemctl restart sglang",
            "server-down",
            "sglang #6624",
            rank=5,
            needs=_ANSWERS_STILL,
        ),
        Signature(
            "restart-limit",
            r"Start request repeated too quickly|start-limit-hit",
            "systemd gave up after several starts that failed",
            "find the first failure above; then: systemctl reset-failed sglang",
            "server-down",
            "systemd.unit(5)",
            rank=8,
        ),
        Signature(
            "restart-loop",
            r"restart counter is at (\d{2,}|[3-9])",
            "systemd started it again ({0} times): each try costs minutes, and may leak memory",
            "find the first failure; stop the loop with: systemctl stop sglang",
            "server-down",
            "eugr/spark-vllm-docker #257",
            rank=8,
        ),
        Signature(
            "died",
            r"Main process exited, code=killed, status=9/KILL|Failed with result 'signal'",
            "it was killed: a crash of its own (SGLang kills itself then), the OOM killer, or a person",
            "the lines before it, and journalctl -k -e, tell which",
            "server-down",
            "seen on real SGLang 0.5.9 and 0.5.23: every death ends so",
            rank=9,
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
