"""`foreword rerank`: which passages of a file answer a query best."""

from typing import Annotated

import typer
from msgspec import Struct

from foreword.cli.console import err_console, remark, write_json, write_text
from foreword.cli.options import JsonFlag, ModelOptions, QuietFlag, grouped
from foreword.cli.session import open_model
from foreword.cli.text_input import read_text
from foreword.core.errors import ForewordError


class RerankOptions(Struct, frozen=True, kw_only=True):
    """How passages are judged and shown."""

    top_n: Annotated[int | None, typer.Option(help="Show so many. Default: all.")] = None
    instruction: Annotated[str | None, typer.Option(help="What to look for. Default: passages that answer.")] = None
    json: JsonFlag = False
    quiet: QuietFlag = False


@grouped
def rerank(
    query: Annotated[str, typer.Argument(help="What the passages should answer.", show_default=False)],
    file: Annotated[str, typer.Argument(help="One passage a line; - is stdin.", show_default=False)],
    *,
    shown: RerankOptions,
    model: ModelOptions,
) -> None:
    """Rank the passages of a file by how well they answer a query, best first, each with its score from 0 to 1."""
    passages = [line.strip() for line in read_text(file).splitlines() if line.strip()]
    if not passages:
        raise ForewordError(f"{file}: expected a passage on each line, got none")
    quiet = shown.quiet or shown.json
    llm = open_model(model, quiet=quiet)
    from foreword.text.rerank_prompt import RerankSettings

    settings = RerankSettings(instruction=shown.instruction)
    if quiet:
        output = llm.rerank(query, passages, settings, top_n=shown.top_n)
    else:
        with err_console().status(f"Ranking {len(passages)} passages …") as status:

            def tell(*, finished: int, total: int, generated_tokens: int) -> None:
                status.update(f"Ranking passage {finished} of {total} …")

            output = llm.rerank(query, passages, settings, top_n=shown.top_n, progress=tell)
    usage = output.usage
    if shown.json:
        results = [{"index": r.index, "relevance_score": r.relevance_score} for r in output.results]
        counts = {"prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cached_tokens}
        write_json({"results": results, "usage": counts, "cut_documents": output.cut_documents})
        return
    for result in output.results:
        write_text(f"{result.relevance_score:.4f}  {passages[result.index]}\n")
    if not quiet:
        remark(f"{usage.prompt_tokens:,} prompt tokens, {usage.cached_tokens:,} of them read once for several passages")
