"""As in a CUDA wheel: the local part of the version says which CUDA."""

__version__ = "@VERSION@+cu130"
cuda = "13.0"
hip = None
