"""Hit rate against memory, drawn with characters."""

import math

from foreword.replay.replay import ReplayResult

WIDTH, HEIGHT = 64, 16
_MARKS = {"slru": "s", "lru": "l", "lfu": "f", "cost": "c", "optimum": "o"}


def chart(result: ReplayResult) -> list[str]:
    """Lines of a chart: capacity to the right, each step of the same width a factor; token hit rate upwards.

    Where marks fall together the later one in the legend is seen. The line of dashes is the cache without bounds.
    """
    capacities = [row.capacity for row in result.rows]
    low, high = math.log(min(capacities)), math.log(max(capacities))
    best = max(result.unbounded.token_hit_ratio, *(row.tally.token_hit_ratio for row in result.rows))
    top = max(0.1, math.ceil(best * 10) / 10)
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]

    def line_of(ratio: float) -> int:
        return HEIGHT - 1 - round(ratio / top * (HEIGHT - 1))

    grid[line_of(result.unbounded.token_hit_ratio)] = ["-"] * WIDTH
    names = sorted({row.policy for row in result.rows}, key=list(_MARKS).index, reverse=True)
    for name in names:
        for row in result.of_policy(name):
            column = round((math.log(row.capacity) - low) / (high - low) * (WIDTH - 1)) if high > low else 0
            grid[line_of(row.tally.token_hit_ratio)][column] = _MARKS[name]
    lines = []
    for number, cells in enumerate(grid):
        label = f"{top * (HEIGHT - 1 - number) / (HEIGHT - 1):6.1%}" if number % 5 == 0 else " " * 6
        lines.append(f"{label} │{''.join(cells)}".rstrip())
    lines.append(" " * 7 + "└" + "─" * WIDTH)
    left, right = f"{min(capacities):,}", f"{max(capacities):,} blocks"
    lines.append(" " * 8 + left + right.rjust(WIDTH - len(left)))
    lines.append(" " * 8 + "  ".join(f"{_MARKS[name]} {name}" for name in names) + "  - infinite")
    return lines
