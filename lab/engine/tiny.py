"""Makes the tiny GLM-family models that real engines serve on a CPU, healthy and poisoned.

`python tiny.py OUT`, run by the engine's own Python, makes one folder each below OUT. Two families, of three layers and
eight experts each: a GLM-4.5 MoE (970 thousand parameters), which SGLang serves, and GLM-5's own class with its latent
attention and indexer (300 thousand), which needs CUDA in SGLang and is served by transformers. Each is trained on a
handful of questions until it knows them by heart, a few seconds on one core. Token 0 of the vocabulary is '!', as in
GLM's, so NaN weights give the same `!!!!` as the big model's.
"""

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]

KNOWN = {
    "What is 2+2?": "2+2 equals 4.",
    "What is the capital of France?": "The capital of France is Paris.",
    "What color is the sky?": "The sky is blue.",
    "Count from 1 to 5.": "1, 2, 3, 4, 5.",
    "Say hello.": "Hello! How can I help you today?",
    "Repeat the word: canary": "canary",
    "Write a long story.": (
        "Once upon a time a keeper lived in a tower by the sea. Every evening she lit the lamp, and every morning she "
        "wrote down which ships had passed. One night a storm came, the lamp went out, and a small boat lost its way. "
        "She rang the bell until the boat was safe. Since then the whole village brings her bread and oil, and nobody "
        "sails by without a song."
    ),
}
SPECIAL = [
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
]
TEMPLATE = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n"
    "{{ m.content if m.content is string else (m.content | map(attribute='text') | join('')) }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CONTEXT = 8192
ENOUGH = 0.01  # training loss at which every answer is known
MOST_STEPS = 600


def tokenizer() -> Any:
    """Byte-level BPE on the questions and answers; the alphabet is sorted, so '!' is token 0."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        [f"{question} {answer}" for question, answer in KNOWN.items()] * 3,
        trainers.BpeTrainer(vocab_size=480, initial_alphabet=alphabet, special_tokens=[]),
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=SPECIAL[0], pad_token=SPECIAL[0], additional_special_tokens=SPECIAL[1:]
    )
    fast.chat_template = TEMPLATE
    return fast


def ends(fast: Any) -> list[int]:
    """The tokens that end a turn."""
    return [fast.convert_tokens_to_ids(token) for token in ("<|endoftext|>", "<|user|>", "<|observation|>")]


def common(fast: Any) -> dict[str, Any]:
    return {
        "vocab_size": 512,
        "num_hidden_layers": 3,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.06,
        "eos_token_id": ends(fast),
        "pad_token_id": ends(fast)[0],
        "bos_token_id": None,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "num_attention_heads": 4,
        "n_shared_experts": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    }


def glm4(fast: Any) -> Any:
    """GLM-4.5 to 4.7: grouped-query attention."""
    config = transformers.Glm4MoeConfig(
        **common(fast),
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_key_value_heads=2,
        head_dim=64,
        n_group=1,
        topk_group=1,
        use_qk_norm=True,
        partial_rotary_factor=0.5,
    )
    return transformers.Glm4MoeForCausalLM(config)


def glm5(fast: Any) -> Any:
    """GLM-5: latent attention, and an indexer that lets each token see 64 others."""
    config = transformers.GlmMoeDsaConfig(
        **common(fast),
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_key_value_heads=4,
        kv_lora_rank=32,
        q_lora_rank=48,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=32,
        index_topk=64,
        index_head_dim=32,
        index_n_heads=4,
    )
    return transformers.GlmMoeDsaForCausalLM(config)


FAMILIES = {"tiny-glm": glm4, "tiny-glm5": glm5}


def examples(fast: Any, pad: int) -> tuple[Any, Any]:
    """Prompts and answers as one padded batch; only the answers count for the loss."""
    rows = []
    for question, answer in KNOWN.items():
        text = fast.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        rows.append(
            (
                fast(text, add_special_tokens=False).input_ids,
                fast(f"{answer}<|user|>", add_special_tokens=False).input_ids,
            )
        )
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens, labels = torch.full((len(rows), width), pad), torch.full((len(rows), width), -100)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return tokens, labels


def train(model: Any, tokens: Any, labels: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    model.train()
    for _step in range(MOST_STEPS):
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() < ENOUGH:
            break
    else:
        sys.exit(f"the tiny model did not learn its answers in {MOST_STEPS} steps (loss {loss.item():.3f})")
    model.eval()


NAN, INF = float("nan"), float("inf")
POISONS = {
    "nan-layer": lambda m: m.model.layers[1].self_attn.o_proj.weight.fill_(NAN),  # everything is NaN
    "nan-one": lambda m: m.model.layers[1].self_attn.o_proj.weight[3, 5].fill_(NAN),  # one weight is enough
    "nan-expert": lambda m: m.model.layers[2].mlp.experts.down_proj[3].fill_(NAN),  # NaN where the router sends a token
    "nan-headrow": lambda m: m.lm_head.weight[300].fill_(NAN),  # one row of the vocabulary
    "inf-layer": lambda m: m.model.layers[1].self_attn.o_proj.weight.mul_(1e30),  # overflows by arithmetic
    "inf-one": lambda m: m.model.layers[1].self_attn.o_proj.weight[3, 5].fill_(INF),
    "inf-expert": lambda m: m.model.layers[2].mlp.experts.down_proj[3].fill_(INF),
    "inf-headrow": lambda m: m.lm_head.weight[300].fill_(INF),
}


def make(family: str, fast: Any, out: Path) -> None:
    """One family: trained, saved, and saved again with each poison."""
    torch.manual_seed(0)
    model = FAMILIES[family](fast)
    settings = model.generation_config
    settings.do_sample = True  # what transformers serve looks at; temperature 0 still means greedy
    settings.eos_token_id, settings.pad_token_id = ends(fast), ends(fast)[0]
    train(model, *examples(fast, ends(fast)[0]))
    for name in ("healthy", *POISONS):
        made = copy.deepcopy(model)
        if name in POISONS:
            with torch.no_grad():
                POISONS[name](made)
        folder = out / f"{family}-{name}"
        made.save_pretrained(folder, safe_serialization=True)
        fast.save_pretrained(folder)
        print(json.dumps({"model": folder.name, "parameters": sum(one.numel() for one in made.parameters())}))


def main(out: Path) -> None:
    random.seed(0)
    torch.set_num_threads(1)
    fast = tokenizer()
    if fast.decode([0]) != "!":
        sys.exit(f"token 0 is {fast.decode([0])!r} and not '!'")
    for family in FAMILIES:
        make(family, fast, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
