"""The lab's depot: an apt repository, a package index and model folders, built from the stand-ins and served over HTTP.

prepare(root, print)                                   build what is missing or has changed below root
python -m lab.depot --bind 127.0.0.1 --root DIR        serve it: /apt, /simple, /models
"""

from lab.depot.parts import prepare

__all__ = ["prepare"]
