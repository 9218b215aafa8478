"""10,000 strings and 200 conversations that are the same on every machine: what golden ids are stored for.

Only the standard library, and a generator of random numbers of our own, so that the script that makes the golden
files and the tests that read them see the same text whatever their Python.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

GOLDEN = Path(__file__).parents[1] / "golden" / "text"
NUM_STRINGS = 10_000
NUM_CONVERSATIONS = 200

T = TypeVar("T")

_WORDS_TEXT = (
    "the quick brown fox The QUICK I'm don't DON'T they'll we've o'clock naïve café "
    "résumé Straße Äpfel größer señor mañana ¿dónde? ¡sí! ça élève œuvre garçon não "
    "coração perché città żółw gęś příliš žluťoučký kůň magyar őrült İstanbul ışık çığ "
    "Ελλάδα λόγος Москва привет ёлка Київ їжак български ქართული Հայաստան שָׁלוֹם עברית "
    "العربيّة مرحبا فارسی اردو हिन्दी नमस्ते বাংলা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ไทย สวัสดี "
    "ລາວ မြန်မာ ខ្មែរ བོད་ 中文 你好世界 漢字 日本語 こんにちは カタカナ ﾊﾝｶｸ 한국어 안녕하세요 Tiếng Việt người "
    "đường አማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ e\u0301 a\u030a\u0323 ﬁ ﬂ Ａｂｃ ① Ⅷ ² ½ µ Ω Å x\u200dy a\xadb"
)
_WORDS = tuple(_WORDS_TEXT.split(" "))
_EMOJI_TEXT = (
    "😀 🎉 👍🏽 👩\u200d🚀 👨\u200d👩\u200d👧\u200d👦 🇫🇷 🇯🇵🇧🇷 ❤️ ☃ "
    "⚡️ 🏳️\u200d🌈 🧑🏿\u200d💻 1️⃣ #️⃣ 🫠 🦖 🥲 🐈\u200d⬛ ♟️ ✊🏾 🕵️\u200d♀️ 🀄 🃏 ⏰ 🚀🚀🚀"
)
_EMOJI = tuple(_EMOJI_TEXT.split(" "))
_DIGITS = (
    "0", "7", "42", "123", "1234", "12345", "1234567890", "3.14159", "1,000,000", "1e-9", "0x1F", "١٢٣", "४५६",
    "๗๘", "１２", "𝟙𝟚", "⅓", "2024-11-30", "23:59:59", "+49 30 1234-567", "v1.2.3", "50%", "$9.99",
    "192.168.0.1", "½", "x²", "№ 5",
)  # fmt: skip
_SPACES = (
    " ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\xa0", "\u2003", "\u3000", "\u200b",
    "\u2028", "\x85", "    ", "        ", "\x0b", "\x0c",
)  # fmt: skip
_CODE = (
    "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\ta[i] += b[i] * c;\n}\n",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%';",
    '<div class="a-b">\n  <p>Hi &amp; bye</p>\n</div>',
    '{"key": [1, 2.5, null, true], "nested": {"é": "\\u00e9"}}',
    "fn main() -> Result<(), Box<dyn Error>> { Ok(()) }",
    "$ ls -la | grep '^d' && echo \"$HOME\" > /dev/null 2>&1",
    "\\frac{a}{b} \\sum_{i=0}^{n} x_i^2 \\le \\epsilon",
    "https://example.org/a/b?c=d&e=%20f#g user+tag@mail.example",
    "if x != y and not (a <= b or c == d): raise ValueError(f'{x!r}')",
    "import os, sys\r\nprint(os.path.join('a', \"b\"))\r\n",
    "#include <stdio.h>\nint main(void){return 0;}",
)
_BLOCKS = (
    (0x20, 0x7E), (0xA1, 0x17F), (0x250, 0x2AF), (0x300, 0x36F), (0x391, 0x3A1), (0x410, 0x44F), (0x5D0, 0x5EA),
    (0x621, 0x64A), (0x905, 0x939), (0xE01, 0xE30), (0x10A0, 0x10C5), (0x1100, 0x1159), (0x1E00, 0x1EFF),
    (0x2010, 0x2027), (0x2070, 0x2071), (0x20A0, 0x20BF), (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2460, 0x24FF),
    (0x2500, 0x257F), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xE000, 0xE0FF),
    (0xFF01, 0xFF5E), (0x10400, 0x1044F), (0x1D400, 0x1D454), (0x1F300, 0x1F320), (0x1F600, 0x1F64F),
    (0x20000, 0x200FF),
)  # fmt: skip
_CONTROLS = tuple(map(chr, (*range(0x20), *range(0x7F, 0xA0)))) + tuple(
    "\ufeff\u200e\u200f\u202e\u2066\u2069\ufffd\ufffe\ue000\U000e0041\U0010ffff"
)


class Draw:
    """Random numbers by splitmix64."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, limit: int) -> int:
        """A number from 0 to `limit - 1`."""
        mask = 2**64 - 1
        self._state = (self._state + 0x9E3779B97F4A7C15) & mask
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return (z ^ (z >> 31)) % limit

    def choose(self, values: Sequence[T]) -> T:
        """One of the values."""
        return values[self.below(len(values))]

    def some(self, low: int, high: int, make: Callable[[], str], joint: str = "") -> str:
        """`low` to `high` pieces, joined."""
        return joint.join(make() for _ in range(low + self.below(high - low + 1)))


