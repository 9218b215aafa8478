#!/usr/bin/env python3
"""Makes docs/pictures/*.svg from the engine's own state: real scheduler, block pool, index and tables, and no model.

    python scripts/make_pictures.py           # write
    python scripts/make_pictures.py --check   # exit 1, naming the pictures that are not fresh

A token here is a word, so that a picture can show what a block holds. Colours are of middle brightness: the same
file is read on white and on black.
"""

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

from foreword.bench.length_mix import AZURE_CONVERSATION, evenly_sampled, truncated
from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.outputs import SampledToken
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Request, Sequence
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.demo.counted import run_steps
from foreword.kv_cache.explain import MissReport
from foreword.kv_cache.manager import KVCacheManager
from foreword.kv_cache.radix_node import RadixNode
from foreword.kv_cache.radix_prefix_cache import RadixPrefixCache
from foreword.scheduler.scheduler import Scheduler

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
INK, FAINT = "#76808f", "#9aa3af"
BLUE, GREEN, ORANGE, RED, VIOLET = "#2f75b5", "#2e8b57", "#b8701a", "#c0453f", "#7d5fb2"

RULES = "You answer questions about the sea , briefly and kindly . Say so when unsure ."
TIDES, WHALES = "When is high tide ?", "How long do blue whales live ?"


