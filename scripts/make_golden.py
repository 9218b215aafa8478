"""Make the golden files of `tests/golden/`: what `transformers` computes for models our tests run again.

Run with an interpreter that has the `golden` extra (torch, transformers), from the repository's root:

    PYTHONPATH=src:. python scripts/make_golden.py tiny                 # tiny random models, as safetensors folders
    PYTHONPATH=src:. python scripts/make_golden.py smollm2 MODEL.gguf   # SmolLM2, dequantised by transformers

Tiny weights come from NumPy by seed; `transformers` writes the folders, so that they are what users have. Continuations
are computed in f32 without a cache. A tiny model is refused, and the next seed tried, when two tokens ever came so
close that rounding could swap them, or when `transformers` in f32 is far from itself in double: the tests' tolerance is
meant for our rounding. SmolLM2 in f32 is 1e-4 from itself in double, all of the tolerance, so its logits are those in
double.
"""

import argparse
import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from tests.factories import hf_config, tiny_config, tiny_weights
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from foreword.core.config import ModelConfig, RopeScaling

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
PROMPT_LEN = 110
NUM_TOKENS = 64
LEAST_MARGIN = 1e-3  # between the best two logits of each greedy step; ten times the tolerance of the tests
MOST_ROUNDING = 3e-5  # between logits in f32 and in double
LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_max_position=64, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = RopeScaling(kind="yarn", factor=4.0, original_max_position=64)

TINY: dict[str, ModelConfig] = {
    "llama_mha": tiny_config(num_kv_heads=4),
    "llama_gqa_tied": tiny_config(tied_embeddings=True),
    "llama_mqa_linear": tiny_config(num_kv_heads=1, rope_scaling=RopeScaling(kind="linear", factor=4.0)),
    "llama_gqa_llama3": tiny_config(rope_scaling=LLAMA3, rope_theta=500_000.0),
    "llama_gqa_yarn": tiny_config(rope_scaling=YARN, num_layers=3),
    "llama_biases": tiny_config(attention_bias=True, output_bias=True, mlp_bias=True),
    "mistral_gqa": tiny_config("mistral", head_dim=24, rms_norm_eps=1e-5),
    "qwen2_tied": tiny_config("qwen2", tied_embeddings=True, rope_theta=1_000_000.0),
    "qwen2_yarn": tiny_config("qwen2", rope_scaling=replace(YARN, truncate=False, mscale=1.5, mscale_all_dim=0.5)),
    "qwen3_mqa": tiny_config("qwen3", num_kv_heads=1, head_dim=32),
    "qwen3_gqa_tied": tiny_config("qwen3", tied_embeddings=True),
}

SMOLLM2_MESSAGES = [
    {
        "role": "user",
        "content": "Explain in a few sentences why a library keeps a catalogue, and what it costs to keep one.",
    },
    {"role": "assistant", "content": "A catalogue lets readers find a book without walking past every shelf."},
    {"role": "user", "content": "And what does it cost? Name two things: one in time, one in space."},
]


def main() -> None:
    """Parse the command line and make what it names."""
    parser = argparse.ArgumentParser(description="Make the golden files of tests/golden.")
    parser.add_argument("what", choices=["tiny", "smollm2"])
    parser.add_argument("gguf", nargs="?", type=Path, help="the SmolLM2 file")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    with torch.inference_mode():
        if arguments.what == "tiny":
            for index, (name, config) in enumerate(TINY.items()):
                next(seed for seed in itertools.count(index, len(TINY)) if make_tiny(name, config, seed))
        else:
            make_smollm2(arguments.gguf)


def make_tiny(name: str, config: ModelConfig, seed: int) -> bool:
    """Write one folder: what `save_pretrained` writes, and `golden.npz`. Returns whether the seed was fit for it."""
    weights = {key: torch.from_numpy(value) for key, value in tiny_weights(config, seed).items()}
    model = AutoModelForCausalLM.from_config(_config(config), dtype=torch.float32, attn_implementation="eager")
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or [key for key in missing if key != "lm_head.weight"]:
        raise SystemExit(f"{name}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.eval()
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    prompt = np.random.default_rng(1000 + seed).integers(0, config.vocab_size, PROMPT_LEN).tolist()
    outcome = run(model, prompt)
    print(f"{name}, seed {seed}: {outcome.describe()}")
    np.savez_compressed(
        folder / "golden.npz",
        prompt=np.array(prompt, np.int32),
        logits=outcome.logits,
        continuation=np.array(outcome.continuation, np.int32),
        inverse_frequencies=model.model.rotary_emb.inv_freq.float().numpy(),
    )
    return outcome.least_margin >= LEAST_MARGIN and outcome.rounding <= MOST_ROUNDING


def make_smollm2(path: Path) -> None:
    """Write `smollm2.npz`: prompt, logits of the last position in full and of all positions at some tokens."""
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text = tokenizer.apply_chat_template(SMOLLM2_MESSAGES, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=False).input_ids
    outcome = run(model, prompt)
    print(f"smollm2: {outcome.describe()}")
    logits = outcome.exact_logits.astype(np.float32)
    columns = np.unique(np.concatenate([np.argsort(-logits[-1])[:32], np.arange(0, logits.shape[1], 1499)]))
    np.savez_compressed(
        GOLDEN / "smollm2.npz",
        prompt=np.array(prompt, np.int32),
        last_logits=logits[-1],
        columns=columns.astype(np.int32),
        column_logits=logits[:, columns],
        continuation=np.array(outcome.continuation, np.int32),
    )
    print(tokenizer.decode(outcome.continuation))


@dataclass(frozen=True)
class Outcome:
    """Logits of the prompt `[len, vocab]` in f32 and in double, and a greedy continuation with its narrowest choice."""

    logits: NDArray[np.float32]
    exact_logits: NDArray[np.float64]
    continuation: list[int]
    least_margin: float

    @property
    def rounding(self) -> float:
        """Most that f32 is away from double."""
        return float(np.abs(self.logits - self.exact_logits).max())

    def describe(self) -> str:
        """One line for the log."""
        return (
            f"least margin {self.least_margin:.4f}, f32 from double {self.rounding:.1e}, "
            f"{len(set(self.continuation))} different tokens, deviation of logits {self.logits.std():.2f}"
        )


def run(model: Any, prompt: list[int]) -> Outcome:
    """Run the prompt, then continue it greedily, recomputed from the start at each step."""
    logits = model(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
    known, least_margin = list(prompt), np.inf
    for _ in range(NUM_TOKENS):
        best = torch.topk(model(torch.tensor([known]), use_cache=False).logits[0, -1], 2)
        least_margin = min(least_margin, float(best.values[0] - best.values[1]))
        known.append(int(best.indices[0]))
    exact_logits = model.double()(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
    return Outcome(logits, exact_logits, known[len(prompt) :], least_margin)


def _config(config: ModelConfig) -> Any:
    fields = hf_config(config)
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


if __name__ == "__main__":
    main()
