"""A small engine for one purpose: a sweep on a machine with GPUs and PyTorch, but without SGLang.

It serves transformers' own GLM-5 class (GlmMoeDsa) at full width with random weights and as many layers as the cards
hold. What a sweep of it says is true of this engine on those cards, and of no other.
"""
