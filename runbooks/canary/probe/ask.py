"""Puts the battery's prompts into requests: filler to the token, page edges, bursts; and counts what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from . import prose
from .battery import EASY, GREEDY, PAGE, SAMPLED, Prompt
from .client import Endpoint, complete, weigh
from .judge import Expect
from .reply import Reply

FRAME = 30
"""Prompt tokens, about, around the filler: template, needle and question."""
WHOLE = 0.75
"""A server that says that it read less than this part of a prompt has cut it."""
COVER = 2 * PAGE
"""Tokens of the longest page-edge prompt beyond the common text; sent first, so that all others hit its pages."""

ROOM = 256
"""Tokens for an answer that did not come within its prompt's own limit."""

Answered = Sequence[tuple[Reply, Expect]]


@dataclass
class Asker:
    """`knowledge`: the model is expected to know answers and to write prose of its own."""

    endpoint: Endpoint
    knowledge: bool
    seed: str
    requests: int = 0
    tokens: int = 0
    per_word: float | None = None  # prompt tokens that a word of the filler costs, as measured
    words: dict[str, int] = field(default_factory=dict)  # of each filling, once it was chosen
    edge_base: int | None = None  # tokens of a page-edge prompt without its ending

    def ask(self, prompt: Prompt) -> Answered:
        """The replies, with what is expected of each: one, or as many as the prompt has streams."""
        if prompt.streams > 1:
            return self._burst(prompt)
        reply = self._counted(self._send(prompt, self._text(prompt)))
        if prompt.length and prompt.edge is None:
            self._learn(reply, self.words[prompt.prefix or prompt.name])
        return [(reply, self._expect(prompt.expect))]

    def with_room(self, prompt: Prompt, expect: Expect) -> Reply:
        """The same question once more, alone, greedy, and with more tokens for the answer."""
        text = self._text(prompt)
        if prompt.streams > 1:
            text = next(text for text, easy in EASY if easy.wanted == expect.wanted)
        again = replace(prompt, streams=1, max_tokens=ROOM, sampling=GREEDY)
        return self._counted(self._send(again, text))

    def _burst(self, prompt: Prompt) -> Answered:
        chosen = [EASY[at % len(EASY)] for at in range(prompt.streams)]

        def one(at: int) -> Reply:
            return self._send(replace(prompt, sampling=SAMPLED if at % 2 else GREEDY), chosen[at][0])

        with ThreadPoolExecutor(prompt.streams) as pool:
            replies = [self._counted(reply) for reply in pool.map(one, range(prompt.streams))]
        return [(reply, self._expect(expect)) for reply, (_, expect) in zip(replies, chosen, strict=True)]

    def _expect(self, expect: Expect) -> Expect:
        return expect if self.knowledge else replace(expect, answer=(), fluent=False, prose=False, shortest=1)

    # the text of a prompt

    def _text(self, prompt: Prompt) -> str:
        if prompt.length is None:
            return prompt.text
        filling = prompt.prefix or prompt.name
        if filling not in self.words:  # the same prompt twice must be the same to the last word
            self.words[filling] = round((prompt.length - FRAME) / self._cost_of_a_word())
        words, seed = self.words[filling], f"{self.seed} {filling}"
        if prompt.edge is None:
            return prose.with_needle(words, seed, prompt.text)
        if self.edge_base is None:
            cover = prose.ending_anywhere(words, seed, prompt.text, extra=COVER)
            reply = self._counted(self._send(replace(prompt, max_tokens=1), cover))
            self.edge_base = (reply.prompt_tokens or COVER) - COVER
        extra = -self.edge_base % PAGE + prompt.edge % PAGE
        return prose.ending_anywhere(words, seed, prompt.text, extra=extra)

    def _cost_of_a_word(self) -> float:
        """Prompt tokens a word of filler: measured with 200 words and one token of answer, then learned from each
        long prompt."""
        if self.per_word is None:
            probe = Prompt(name="measure", why="", text="", expect=Expect(), max_tokens=1)
            self._learn(self._counted(self._send(probe, prose.filler(200, f"{self.seed} measure"))), 200, frame=8)
        return max(self.per_word or 1.35, 0.5)

    def _learn(self, reply: Reply, words: int, frame: int = FRAME) -> None:
        if reply.prompt_tokens:
            cost = (reply.prompt_tokens - frame) / words
            if self.per_word is None or cost > WHOLE * self.per_word:  # else the server read only a part of it
                self.per_word = cost

    # the request

    def _send(self, prompt: Prompt, text: str) -> Reply:
        if prompt.echo:
            return weigh(self.endpoint, text, limit=self.endpoint.silence)
        request: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": prompt.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **prompt.sampling,
        }
        if prompt.logprobs or not self.knowledge:
            # A model that is not expected to speak well is judged by its numbers.
            request |= {"logprobs": True, "top_logprobs": 3}
        endpoint = self.endpoint
        if prompt.thinking:
            extras = {name: value for name, value in endpoint.extras.items() if name != "chat_template_kwargs"}
            endpoint = replace(endpoint, extras=extras)
        return complete(endpoint, request, limit=endpoint.silence + prompt.max_tokens / 2)

    def _counted(self, reply: Reply) -> Reply:
        self.requests += 1
        self.tokens += (reply.prompt_tokens or 0) + (reply.completion_tokens or 0)
        return reply
