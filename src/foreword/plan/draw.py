"""Memory against context, as characters and as a picture (which needs matplotlib, the extra `plot`)."""

from pathlib import Path

from foreword.core.errors import ForewordError
from foreword.plan.plan import Plan

_WIDTH = 48
_BEYOND = 12  # cells of a bar that is too long
_POINTS = 160


def bars(plan: Plan) -> list[str]:
    """What each number of requests takes, a bar each; `|` is where the memory for K and V ends."""
    limit = max(1, plan.kv_budget_bytes)
    lines = []
    for row in plan.concurrency:
        length = min(_WIDTH + _BEYOND, round(row.shared_bytes / limit * _WIDTH))
        cells = "█" * max(1, length)
        line = cells[:_WIDTH].ljust(_WIDTH) + "|" + cells[_WIDTH:]
        times = f"  {row.shared_bytes / limit:,.1f} times" if plan.kv_budget_bytes else "  no memory is left"
        lines.append(f"{row.requests:>10,} {line}{'' if row.fits else times}")
    return lines


def save_plot(plan: Plan, path: Path) -> None:
    """Write the picture: a line a number of requests, the same without shared heads dashed, the memory as a border."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    geometry, options = plan.geometry, plan.options
    longest = geometry.max_position or 2 * options.lengths.longest
    contexts = sorted({max(1, round(longest ** (point / _POINTS))) for point in range(_POINTS // 4, _POINTS + 1)})
    stored = options.stored
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the settings of this machine say
    axes = figure.add_subplot()
    for number, row in enumerate(plan.concurrency):
        paged = [row.requests * geometry.block_bytes(stored, n, options.block_size) / 2**30 for n in contexts]
        axes.plot(contexts, paged, color=f"C{number}", label=f"{row.requests:,} at once")
        if not geometry.is_latent and geometry.num_kv_heads < geometry.num_heads:
            unshared = [row.requests * geometry.unshared_bytes(stored) * n / 2**30 for n in contexts]
            axes.plot(contexts, unshared, color=f"C{number}", linestyle="--", linewidth=0.8)
    axes.axhline(plan.kv_budget_bytes / 2**30, color="0.4", linestyle=":", label="memory for K and V")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens of each request")
    axes.set_ylabel("GiB of K and V")
    axes.set_title(f"{geometry.name}: {geometry.describe()}; dashed: a head of K and V a query head", fontsize=9)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ForewordError(f"plot: {path}: {(error.strerror or 'cannot be written').lower()}") from None
