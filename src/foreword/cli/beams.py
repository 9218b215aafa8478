"""`foreword generate --beam-width`: the likeliest answers instead of a drawn one, best first."""

import time
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict

from foreword.cli.console import human_s, remark, write_json, write_text
from foreword.cli.interrupt import Interrupted, interruptible
from foreword.core.errors import ForewordError
from foreword.core.sampling_params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from foreword.llm import LLM, BeamSearchOutput

_PANEL = "Beam search"


class BeamOptions(Struct, frozen=True, kw_only=True):
    """Beam search: the fields of `BeamSearchParams`. Nothing is drawn, and nothing streamed."""

    beam_width: Annotated[
        int | None, typer.Option(help="Search for this many likeliest answers.", rich_help_panel=_PANEL)
    ] = None
    length_penalty: Annotated[
        float | None,
        typer.Option(
            help="Beams are ranked by logprob / length ** this: above 0 favours long ones. Default: 1.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    early_stopping: Annotated[
        bool, typer.Option("--early-stopping", help="End once so many beams have ended.", rich_help_panel=_PANEL)
    ] = False

    def params(self, sampling: SamplingParams) -> BeamSearchParams | None:
        """What to search for; None where an answer is to be drawn.

        Raises:
            ForewordError: a value is out of its range, or an option has no meaning beside or without `--beam-width`.
        """
        if self.beam_width is None:
            if self.length_penalty is not None or self.early_stopping:
                raise ForewordError("--length-penalty and --early-stopping: need --beam-width")
            return None
        assert sampling.max_tokens is not None
        plain = SamplingParams(temperature=0, max_tokens=sampling.max_tokens, ignore_eos=sampling.ignore_eos)
        if sampling != plain:
            raise ForewordError("--beam-width: of the sampling options only --max-tokens and --ignore-eos go with it")
        return BeamSearchParams(
            beam_width=self.beam_width,
            max_tokens=sampling.max_tokens,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
            ignore_eos=sampling.ignore_eos,
            early_stopping=self.early_stopping,
        )


def show_beams(
    llm: "LLM", prompt: object, params: BeamSearchParams, *, json: bool, quiet: bool, token_ids: bool
) -> None:
    """Search and print; JSON has the form of a drawn answer's, with the scores of each beam."""
    started = time.perf_counter()
    with interruptible() as flag:
        try:
            (output,) = llm.beam_search(prompt, params, progress=flag.check)
        except Interrupted:
            raise KeyboardInterrupt from None
    wall_s = time.perf_counter() - started
    if json:
        write_json(_as_json(llm, output, wall_s, token_ids=token_ids))
        return
    for index, beam in enumerate(output.sequences, start=1):
        head = f"[{index}/{len(output.sequences)}] score {beam.score:.4f} · logprob {beam.cumulative_logprob:.4f}"
        write_text(f"{head} · {len(beam.token_ids)} tokens · {beam.finish_reason}\n{beam.text.strip()}\n\n")
    if not quiet:
        usage = output.usage
        remark(
            f"{usage.prompt_tokens:,} prompt tokens · {usage.cached_tokens:,} from cache, "
            f"{usage.computed_tokens:,} computed · {usage.completion_tokens:,} new in {len(output.sequences)} beams · "
            f"{human_s(wall_s)}"
        )


def _as_json(llm: "LLM", output: "BeamSearchOutput", wall_s: float, *, token_ids: bool) -> dict[str, object]:
    beams: list[dict[str, object]] = []
    for index, beam in enumerate(output.sequences):
        entry = {"index": index, **asdict(beam)}
        if not token_ids:
            del entry["token_ids"]
        beams.append(entry)
    best = output.sequences[0]
    result: dict[str, object] = {
        "model": llm.summary.model,
        "text": best.text,
        "finish_reason": best.finish_reason,
        "outputs": beams,
        "usage": asdict(output.usage),
        "timings": {"load_s": llm.summary.load_s, "wall_s": wall_s},
        "engine": asdict(llm.summary),
    }
    if token_ids:
        result["prompt_token_ids"] = output.prompt_token_ids
    return result
