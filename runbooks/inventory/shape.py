"""The inventory as frozen structs. `inventory.yaml` is the manual: every field is explained there, with an example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Scalar = str | int | float | bool


class SecretRef(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one source of a secret. `generate`: a file that is not there is written, with a random one, by what
    needs it first."""

    env: str | None = None
    file: str | None = None
    command: tuple[str, ...] | None = None
    generate: bool = False


class Login(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine that is reached over SSH."""

    address: str
    port: int = 22
    user: str = "root"
    key: str | None = None
    sudo: Literal["auto", "password"] = "auto"  # auto: root login or passwordless sudo
    sudo_password: SecretRef | None = None
    proxy_jump: str | None = None


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Proxmox VE node: its API, and (for what the API cannot do) its shell.

    `user` is `root@pam`, or with `token` the token's whole id, `root@pam!runbooks`. `name` is the node's own in its
    cluster; None: the key that the inventory gives it.
    """

    api: str
    user: str
    token: SecretRef | None = None
    password: SecretRef | None = None
    name: str | None = None
    ca: str | None = None  # a CA file, beside the inventory
    fingerprint: str | None = None  # SHA-256 of the certificate, instead of a CA
    ssh: Login | None = None
    gpu_ids: tuple[str, ...] = ("10de:2bb1", "10de:2bb4", "10de:2bb5")
    audio_ids: tuple[str, ...] = ("10de:22e8", "10de:22e9")
    hugepages_gib: int = 0  # 1 GiB pages reserved at boot; 0: none
    kernel_options: tuple[str, ...] = ()  # more words for the kernel's command line


class Image(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cloud image. `file` is its name on the storage; `sha256` is what the node checks it against."""

    url: str
    sha256: str
    file: str
    storage: str = "local"  # needs the content type `import`


class Vm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The virtual machine that a host is. Sizes say their unit; `cores` are vCPUs in all."""

    node: str
    id: int
    cores: int
    memory_gib: int
    storage: str
    disk_gib: int
    image: Image
    address: str  # in CIDR form, 192.0.2.10/24
    gateway: str | None = None
    nameservers: tuple[str, ...] = ()
    search_domain: str | None = None
    bridge: str = "vmbr0"
    vlan: int | None = None
    user: str = "ops"  # made by cloud-init
    ssh_keys: tuple[str, ...] = ()  # public keys, or files that hold them
    numa_nodes: tuple[int, ...] = (0,)  # the host's; cores and memory are shared out evenly
    mapping: str = "rtxpro6000"  # the cluster's PCI mapping, one entry a GPU
    p2p: Literal["off", "clique", "auto"] = "off"
    hugepages: bool = False  # 1 GiB pages of the node's pool
    affinity: str | None = None  # host CPUs, 0-63,128-191
    phys_bits: int | None = None  # guest-phys-bits, PVE 9.2; None: the host's
    machine: str = "q35"
    rombar: bool = True
    onboot: bool = False
    protection: bool = True


class Host(Login, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine to run a server on. `runtime` and `model` override the inventory's own for this host.

    `vm`: the host is a virtual machine that provisioning makes; None: it is there already.
    """

    runtime: str | None = None
    model: str | None = None
    vm: Vm | None = None


class Gpus(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must be in the machine.

    `memory_mib` is nvidia-smi's memory.total of one card, in MiB; `arch` its compute capability.
    """

    count: int
    name: str
    memory_mib: int
    arch: str


class AptRepository(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signed apt repository.

    `url` and `key_url` may hold {os} and {arch} (`ubuntu2404`, `x86_64`), filled per host from its facts.
    """

    url: str
    key_url: str
    key_sha256: str | None = None
    suite: str = "/"  # "/" for a flat repository
    components: tuple[str, ...] = ()


class Driver(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """NVIDIA's open kernel modules. `version` is what all its packages are pinned to, e.g. 580.126.20.

    `origin`: whose packages they are. `repository` brings the CUDA toolkit in either case.
    """

    version: str
    repository: AptRepository
    packages: tuple[str, ...]
    origin: Literal["nvidia", "distribution"] = "nvidia"
    module_options: Mapping[str, str] = {}  # file stem below /etc/modprobe.d -> one `options` line


class Cuda(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    package: str  # e.g. cuda-toolkit-13-0, from the driver's repository
    home: str = "/usr/local/cuda"


class PythonIndex(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where pip looks. All empty: pip's own configuration on the host."""

    url: str | None = None
    extra_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    only: bool = False  # True: --no-index, nothing but find_links


class Gateway(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SGLang's own gateway (sglang-router) in front of a group of replicas.

    `ssh`: the machine that it runs on. `drain`: seconds that requests of a host get to come to their end before that
    host is deployed.
    """

    ssh: Login
    host: str = "127.0.0.1"
    port: int = 30080
    metrics_port: int = 29000  # on loopback; the main port has no /metrics
    policy: Literal["cache_aware", "round_robin", "power_of_two", "random"] = "cache_aware"
    packages: tuple[str, ...] = ("sglang-router==0.3.2",)
    python: str = "python3"
    index: PythonIndex = PythonIndex()
    dependencies: bool = True
    drain: int = 600


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hosts: tuple[str, ...]
    gateway: Gateway | None = None


class PythonArchive(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A relocatable Python that unpacks to `python/bin/python3`, as python-build-standalone's `install_only` archives.

    `url` may hold {arch}.
    """

    url: str
    sha256: str


class GitSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A package built from one commit, where no release has what is needed."""

    package: str
    git: str
    commit: str
    subdirectory: str | None = None
    env: Mapping[str, str] = {}  # of its build, e.g. TORCH_CUDA_ARCH_LIST


class Runtime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An immutable Python environment: exact pins, built once under the hash of this entry.

    `sglang` names the flag table; `imports` are the modules that must load before the runtime counts as built.
    `overrides` are installed last, over what the packages themselves ask for, then `sources` are built, then `patches`
    applied: unified diffs below site-packages. `evidence`: addresses for `state`.
    """

    sglang: str
    why: str
    packages: tuple[str, ...]
    python: str = "python3"
    python_archive: PythonArchive | None = None  # instead of `python`
    index: PythonIndex = PythonIndex()
    dependencies: bool = True  # False: pip --no-deps, for a frozen list
    overrides: tuple[str, ...] = ()
    sources: tuple[GitSource, ...] = ()
    patches: tuple[str, ...] = ()
    imports: tuple[str, ...] = ("sglang",)
    state: Literal["recommended", "works", "unproven", "contradicted", "fails"] = "unproven"
    evidence: tuple[str, ...] = ()
    env: Mapping[str, str] = {}  # needed by this software wherever it runs, e.g. TRITON_PTXAS_PATH


class FlashAttn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The flash-attn package, built from source into the runtime.

    Optional for GLM-5: `required` says if its failure stops the run.
    """

    version: str
    archs: str  # FLASH_ATTN_CUDA_ARCHS, e.g. "120"
    enabled: bool = True
    required: bool = False
    index: PythonIndex = PythonIndex()
    build_needs: tuple[str, ...] = ("ninja", "packaging", "psutil", "setuptools", "wheel")
    cache: str | None = None  # a folder of wheels, or ssh://USER@HOST/PATH: that of a host which built it
    ssh_key: SecretRef | None = None  # opens that host
    max_jobs: int | None = None  # None: from the host's memory and cores


class ModelShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the ceiling and the verdict need to know. Bytes are bytes, not GB; `_params` count weights."""

    hidden: int
    layers: int
    moe_layers: int
    experts: int
    experts_per_token: int
    routed_expert_bytes: float  # all routed experts, as stored
    other_weight_bytes: float  # everything else that one decode step reads
    active_params: float
    kv_bytes_per_token: int  # on each card: tensor parallelism does not share the latent cache out
    index_topk: int | None = None  # sparse attention begins above this many tokens of context
    has_mtp_layer: bool = False
    replicated_bytes: float = 0.0  # weights that each card holds whole
    heads: int | None = None  # of attention; tensor parallelism must divide them
    moe_intermediate: int | None = None  # width of one routed expert
    activation_bytes: int = 2


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights on disk.

    `source` is `hf:OWNER/NAME`, an http(s) folder with a `manifest.json` ({"files": [{"path", "size", "sha256"}]}), a
    folder of another host (`ssh://USER@HOST/PATH`), or one of the host itself.
    `size_gb` is the whole of it in 10**9 bytes.
    """

    source: str
    path: str
    served_name: str
    size_gb: float
    shape: ModelShape
    revision: str | None = None
    token: SecretRef | None = None
    ssh_key: SecretRef | None = None  # opens the other host
    endpoint: str | None = None  # a mirror of the Hugging Face hub
    context_length: int = 202752


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The systemd service."""

    host: str = "127.0.0.1"
    port: int = 30000
    user: str = "sglang"
    api_key: SecretRef | None = SecretRef(file="secrets/api-key", generate=True)  # None: written as `open`
    ready_budget: int = 1800  # seconds that a start may take until the first real completion


class Variant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a profile is with older versions of SGLang, laid over it."""

    why: str
    args: Mapping[str, Scalar | None] = {}
    env: Mapping[str, str | None] = {}
    expect: Mapping[str, Scalar] = {}


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SGLang arguments under canonical names (`mem_fraction_static`, the argument's dest), environment, expectations.

    `expect` is what must be read back from the running server.
    """

    why: str
    extends: str | None = None
    args: Mapping[str, Scalar | None] = {}  # None: take an inherited argument away
    env: Mapping[str, str | None] = {}
    expect: Mapping[str, Scalar] = {}
    before: Mapping[str, Variant] = {}  # SGLang version -> what holds below it


class Bench(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sweep. Lengths in tokens; `window` (at most) and `warmup` in seconds a point."""

    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    input_len: int = 1024
    output_len: int = 512
    warmup: float = 10.0
    window: float = 60.0
    precision: float = 0.02  # a window ends when tok/s is known to this part of itself; 0: never before its time
    repeats: int = 2  # passes over the sweep, each in the other direction
    reference: Mapping[int, float] = {}  # concurrency -> output tok/s of a published sweep on the same hardware
    reference_source: str = ""
    link: str = "PCIe Gen5 x16"


class Monitoring(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `invoke monitor.install` sets up. Addresses are host:port."""

    alertmanagers: tuple[str, ...] = ()
    pages: str = "http://127.0.0.1:8000"  # where the site of `invoke docs` is found, for each alert's runbook_url
    dcgm: str | None = None  # of NVIDIA's DCGM exporter, as the host itself reaches it


class Inventory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hosts: Mapping[str, Host]
    gpus: Gpus
    driver: Driver
    cuda: Cuda
    flash_attn: FlashAttn
    runtimes: Mapping[str, Runtime]
    runtime: str
    models: Mapping[str, Model]
    model: str
    profiles: Mapping[str, Profile]
    groups: Mapping[str, Group] = {}
    nodes: Mapping[str, Node] = {}
    server: Server = Server()
    bench: Bench = Bench()
    monitoring: Monitoring = Monitoring()
    known_hosts: str = "known_hosts"  # beside the inventory
    apt_mirror: str | None = None  # instead of the distribution's own servers
    proxy: str | None = None  # http(s) proxy for apt, pip and downloads on the hosts
