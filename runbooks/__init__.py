"""Provisioning and runbook automation for GLM-5-NVFP4 on boxes of PCIe GPUs."""
