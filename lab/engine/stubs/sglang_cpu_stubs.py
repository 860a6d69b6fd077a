"""Stands in for packages that SGLang imports and that a CPU has no use for: triton, torchvision, sgl_kernel and others.

A lab stand-in: every name of such a package is an inert class that takes any arguments, any operator and any subscript.
It is loaded by a .pth file, looks last, and so replaces only what is not installed. No model of the lab runs code from
these packages.
"""

from __future__ import annotations

import abc
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

ABSENT = {"triton", "torchvision", "torchaudio", "sgl_kernel", "cutlass"}
ZERO = {"__len__": 0, "__index__": 0, "__int__": 0, "__float__": 0.0, "__bool__": False, "__contains__": False}
SAME = (
    *("or", "ror", "and", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv"),
    *("floordiv", "pow", "rpow", "mod", "neg", "invert", "getitem"),
)
ORDER = ("lt", "gt", "le", "ge")


class Inert(abc.ABCMeta):
    """The class of all stubs: reading an attribute of one makes another."""

    def __getattr__(cls, name: str) -> object:
        if name == "backend":
            return "cpu"  # triton.runtime.driver.active.get_current_target().backend
        if name == "__func__":
            return cls
        if name.startswith(("__", "_abc_")):
            raise AttributeError(name)
        return stub(f"{cls.__module__}.{name}")

    def __iter__(cls) -> Iterator[object]:
        return iter(())

    def __hash__(cls) -> int:
        return id(cls)

    def __eq__(cls, other: object) -> bool:
        return cls is other

    def __setitem__(cls, key: object, value: object) -> None:
        pass

    def register(cls, *subclasses: Any, **_rest: Any) -> Any:
        return subclasses[0] if subclasses else cls


for _name, _value in ZERO.items():
    setattr(Inert, _name, lambda cls, *_rest, _value=_value: _value)
for _name in SAME:
    setattr(Inert, f"__{_name}__", lambda cls, *_rest: cls)
for _name in ORDER:
    setattr(Inert, f"__{_name}__", lambda cls, _other: False)


def stub(name: str) -> type:
    """A class that can be called, subclassed, entered and subscripted; as a decorator it hands back what it got."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]
        return stub(f"{name}()") if "_is_stub" in cls.__dict__ else object.__new__(cls)

    body = {
        "_is_stub": True,
        "__module__": name,
        "__new__": new,
        "__init__": lambda self, *args, **kwargs: None,
        "__init_subclass__": classmethod(lambda cls, **kwargs: None),
        "__class_getitem__": classmethod(lambda cls, key: cls),
        "__enter__": lambda self: self,
        "__exit__": lambda self, *reason: None,
    }
    return Inert(name.rpartition(".")[2] or "Stub", (), body)


class Module(types.ModuleType):
    """A module of an absent package: has whatever is asked for."""

    __version__ = "9.9.9"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = stub(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        top = fullname.partition(".")[0]
        # A submodule that a real package lacks is really missing; only whole packages are replaced.
        if top not in ABSENT or ("." in fullname and not isinstance(sys.modules.get(top), Module)):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(Finder())