class Lab:
    """A scheduler and a pool with words for tokens; what a model would draw is said by the caller."""

    def __init__(self, num_blocks: int) -> None:
        self.manager = KVCacheManager(CacheConfig(num_blocks=num_blocks, block_size=8, prefix_cache="radix"))
        self.scheduler = Scheduler(SchedulerConfig(watermark=0.0), self.manager)
        self.sequences: list[Sequence] = []
        self._words: list[str] = []
        self._now = 0

    def ids(self, text: str) -> list[TokenId]:
        """A number for each word, the same whenever it comes again."""
        for word in text.split():
            if word not in self._words:
                self._words.append(word)
        return [TokenId(self._words.index(word)) for word in text.split()]

    def word(self, token: int) -> str:
        """The word of a number."""
        return self._words[token]

    def ask(self, prompt: str, *, answers: int = 1, max_tokens: int = 4) -> list[Sequence]:
        """Add a request."""
        ids, params = self.ids(prompt), SamplingParams(n=answers, max_tokens=max_tokens, seed=1, ignore_eos=True)
        name = RequestId(str(len(self.sequences)))
        new = [
            Sequence(SequenceId(len(self.sequences) + i), name, i, list(ids), len(ids), params, seed=i)
            for i in range(answers)
        ]
        self.scheduler.add(Request(name, tuple(ids), params, sequences=new))
        self.sequences += new
        return new

    def step(self, drawn: str | list[str]) -> None:
        """Run one step, in which sequence i draws the i-th text, or all the same."""
        self._now += 1
        plan = self.scheduler.schedule(self._now)
        assert plan is not None
        texts = [drawn] * len(self.sequences) if isinstance(drawn, str) else drawn
        self.scheduler.update(
            plan,
            {s.sequence_id: (SampledToken(self.ids(texts[s.sequence_id])[0]),) for s in plan.sequences if s.samples},
        )
        self.scheduler.check_invariants()

    def run(self, prompt: str) -> None:
        """Ask, and draw one word until the answer ends."""
        self.ask(prompt, max_tokens=1)
        self.step(".")

    def table(self, sequence: Sequence) -> list[int]:
        """Block ids of a running sequence."""
        return self.manager.block_table(sequence).ids.tolist()

    def contents(self) -> dict[tuple[int, int], str]:
        """Block and offset of every row that holds K and V of a running sequence, and its word."""
        size, found = self.manager.config.block_size, {}
        for sequence in self.sequences:
            table = self.table(sequence)
            for position in range(sequence.num_computed_tokens):
                token = sequence.token_ids[position]
                found[table[position // size], position % size] = self.word(token)
        return found

    def explain(self, prompt: str) -> MissReport:
        """Where a prompt parts from what is stored."""
        return self.manager.explain(b"", self.ids(prompt))


def svg(width: int, height: int, title: str, parts: Iterator[str]) -> str:
    """A picture of that size; the title is what a screen reader says."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13">\n<title>{escape(title)}</title>\n{body}\n</svg>\n'
    )


def text(x: float, y: float, words: str, fill: str = INK, *, anchor: str = "start", size: int = 13) -> str:
    """A line of text; y is its baseline."""
    return f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str = "none", stroke: str = "none") -> str:
    """A rectangle with small round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{stroke}"/>'


def cell(x: float, y: float, words: str, fill: str, *, width: float = 68) -> str:
    """A coloured box with white text."""
    return box(x, y, width - 2, 24, fill) + text(x + width / 2 - 1, y + 17, words, "#ffffff", anchor="middle", size=12)


def pool_picture(lab: Lab, names: dict[str, tuple[Sequence, str]]) -> Iterator[str]:
    """Tables above, every block of the pool below: its words, and how many hold it."""
    for row, (name, (sequence, colour)) in enumerate(names.items()):
        y = 16 + 34 * row
        yield text(8, y + 17, f"table of {name}", colour)
        for i, block in enumerate(lab.table(sequence)):
            yield cell(110 + 70 * i, y, f"block {block}", colour)
    top, words, pool = 40 + 34 * len(names), lab.contents(), lab.manager.pool
    for block in range(lab.manager.config.num_blocks):
        y = top + 30 * block
        holders = [colour for sequence, colour in names.values() if block in lab.table(sequence)]
        colour = GREEN if len(holders) > 1 else holders[0] if holders else FAINT
        yield text(8, y + 17, f"block {block}", colour)
        for offset in range(lab.manager.config.block_size):
            x = 110 + 68 * offset
            if (block, offset) in words:
                yield cell(x, y, words[block, offset], colour)
            else:
                yield box(x + 0.5, y + 0.5, 65, 23, stroke=FAINT)
        count = pool.ref_count(block)
        held = "free" if not count else "1 holder" if count == 1 else f"{count} holders"
        yield text(110 + 68 * lab.manager.config.block_size + 8, y + 17, held, colour)


def block_tables() -> str:
    """Two sequences that share a prefix."""
    lab = Lab(6)
    (tides,) = lab.ask(f"{RULES} {TIDES}")
    lab.step("At")
    (whales,) = lab.ask(f"{RULES} {WHALES}")
    lab.step(["noon", "Eighty"])
    title = "Two sequences begin alike: their tables name the same two blocks, and each has a third of its own"
    return svg(760, 292, title, pool_picture(lab, {"A": (tides, BLUE), "B": (whales, ORANGE)}))


def forks() -> str:
    """Three answers to one prompt."""
    lab = Lab(6)
    answers = lab.ask(f"{RULES} {TIDES}", answers=3)
    for _ in range(3):
        lab.step(["At", "Near", "Twice"])
    names = dict(zip("ABC", zip(answers, (BLUE, ORANGE, VIOLET), strict=True), strict=True))
    title = "Three answers share the blocks of their prompt; each has a copy of the last, half full one"
    return svg(760, 326, title, pool_picture(lab, names))


def radix_tree() -> str:
    """The index after four prompts."""
    lab = Lab(32)
    for prompt in (
        f"{RULES} {TIDES}",
        f"{RULES} {WHALES}",
        f"{RULES} When is low tide ?",
        "Translate into French : the sea",
    ):
        lab.run(prompt)
    index = lab.manager.prefix_cache
    assert isinstance(index, RadixPrefixCache)
    (root,) = index._roots.values()  # no public way in: nothing but a picture wants the nodes themselves
    parts: list[str] = [cell(8, 104, "root", FAINT, width=54)]
    leaves = iter(range(99))
    _draw_children(lab, root, 62, 116, parts, leaves)
    return svg(900, 236, "The radix tree after four prompts: a path from the root spells a stored prefix", iter(parts))


def _draw_children(lab: Lab, node: RadixNode, x: float, y: float, parts: list[str], leaves: Iterator[int]) -> float:
    """Draw everything below a node, whose box ends at (x, y); returns the middle of what was drawn."""
    middles = []
    for child in (node.children or {}).values():
        words = [lab.word(token) for token in memoryview(child.tokens).cast("i")]
        lines = _wrapped(words, 34)
        blocks = " ".join(f"b{block}" for block in child.blocks) or "no block"
        label = f"[{child.start}, {child.num_tokens}) {blocks}"
        left, width = x + 44, 8 + 6.6 * max(map(len, [label, *lines]))
        below = (
            _draw_children(lab, child, left + width, 0, parts, leaves) if child.children else 30 + 56.0 * next(leaves)
        )
        height = 8 + 15 * len(lines)
        parts.append(box(left, below - height / 2, width, height, BLUE if child.children else GREEN))
        for i, line in enumerate(lines):
            parts.append(text(left + 5, below - height / 2 + 16 + 15 * i, line, "#ffffff", size=12))
        parts.append(text(left + 2, below + height / 2 + 12, label, size=11))
        middles.append((below, left))
    middle = sum(m for m, _ in middles) / len(middles)
    for target, left in middles:
        start = y or middle
        parts.append(
            f'<path d="M{x:g} {start:g} C{x + 22:g} {start:g} {x + 22:g} {target:g} {left:g} {target:g}" '
            f'fill="none" stroke="{INK}"/>'
        )
    return middle


def _wrapped(words: list[str], most: int) -> list[str]:
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) >= most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def waste() -> str:
    """Slots reserved and used by sixteen requests of a published mix."""
    context, config = 4096, CacheConfig(num_blocks=1)
    mix = [sum(pair) for pair in evenly_sampled(truncated(AZURE_CONVERSATION, context), 16)]
    paged = sum(config.blocks_for(n) * config.block_size for n in mix)
    scale = 300 / context

    def parts() -> Iterator[str]:
        for x, title in (
            (8, "contiguous: the longest length, for each"),
            (400, "blocks of 16: what is there, rounded up"),
        ):
            yield text(x, 20, title)
        for row, length in enumerate(mix):
            y = 32 + 14 * row
            yield box(8, y, context * scale, 10, stroke=FAINT)
            yield box(8, y, length * scale, 10, BLUE)
            yield box(400, y, config.blocks_for(length) * config.block_size * scale, 10, GREEN)
        y = 52 + 14 * len(mix)
        for x, reserved in ((8, context * len(mix)), (400, paged)):
            yield text(x, y, f"{reserved:,} slots reserved, {sum(mix):,} used: {sum(mix) / reserved:.1%}")

    return svg(760, 300, "Sixteen requests: slots that a contiguous cache reserves, and blocks of 16", parts())


def step_cost() -> str:
    """Tokens computed in each step, with and without a KV cache."""
    prompt, generated = 1000, 100
    runs = {
        naive: [tokens for tokens, _ in run_steps(prompt, generated, recompute_all=naive)] for naive in (True, False)
    }
    width, height, most = 560, 200, prompt + generated

    def parts() -> Iterator[str]:
        for naive, colour, name in ((True, RED, "without a KV cache"), (False, GREEN, "with it")):
            points = " ".join(
                f"{60 + width * i / generated:.1f},{20 + height * (1 - tokens / most):.1f}"
                for i, tokens in enumerate(runs[naive])
            )
            yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="3"/>'
            y = 20 + height * (1 - runs[naive][-1] / most)
            yield text(68 + width, y + 4, name, colour)
            yield text(68 + width, y + 22, f"{sum(runs[naive]):,} in all", colour)
        yield f'<path d="M60 20 V{20 + height} H{60 + width}" fill="none" stroke="{INK}"/>'
        for tokens in (0, 500, 1000):
            yield text(54, 24 + height * (1 - tokens / most), f"{tokens:,}", anchor="end", size=11)
        yield text(
            60 + width / 2, height + 44, f"step: {prompt:,} prompt tokens, then {generated} new ones", anchor="middle"
        )
        yield text(74, 126, "tokens computed in a step")

    return svg(780, 256, "Tokens computed in each step, with and without a KV cache", parts())


def miss() -> str:
    """What one early change costs, and the same change at the end."""
    rules, question = "Answer briefly and kindly , about the sea .", "When is high tide ?"
    early = [f"It is {time} . {rules} {question}" for time in ("9:30", "9:31")]
    late = [f"{rules} It is {time} . {question}" for time in ("9:30", "9:31")]

    def parts() -> Iterator[str]:
        for row, (name, (stored, asked)) in enumerate((("the time comes first", early), ("the time comes late", late))):
            lab = Lab(16)
            lab.run(stored)
            report, y = lab.explain(asked), 30 + 112 * row
            found, ids = report.matched_tokens, lab.ids(asked)
            yield text(8, y - 10, f"{name}: {found} of {len(ids)} tokens found; cause: {report.cause.value}")
            for line, prompt in enumerate((stored, asked)):
                for i, word in enumerate(prompt.split()):
                    colour = FAINT if not line else GREEN if i < found else RED if i == found else ORANGE
                    yield cell(70 + 49 * i, y + 30 * line, word, colour, width=49)
                yield text(8, y + 30 * line + 17, ("stored", "asked")[line])
        for i, (colour, name) in enumerate(
            ((GREEN, "read"), (RED, "the first that differs"), (ORANGE, "computed again"))
        ):
            yield box(70 + 170 * i, 226, 14, 14, colour) + text(90 + 170 * i, 238, name)

    return svg(960, 252, "A prompt is read from the cache up to the first token that differs", parts())


PICTURES = {
    "step-cost.svg": step_cost,
    "waste.svg": waste,
    "block-tables.svg": block_tables,
    "radix-tree.svg": radix_tree,
    "forks.svg": forks,
    "miss.svg": miss,
}


def main() -> int:
    """Write the pictures, or say which are stale."""
    made = {FOLDER / name: make() for name, make in PICTURES.items()}
    stale = [path for path, drawn in made.items() if not path.exists() or path.read_text(encoding="utf-8") != drawn]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"docs/pictures/{path.name} is not fresh: run scripts/make_pictures.py", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
