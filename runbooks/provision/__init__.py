"""The build of a host as lists of steps, read from top to bottom; one file a stage.

base        known system, quiet apt, tools, accounts
driver      NVIDIA's open modules, pinned and held, loaded, every card present
cuda        the toolkit for kernels compiled on the host
flash-attn  a wheel, compiled once (optional)
runtime     SGLang and what it needs, immutable
model       the weights
"""

from runbooks.provision.run import provision
from runbooks.provision.stages import TAGS, stages

__all__ = ["TAGS", "provision", "stages"]
