"""Prompt and answer lengths of real conversations, for figures that depend on how long requests are.

The built-in mix is a sample of the Azure LLM inference trace 2023, conversation: of its 19,366 requests, sorted by
total length, the middle one of each of 128 equal parts. Source: Azure/AzurePublicDataset,
`AzureLLMInferenceTrace_conv.csv`, CC BY 4.0; Patel et al., "Splitwise: Efficient generative LLM inference using phase
splitting", ISCA 2024.
"""

import csv
from pathlib import Path

from foreword.core.errors import ForewordError

Lengths = list[tuple[int, int]]
"""Prompt tokens and generated tokens of each request."""

MAX_REQUESTS = 10_000_000

# fmt: off
AZURE_CONVERSATION: Lengths = [
    (91, 24), (23, 125), (116, 78), (237, 14), (181, 88), (181, 104), (181, 117), (240, 72), (181, 143), (197, 137),
    (327, 18), (197, 162), (206, 161), (212, 162), (203, 181), (181, 213), (197, 217), (374, 47), (212, 217),
    (370, 66), (375, 68), (372, 77), (385, 69), (373, 88), (372, 95), (374, 99), (391, 86), (396, 84), (379, 105),
    (394, 92), (398, 90), (402, 88), (394, 99), (400, 95), (402, 95), (415, 84), (398, 104), (404, 100), (419, 87),
    (403, 106), (400, 112), (406, 109), (429, 89), (427, 95), (427, 99), (409, 122), (408, 129), (401, 144),
    (409, 145), (438, 132), (550, 110), (763, 76), (918, 40), (931, 83), (990, 89), (1084, 84), (1158, 103),
    (1232, 80), (958, 395), (1302, 70), (977, 407), (1018, 375), (1338, 64), (998, 411), (978, 437), (1024, 396),
    (1040, 385), (1339, 91), (1041, 394), (1061, 378), (1051, 393), (945, 504), (1024, 429), (1065, 391), (1072, 388),
    (1019, 446), (1068, 400), (1100, 371), (1313, 162), (1060, 420), (1055, 429), (1069, 419), (1094, 397),
    (1122, 373), (1320, 179), (1074, 430), (1047, 461), (1117, 395), (1316, 200), (1123, 398), (1083, 443),
    (1114, 417), (1113, 423), (1141, 401), (1089, 460), (1158, 397), (1176, 386), (1147, 423), (1354, 225),
    (1161, 429), (1202, 400), (1183, 431), (1081, 549), (1596, 56), (1301, 377), (1606, 107), (1659, 101),
    (1303, 533), (1908, 56), (1116, 954), (2099, 93), (2255, 91), (2367, 93), (2506, 107), (2639, 93), (2853, 42),
    (3340, 58), (4073, 31), (4076, 39), (4088, 33), (4075, 53), (4083, 52), (4097, 45), (4081, 72), (4076, 92),
    (4085, 103), (4075, 163), (5069, 56),
]
# fmt: on
AZURE_LONGEST = 14_089
"""Most tokens of one request in the whole trace; the longest in the sample is shorter."""


def read_trace(path: Path) -> Lengths:
    """Lengths out of a CSV file with the columns `ContextTokens` and `GeneratedTokens`.

    Raises:
        ForewordError: no such file, other columns, a value that is no positive integer, or no request at all.
    """
    lengths: Lengths = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                lengths.append((_tokens(row, "ContextTokens"), _tokens(row, "GeneratedTokens")))
                if len(lengths) > MAX_REQUESTS:
                    raise ForewordError(f"{path}: more than {MAX_REQUESTS:,} requests")
    except OSError as error:
        raise ForewordError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from None
    except (ValueError, csv.Error) as error:
        raise ForewordError(f"{path}: line {len(lengths) + 2}: {error}") from None
    if not lengths:
        raise ForewordError(f"{path}: holds no request")
    return lengths


def evenly_sampled(lengths: Lengths, count: int) -> Lengths:
    """At most `count` requests, evenly over the whole, order kept."""
    if len(lengths) <= count:
        return lengths
    return [lengths[int((i + 0.5) * len(lengths) / count)] for i in range(count)]


def scaled(lengths: Lengths, longest: int, context: int) -> Lengths:
    """Every length times `context / longest`, so that the longest request just fits; each part at least one token."""
    factor = context / longest
    return [(max(1, round(p * factor)), max(1, round(g * factor))) for p, g in lengths]


def truncated(lengths: Lengths, context: int) -> Lengths:
    """As a server with that context would see them: answers of at most half of it, and the end of prompts that fits."""
    short = [(p, min(g, context // 2)) for p, g in lengths]
    return [(min(p, context - g), g) for p, g in short]


def _tokens(row: dict[str, str], column: str) -> int:
    if row.get(column) is None:
        raise ValueError(f"no column {column}")
    value = int(row[column])
    if not 0 < value < 2**31:
        raise ValueError(f"{column}: expected a positive integer, got {value}")
    return value
