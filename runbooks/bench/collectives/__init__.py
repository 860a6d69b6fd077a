"""Measures what moves between the serving GPUs: collectives at the model's own sizes, copies, and peer-to-peer proven.

Needs the standard library and the `torch` of the runtime that serves, nothing else: it is pushed to a host as one file
(`push_zipapp`) and run by that runtime's Python, 3.10 or newer. NCCL on GPUs; gloo over loopback where there is none.
"""
