"""Make `tests/golden/embeddings.npz`: what `transformers` gives as the last token's hidden state after the final norm.

Run with an interpreter that has the `golden` extra (torch, transformers), from the repository's root, after
`scripts/make_golden.py tiny`, whose models it reads:

    PYTHONPATH=src:. python scripts/make_golden_embeddings.py

Each tiny model reads three prompts of random tokens, in f32 without a cache; vectors get length one in double.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
LENGTHS = (1, 17, 90)


def main() -> None:
    """Write the file: `<model>/<i>/prompt` and `<model>/<i>/embedding`."""
    torch.set_num_threads(2)
    found = {}
    for folder in sorted(path.parent for path in GOLDEN.glob("*/golden.npz")):
        model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        for i, length in enumerate(LENGTHS):
            prompt = np.random.default_rng(7000 + i).integers(0, model.config.vocab_size, length)
            with torch.inference_mode():
                states = model(torch.from_numpy(prompt)[None], use_cache=False).last_hidden_state
            last = states[0, -1].double().numpy()
            found[f"{folder.name}/{i}/prompt"] = prompt.astype(np.int32)
            found[f"{folder.name}/{i}/embedding"] = (last / np.linalg.norm(last)).astype(np.float32)
    np.savez(GOLDEN / "embeddings.npz", **found)  # type: ignore[arg-type]  # names of ours, none of them `allow_pickle`


if __name__ == "__main__":
    main()
