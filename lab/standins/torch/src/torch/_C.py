"""The lab stand-in of PyTorch's C extension: its ABI flag."""

_GLIBCXX_USE_CXX11_ABI = True
