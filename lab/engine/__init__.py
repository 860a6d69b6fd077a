"""The lab's other engine: the real SGLang, on the CPU, with a tiny GLM-family model.

`prepare(progress)` fills the lab's cache once (measured on two busy cores: wheels 32 s and 290 MB, environment 35 s and
1.4 GB, models 12 s and 20 MB) and returns what a guest needs: a folder of wheels to bind, and models in the depot.
lab/inventory-sglang.yaml is the inventory for it: the same provision, deploy, canary and bench, with another runtime,
model and profiles.
"""

from lab.engine.prepare import BINDS_AT, ENVIRONMENT, INVENTORY, PREFIX, Engine, prepare

__all__ = ["BINDS_AT", "ENVIRONMENT", "INVENTORY", "PREFIX", "Engine", "prepare"]
