"""Watts, clocks, throttle reasons and PCIe counters of every card, once a second while a sweep runs.

Stdlib only, pushed as one file and run beside the load generator. It starts nvidia-smi twice, once for the whole
sweep, and reads what that prints: no process a second, no library to load, and a driver that hangs holds up nobody.
"""
