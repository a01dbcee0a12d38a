"""Commands that learn from images. Imports inside: help must be quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from puzlm.cli.options import (
    Address,
    Engine,
    Erode,
    GridOption,
    Images,
    Json,
    Limit,
    OutputFolder,
    Progress,
    Seed,
    answer,
    chosen_engine,
    teller,
)
from puzlm.errors import SettingsError


def fit_tokenizer(
    images: Images,
    output: OutputFolder,
    grid: GridOption = "3",
    erode: Erode = 0.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, e.g. vocab_size=512")
    ] = None,
    limit: Limit = None,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Learn the symbols (PCA + k-means) from images."""
    from puzlm.images import iter_images
    from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
    from puzlm.training.recipes import Recipe

    wanted = Recipe.from_overrides([f"tokenizer.{s}" for s in settings or []]).tokenizer
    tokenizer = PieceTokenizer(wanted).fit(
        iter_images(images, limit), grid=grid, gap=erode, seed=seed, device=device
    )
    tokenizer.save_pretrained(output)
    k = tokenizer.vocab_size
    record = {"folder": str(output), "symbols": k, "vocabulary": len(tokenizer)}
    answer(record, as_json, f"{k} symbols in {output}")


def tokenize(
    images: Images,
    tokenizer: Annotated[str, typer.Option(help="Folder of a tokenizer, or a model's name.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="TOKENS.npy to write.")],
    grid: GridOption = "3",
    erode: Erode = 0.0,
    limit: Limit = None,
    engine: Engine = "single",
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Turn images into a token file for training and analysis."""
    from puzlm.models import pretrained as checkpoints
    from puzlm.puzzle import parse_grid
    from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
    from puzlm.tokenizer.token_files import write_tokens

    reader = PieceTokenizer.from_pretrained(checkpoints.find(tokenizer))
    cells, parts = parse_grid(grid), None
    with Progress("tokenising") as tick, chosen_engine(engine, address) as ray:
        if ray is not None:
            parts = ray.tokenize(images, reader, cells, erode, limit, address)
        count = write_tokens(
            images, reader, output, grid=cells, gap=erode, limit=limit, parts=parts, report=tick
        )
    answer({"file": str(output), "puzzles": count}, as_json, f"{count} puzzles in {output}")


def fit_sides(
    sources: Annotated[
        list[Path], typer.Argument(help="A TOML recipe, or token files of `puzlm tokenize`.")
    ],
    output: OutputFolder,
    tokenizer: Annotated[
        str | None, typer.Option(help="Its folder, or a model's name; default as in the recipe.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, e.g. sides.steps=500")
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn which side follows which: the side model, for any grid."""
    from dataclasses import replace

    from puzlm.training.recipes import Recipe
    from puzlm.training.train_sides import fit_sides as run

    is_recipe = sources[0].suffix == ".toml"
    if is_recipe and len(sources) > 1:
        raise SettingsError("fit-sides: give one recipe, or token files")
    plan = Recipe.load(sources[0], settings) if is_recipe else Recipe.from_overrides(settings or [])
    plan = replace(plan, tokenizer_path=tokenizer or plan.tokenizer_path)
    with Progress("fitting", plan.sides.steps, quiet=as_json) as tick:
        done = run(plan, output, () if is_recipe else sources, report=tick)
    answer(done, as_json, f"side model in {output}")


def train(
    recipe: Annotated[Path, typer.Argument(help="A TOML recipe.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run.")] = Path(
        "runs/model"
    ),
    settings: Annotated[list[str] | None, typer.Option("--set", help="section.key=value")] = None,
    stop_after: Annotated[
        float | None, typer.Option(help="Save and stop after so many seconds.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model; an interrupted run in the same folder goes on where it was."""
    from puzlm.training import recipes as recipes

    kind = recipes.kind_of(recipe)
    if kind == "language":
        from puzlm.training.train_reader import train as run

        plan: Any = recipes.Recipe.load(recipe, settings)
    elif kind == "reader":
        from puzlm.training.train_grids import ReaderRecipe
        from puzlm.training.train_grids import train as run  # type: ignore[assignment]

        plan = ReaderRecipe.load(recipe, settings)
    else:
        from puzlm.training.train_vision import VisionRecipe
        from puzlm.training.train_vision import train as run  # type: ignore[assignment]

        plan = VisionRecipe.load(recipe, settings)
    with Progress("training", plan.train.steps, quiet=as_json) as tick:
        done = run(plan, output, stop_after=stop_after or float("inf"), report=tick)
    text = f"model in {output}" if done["done"] else f"stopped at step {done['step']}; run again"
    answer(done, as_json, text)


def ablate(
    plan: Annotated[Path, typer.Argument(help="A TOML plan, e.g. plans/study.toml.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of rows.jsonl and kept models.")
    ] = Path("runs/ablate"),
    data: Annotated[Path, typer.Option(help="Folder the plan's image files lie in.")] = Path("."),
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Name or group of rows; * matches; may be repeated."),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Training time of a row.")] = None,
    stop_after: Annotated[
        float | None, typer.Option(help="Begin no row that might not end within so many seconds.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Json = False,
) -> None:
    """Train and examine the rows of a plan, each for the same time; done rows are skipped."""
    from puzlm.study.ablate import run_plan, tell_failed

    rows = run_plan(
        plan,
        output,
        data=data,
        only=only or [],
        seconds=seconds,
        stop_after=float("inf") if stop_after is None else stop_after,
        device=device,
        report=teller(as_json),
    )
    answer(rows, as_json)
    raise typer.Exit(tell_failed(rows))