def _kinds(draw: Draw, specials: Sequence[str]) -> dict[str, Callable[[], str]]:
    def word() -> str:
        return draw.choose(_WORDS)

    def character() -> str:
        low, high = draw.choose(_BLOCKS)
        return chr(low + draw.below(high - low + 1))

    def mixed() -> str:
        return draw.choose((word, number, emoji, space, character))()

    def number() -> str:
        return draw.choose(_DIGITS)

    def emoji() -> str:
        return draw.choose(_EMOJI)

    def space() -> str:
        return draw.choose(_SPACES)

    def special() -> str:
        token = draw.choose(specials)
        return draw.choose((token, token, token[1:], token[:-1], token.upper(), token + " ", word(), " " + word()))

    return {
        "words": lambda: draw.some(1, 12, word, " "),
        "words in one": lambda: draw.some(2, 5, word),
        "digits": lambda: draw.some(1, 6, number, draw.choose((" ", "", "  ", ", "))),
        "emoji": lambda: draw.some(1, 6, emoji, draw.choose((" ", "", "a"))),
        "white space": lambda: draw.some(1, 12, lambda: draw.choose((space, space, word, number))()),
        "code": lambda: draw.some(1, 3, lambda: draw.choose(_CODE), draw.choose(("\n", "", "\n\n    "))),
        "controls": lambda: draw.some(1, 8, lambda: draw.choose((draw.choose(_CONTROLS), word()))),
        "characters": lambda: draw.some(1, 24, character),
        "ascii": lambda: draw.some(1, 40, lambda: chr(32 + draw.below(95))),
        "mixed": lambda: draw.some(2, 16, mixed),
        "long": lambda: draw.some(100, 300, mixed, draw.choose((" ", ""))),
        "special": lambda: draw.some(1, 6, special),
    }


def golden_strings(specials: Sequence[str]) -> list[str]:
    """The strings, `blns.json` first; `specials` are the special tokens that some of them hold."""
    strings: list[str] = json.loads((GOLDEN / "blns.json").read_text("utf-8"))
    draw = Draw(2024)
    kinds = _kinds(draw, specials)
    names = [name for name in kinds if name != "long"]
    while len(strings) < NUM_STRINGS:
        strings.append(kinds["long" if len(strings) % 100 == 0 else draw.choose(names)]())
    return strings


def golden_conversations() -> list[list[dict[str, Any]]]:
    """Conversations without special tokens: with and without a system message, of 1 to 9 turns, some ending early."""
    draw = Draw(7)
    kinds = _kinds(draw, ["<x>"])
    names = [name for name in kinds if name not in ("special", "long")]
    conversations = []
    for index in range(NUM_CONVERSATIONS):
        messages: list[dict[str, Any]] = []
        if draw.below(2):
            messages.append({"role": "system", "content": kinds[draw.choose(names)]()})
        for turn in range(1 + draw.below(9)):
            name = "long" if index % 40 == 0 else draw.choose(names)
            content = "" if draw.below(30) == 0 else kinds[name]()
            messages.append({"role": ("user", "assistant")[turn % 2], "content": content})
        conversations.append(messages)
    return conversations


def ids_digest(ids: Iterable[int]) -> str:
    """16 hexadecimal digits that stand for a list of ids."""
    return hashlib.blake2b(b"".join(i.to_bytes(4, "little") for i in ids), digest_size=8).hexdigest()


def text_digest(value: object) -> str:
    """A digest of any JSON value, to notice that the generator changed."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
