import inspect
from typing import Annotated

import pytest
import typer
from msgspec import Struct

from foreword.cli.options import KVDtype, ModelOptions, SamplingOptions, grouped, parse_bytes
from foreword.cli.plan import Wanted
from foreword.core.config import CacheConfig
from foreword.core.errors import InvalidRequestError
from foreword.llm import EngineOptions
from foreword.plan.lengths import Lengths
from foreword.plan.plan import PlanOptions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GiB", 2 * 2**30),
        ("512MiB", 512 * 2**20),
        ("1.5g", 3 * 2**29),
        ("64 K", 2**16),
        ("100B", 100),
        ("4096", 4096),
        ("2gb", 2**31),
    ],
)
def test_sizes_are_powers_of_1024_whatever_the_spelling(text: str, expected: int) -> None:
    assert parse_bytes("kv_memory", text) == expected


@pytest.mark.parametrize("text", ["", "lots", "-1GiB", "0", "1e3", "GiB", "nan", "inf", "9999999999T", "1 2"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="kv_memory: expected a size such as 2GiB"):
        parse_bytes("kv_memory", text)


class _Group(Struct, frozen=True, kw_only=True):
    size: Annotated[int, typer.Option(help="How large.")] = 3


def test_a_command_that_takes_a_group_has_one_option_a_field() -> None:
    seen = []

    @grouped
    def command(name: str = "x", *, group: _Group) -> None:
        seen.append((name, group))

    command(name="y", size=5)

    assert list(inspect.signature(command).parameters) == ["name", "size"]
    assert seen == [("y", _Group(size=5))]


def test_every_engine_option_reaches_the_engine() -> None:
    chosen = ModelOptions(threads=3, kv_memory="1MiB", block_size=32, max_num_seqs=7, token_budget=99, debug=True)

    options = chosen.engine_options()

    assert (options.threads, options.kv_memory_bytes, options.block_size) == (3, 2**20, 32)
    assert (options.max_num_seqs, options.token_budget, options.debug) == (7, 99, True)


def test_what_is_not_chosen_is_what_python_takes() -> None:
    assert ModelOptions().engine_options() == EngineOptions()


def test_k_and_v_are_stored_alike_wherever_nothing_is_chosen() -> None:
    planned = PlanOptions(memory_bytes=1, lengths=Lengths.of([1]))

    defaults = {EngineOptions().kv_dtype, CacheConfig(num_blocks=1).kv_dtype, planned.kv_dtype, Wanted().kv_dtype.value}

    assert defaults == {"int16"}


@pytest.mark.parametrize("kv_dtype", KVDtype)
@pytest.mark.parametrize("block_size", [1, 15, 24, 256])
def test_a_block_the_engine_does_not_have_is_refused_alike_for_every_dtype(block_size: int, kv_dtype: KVDtype) -> None:
    with pytest.raises(InvalidRequestError, match=f"^block_size: expected 8, 16, 32, 64 or 128, got {block_size}$"):
        CacheConfig(num_blocks=1, block_size=block_size, kv_dtype=kv_dtype.value)


def test_logit_bias_is_read_from_pairs() -> None:
    assert SamplingOptions(logit_bias=["5=-2.5", "7=1"]).params().logit_bias == {5: -2.5, 7: 1.0}


@pytest.mark.parametrize("entry", ["5", "=1", "a=1", "5=b", ""])
def test_a_malformed_logit_bias_is_refused(entry: str) -> None:
    with pytest.raises(InvalidRequestError, match="logit_bias: expected TOKEN_ID=VALUE"):
        SamplingOptions(logit_bias=[entry]).params()
