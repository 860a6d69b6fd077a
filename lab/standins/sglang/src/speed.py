"""How long a forward pass takes.

One decode step with b running streams takes t(b) = c0 + c1 * (1 - (31/32)^b) + c2 * b milliseconds: a fixed part,
the routed experts that b tokens touch together (8 of 256 each, so 31/32 of them stay cold for each token), and a
part that grows with b. The defaults are the least-squares fit to the sweep of GLM-5-NVFP4 on eight RTX PRO 6000 in
the voipmonitor/rtx6kpro wiki, models/glm5.md (50.4, 95.2, 164.2, 276.9, 427.4, 659.7, 1010.6 tok/s at 1, 2, 4, 8,
16, 32, 64 streams); it is met within 2.4 % at each point.
"""

from __future__ import annotations

from dataclasses import dataclass

COLD = 31 / 32  # share of the routed experts that one token does not touch


@dataclass(frozen=True)
class Speed:
    """Milliseconds in, seconds out."""

    c0: float
    c1: float
    c2: float
    prefill_ms: float
    graph_max_bs: int
    eager_factor: float

    def decode(self, streams: int) -> float:
        """Seconds of one decode step."""
        step = self.c0 + self.c1 * (1 - COLD**streams) + self.c2 * streams
        return step / 1000 * (1.0 if self.graphed(streams) else self.eager_factor)

    def prefill(self, tokens: int) -> float:
        """Seconds of a prefill of so many uncached tokens.

        It yields the first token, so it is never shorter than half a step.
        """
        return max(tokens * self.prefill_ms, self.c0 / 2) / 1000

    def graphed(self, streams: int) -> bool:
        """Whether a captured CUDA graph is large enough for so many streams."""
        return streams <= self.graph_max_bs
