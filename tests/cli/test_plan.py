"""`foreword plan` from the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

SHAPE = ("--layers", "80", "--heads", "64", "--kv-heads", "8", "--head-dim", "128")
F16 = ("--kv-dtype", "f16")


def test_the_foundations_row_is_printed(run: Run) -> None:
    ran = run("plan", *SHAPE, *F16, "--context", "4096", "--memory", "64GiB", "--weights", "35GiB")

    assert (ran.code, ran.err) == (0, "")
    for words in (
        "80 layers, 64 heads, 8 of K and V, 128 wide: GQA",
        "327,680 bytes",
        "1.25 GiB",
        "6.25 GiB",
        "10.00 GiB",
    ):
        assert words in ran.out
    assert "28.9 GiB for K and V" in ran.out


def test_json_is_one_line_in_bytes(run: Run) -> None:
    ran = run("plan", *SHAPE, *F16, "--context", "4096", "--memory", "64GiB", "--json")

    assert len(ran.out.splitlines()) == 1
    rows = ran.json["requests"]
    assert isinstance(rows, list)
    (row,) = rows
    assert row["paged_bytes"] == 1.25 * 2**30
    assert row["with_q_bytes"] - row["exact_bytes"] == 5 * 2**30


def test_a_model_on_disk(run: Run, tiny: str, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths"
    lengths.write_text("\n".join(str(n) for n in range(100, 200)))

    ran = run("plan", tiny, "--memory", "200MiB", "--lengths", str(lengths), "--shared-prefix", "64", "--json")

    assert ran.json["kv_dtype"] == "int16"
    assert ran.json["bytes_per_token"] == 2 * 2 * 2 * (2 * 16 + 4)
    assert ran.json["weights_from"] == "as the file holds them"
    assert run("plan", tiny, "--concurrency", "1,2").code == 0


def test_a_configuration_alone(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "x", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8}))

    ran = run("plan", str(path), "--context", "10,20", "--memory", "1GiB")

    assert ran.code == 0
    assert "note: model_type 'x' is not known" in ran.out
    assert "weights are not known" in ran.out


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture(run: Run, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan{suffix}"

    ran = run("plan", *SHAPE, "--context", "4096", "--memory", "64GiB", "--plot", str(path))

    assert ran.code == 0
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "layers: expected a number, or a model to read it from"),
        (("--layers", "2", "--heads", "2"), "head_dim: expected a number"),
        ((*SHAPE,), "context: expected tokens of a request, which the model does not say"),
        ((*SHAPE, "--context", "x"), "context: expected numbers with commas between"),
        ((*SHAPE, "--context", "5", "--lengths", "no"), "context: expected either --context or --lengths"),
        ((*SHAPE, "--context", "5", "--memory", "lots"), "memory: expected a size"),
        ((*SHAPE, "--context", "5", "--plot", "x.bmp"), "plot: expected a file name that ends in"),
        ((*SHAPE, "--context", "5", "--plot", "/no/x.png"), "plot: no folder /no"),
        (
            (*SHAPE, "--context", "5", "--block-size", "15"),
            "block_size: expected an even number, since codes of int16 lie",
        ),
        (("nowhere.json",), "nowhere.json"),
        (("x.gguf", *SHAPE), "model: expected either a model or"),
    ],
)
def test_refusals_are_one_line(run: Run, argv: tuple[str, ...], message: str) -> None:
    ran = run("plan", *argv)

    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
