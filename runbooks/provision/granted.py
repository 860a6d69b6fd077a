"""Peer-to-peer inside a VM: a grant is only a promise (NVIDIA/nccl #2335), so the host keeps what was found of it.

The word in `paths.PEERS` is there while QEMU grants peer-to-peer: `untested`, then what the ladder of
`invoke bench.collectives` found. All but `untested` and `healthy` take the grant back at the next `invoke provision`.
"""

from __future__ import annotations

from dataclasses import dataclass

from runbooks import paths
from runbooks.engine.step import Answers, Change, Diff, Question, Verdict, shell

UNTESTED, HEALTHY = "untested", "healthy"
ASK = f"cat {paths.PEERS} 2>/dev/null; true"


def is_vetoed(verdict: str) -> bool:
    """Was it tried and not proven?"""
    return verdict not in ("", UNTESTED, HEALTHY)


@dataclass(frozen=True, kw_only=True)
class Peers:
    """`asked`: the inventory wants peer-to-peer. `granted`: the QEMU that runs grants it."""

    asked: bool
    granted: bool
    id: str = "peer-to-peer in the VM"

    @property
    def _question(self) -> Question:
        return shell(ASK)

    def questions(self) -> tuple[Question, ...]:
        return (self._question,)

    def plan(self, answers: Answers) -> Change | Verdict:
        verdict = str(answers[self._question].get("out") or "").strip()
        if verdict and not self.asked:
            return Change(script=f"rm -f {paths.PEERS}", diff=(Diff(f"not asked for any more: forgets '{verdict}'"),))
        if self.asked and self.granted and not verdict:
            script = f"mkdir -p {paths.STATE}\necho {UNTESTED} >{paths.PEERS}"
            return Change(script=script, diff=(Diff(f"granted by QEMU -> {UNTESTED}"),))
        if is_vetoed(verdict):
            line = f"tried, and not proven: {verdict}. To try once more: rm {paths.PEERS}, invoke provision"
        elif verdict == UNTESTED:
            line = "granted, and not proven yet: invoke bench.collectives"
        elif verdict:
            line = "granted, and proven by transfers that were read back on the destination"
        else:
            line = "waits for a power cycle" if self.asked else "off"
        return Verdict(ok=True, line=line, page="peer-to-peer")
