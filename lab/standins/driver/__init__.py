"""Stand-ins for NVIDIA's driver and CUDA packages: `packages.py` is the table, `smi/` their nvidia-smi."""
