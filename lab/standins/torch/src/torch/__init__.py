"""The lab stand-in of PyTorch: what the build of a CUDA extension asks for, and no tensors."""

from . import _C, cuda, version

__version__ = version.__version__
__all__ = ["_C", "__version__", "compiled_with_cxx11_abi", "cuda", "version"]


def compiled_with_cxx11_abi() -> bool:
    return _C._GLIBCXX_USE_CXX11_ABI
