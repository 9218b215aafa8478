"""Hit rate against memory, as a picture. Needs matplotlib (the extra `plot`)."""

from pathlib import Path

from foreword.core.errors import ForewordError
from foreword.replay.replay import ReplayResult


def save_plot(result: ReplayResult, path: Path, kv_bytes_per_token: int | None = None) -> None:
    """Write the picture: one line a policy, the optimum dashed, the cache without bounds dotted.

    The axis is memory where the bytes of K and V a token takes are known, and tokens that the pool holds otherwise.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the settings of this machine say
    axes = figure.add_subplot()
    unit, name = (
        (1, "tokens in the pool") if kv_bytes_per_token is None else (kv_bytes_per_token / 2**30, "GiB of K, V")
    )
    for policy in dict.fromkeys(row.policy for row in result.rows):
        rows = result.of_policy(policy)
        memory = [row.capacity * result.block_size * unit for row in rows]
        hits = [100 * row.tally.token_hit_ratio for row in rows]
        style = "k--" if policy == "optimum" else "o-"
        axes.plot(memory, hits, style, label="clairvoyant optimum" if policy == "optimum" else policy)
    axes.axhline(100 * result.unbounded.token_hit_ratio, color="0.5", linestyle=":", label="infinite cache")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(name)
    axes.set_ylabel("prompt tokens found, %")
    axes.set_title(f"{result.trace}: {result.options.index} index, blocks of {result.block_size} tokens")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ForewordError(f"plot: {path}: {(error.strerror or 'cannot be written').lower()}") from None
