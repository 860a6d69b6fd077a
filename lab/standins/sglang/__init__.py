"""The simulated SGLang: a wheel named `sglang` of any version that runbooks/sglang/flags.json has a table for.

It parses exactly that version's command line, prints its start-up lines, serves its HTTP surface at a speed model's
pace and fails in the documented ways. It says in its metadata, in its first line and in /server_info that it is a
stand-in. See knobs.py for what the lab can set.
"""

from .build import build_wheel, stage

__all__ = ["build_wheel", "stage"]
