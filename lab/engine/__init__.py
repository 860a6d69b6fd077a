"""The lab's other engine: the real SGLang, on the CPU, with a tiny GLM-family model.

`prepare(progress)` fills the lab's cache once (measured on two busy cores: wheels 32 s and 283 MB, environment 81 s and
1.4 GB, models 14 s and 19 MB) and returns what a guest needs: a folder of wheels to bind, and models in the depot.
lab/inventory-sglang.yaml is the inventory for it: the same provision, deploy, canary and bench, with another runtime,
model and profiles. In a guest, measured likewise: the runtime 86 s, a start 34 s, the quick canary 12 s.
"""

from lab.engine.prepared import BINDS_AT, ENVIRONMENT, INVENTORY, PREFIX, VERSION, Engine, prepare

__all__ = ["BINDS_AT", "ENVIRONMENT", "INVENTORY", "PREFIX", "VERSION", "Engine", "prepare"]
