"""Commands for puzzles and models at hand. Imports inside: help must be quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from puzlm.cli.options import (
    Erode,
    GridOption,
    Json,
    Model,
    OutputFolder,
    OwnSolver,
    Progress,
    Seed,
    answer,
    check_solver,
)
from puzlm.errors import PuzzleError, SettingsError


def make(
    image: Annotated[Path, typer.Argument(help="The picture to cut.")],
    output: OutputFolder,
    grid: GridOption = "3",
    erode: Erode = 0.0,
    jitter: Annotated[
        bool, typer.Option(help="Eroded pieces lie off centre in their cells.")
    ] = False,
    missing: Annotated[int, typer.Option(help="Pieces to leave out.")] = 0,
    table: Annotated[
        bool, typer.Option(help="Write a photo of the pieces on a table instead, drawn by camera.")
    ] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Cut a picture into shuffled piece files, with the truth in puzzle.json."""
    from puzlm.images import read_image
    from puzlm.puzzle import Puzzle

    if table:
        from puzlm.harness.tables import write_photo

        answer(write_photo(read_image(image), grid, seed, output), as_json, f"photo: {output}")
        return
    puzzle = Puzzle.from_image(
        read_image(image), grid, gap=erode, jitter=jitter, missing=missing, seed=seed
    )
    puzzle.save(output)
    height, width = puzzle.pieces.shape[1:3]
    truth = puzzle.truth.tolist() if puzzle.truth is not None else None
    record = {
        "folder": str(output),
        "grid": list(puzzle.grid),
        "pieces": len(puzzle.pieces),
        "piece_size": [height, width],
        "truth": truth,
    }
    answer(record, as_json, f"{len(puzzle.pieces)} pieces of {width} x {height} pixels in {output}")


def pieces(
    photos: Annotated[
        list[Path], typer.Argument(help="Photos or scans of loose pieces on a table, of one pile.")
    ],
    output: OutputFolder,
    as_json: Json = False,
) -> None:
    """Find, straighten and number the loose pieces in photos of a table."""
    from puzlm.pieces import photos as files

    table = files.read_table(photos)
    files.write_pieces(table, output)
    lines = [*files.told(table), f"pieces in {output}, their numbers in {output / 'photos'}"]
    answer({"folder": str(output), **files.record(table)}, as_json, "\n".join(lines))


def solve(
    puzzles: Annotated[
        list[Path],
        typer.Argument(
            help="A folder of pieces or a shuffled picture; many of them; a folder of "
            "such folders; a pattern in quotes."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Picture to write (solved.png); of many puzzles, "
            "the folder for their pictures (solved).",
        ),
    ] = None,
    grid: Annotated[str | None, typer.Option(help="Rows x columns: 3 or 3x4.")] = None,
    model: Model = None,
    solver: OwnSolver = "auto",
    decode: Annotated[
        str | None, typer.Option(help="Use the seq2seq alone: valid, greedy, beam or assign.")
    ] = None,
    given: Annotated[list[str] | None, typer.Option(help="Fix a piece: PIECE=CELL.")] = None,
    incomplete: Annotated[
        bool,
        typer.Option(help="Pieces may be missing or too many: no longer needed.", hidden=True),
    ] = False,
    strict: Annotated[
        bool, typer.Option(help="Exit with 1 if an answer is probably not all right.")
    ] = False,
    several: Annotated[
        str | None,
        typer.Option("--puzzles", help="Several puzzles in one pile: how many, or auto."),
    ] = None,
    rotations: Annotated[
        bool, typer.Option(help="Pieces may be turned; a model says which way up.")
    ] = False,
    mirrored: Annotated[bool, typer.Option(help="Pieces may be flipped.")] = False,
    reference: Annotated[
        Path | None, typer.Option(help="A picture of the whole: box lid, print, original file.")
    ] = None,
    kind: Annotated[
        str, typer.Option(help="picture, page (strips of shredded pages), or auto: see for itself.")
    ] = "auto",
    pages: Annotated[
        int, typer.Option(min=0, help="Pages that strips are of; 0: judged by their widths.")
    ] = 0,
    gif: Annotated[
        Path | None, typer.Option(help="Also write an animation; of many, a folder of them.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--time", min=0, help="The best arrangement after so many seconds."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the picture.")] = False,
    as_json: Json = False,
) -> None:
    """Put the pieces together and write the picture."""
    from puzlm.cli import documents, piles
    from puzlm.cli import solve as solving
    from puzlm.pieces import photos
    from puzlm.solver import Solver

    if reference is None and len(puzzles) == 1 and documents.is_heap(puzzles[0], kind, grid):
        output = output or Path("solved.png")
        told = documents.solve(puzzles[0], output, pages)
        if show:
            typer.launch(told["images"][0])
        answer(told, as_json)
        if not as_json:
            documents.show(told)
        return
    check_solver(solver, model, decode, rotations or mirrored)
    fixed = _given(given) if given else None
    if (table := photos.table_of(puzzles, grid)) is not None:
        rotations = rotations or table.turned
        path: Path | list[Path] = puzzles[0]
    else:
        path = solving.find(puzzles)
    chosen = "seq2seq" if decode and not (rotations or mirrored) else "auto"
    chosen = chosen if solver == "auto" else solver

    def engine() -> Solver:
        return Solver.from_pretrained(
            model,
            solver=chosen,
            decoding=decode or "valid",
            rotations=rotations,
            mirrored=mirrored,
        )

    if reference is not None and (several is not None or isinstance(path, list)):
        raise SettingsError("--reference: is a picture of one puzzle, not of many")
    if several is not None:
        if isinstance(path, list) or fixed or gif or grid:
            raise SettingsError("--puzzles: takes one pile, and no --given, --gif or --grid")
        pile = photos.as_puzzle(table, None) if table else solving.load(path, None, chosen)
        folder = output or Path("solved")
        solved = piles.solve_pile(engine(), path, pile, several, folder)
        records = [one.as_dict() for one in solved]
        answer(records, as_json)
        if not as_json:
            solving.show_many(records, folder)
            print(piles.told(solved, records))
        raise typer.Exit(int(strict and any(map(solving.doubtful, records))))
    if isinstance(path, list):
        if fixed:
            raise SettingsError("--given: fixes pieces of one puzzle, not of many")
        folder, found = output or Path("solved"), []
        with Progress("solving", len(path), quiet=as_json) as tick:
            for one in solving.solve_many(engine(), path, folder, grid=grid, gifs=gif, tick=tick):
                found.append(one.as_dict())
                if one.error:
                    solving.complain(one)
        if show:
            typer.launch(str(folder))
        answer(found, as_json)
        if not as_json:
            solving.show_many(found, folder)
        if any("error" in record for record in found):
            raise typer.Exit(2)
        raise typer.Exit(int(strict and any(map(solving.doubtful, found))))
    loaded = photos.as_puzzle(table, grid) if table else solving.load(path, grid, chosen)
    output = output or Path("solved.png")
    loaded.settings["kind"] = kind
    solving.check_output(path, loaded, output, gif)
    with solving.followed(engine(), loaded, seconds, quiet=as_json) as following:
        solution = following.solve(loaded, given=fixed, reference=reference)
    loaded = solving.laid_out(loaded, solution)
    solving.write(loaded, solution, output, gif)
    if table is not None:
        photos.write_guide(table, solution, output)
    if show:
        typer.launch(str(output))
    more = photos.answer(table, output) if table is not None else {}
    answer({**solving.record(solution, loaded, output), **more}, as_json)
    if not as_json:
        for line in photos.told(table) if table is not None else ():
            print(line)
        solving.show(solution, loaded, output)
        if table is not None:
            print(f"which piece goes where: {photos.guide_path(output)}")
    raise typer.Exit(int(strict and solving.doubtful(solution.as_dict())))


def export(
    model: Annotated[str, typer.Argument(help="A model in the box or a folder.")],
    output: OutputFolder,
    dtype: Annotated[
        str | None, typer.Option(help="float16, float32 or int8; default as stored.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a model as ONNX: it then solves without torch."""
    from puzlm.models import pretrained as checkpoints
    from puzlm.models.onnx_reader import export as run

    folder = run(checkpoints.find(model), output, dtype)
    answer({"folder": str(folder)}, as_json, f"ONNX graphs in {folder}")


def web(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any that is free.")] = 8000,
    model: Model = None,
    host_name: Annotated[
        list[str] | None, typer.Option(help="A name it answers to, beside plain addresses.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="PUZLM_TOKEN", help="A secret that every request must bring."),
    ] = None,
    proxy: Annotated[
        list[str] | None, typer.Option(help="Address of a proxy whose X-Forwarded-For is true.")
    ] = None,
    access_log: Annotated[
        str | None, typer.Option(help="File for a line of JSON a request; -: standard output.")
    ] = None,
) -> None:
    """Serve the page to cut, solve and mend puzzles; open its address in a browser."""
    from puzlm.web.serve import serve

    serve(
        host,
        port,
        model,
        names=host_name or (),
        token=token,
        proxies=proxy or (),
        access_log=access_log,
        ready=lambda a: print(f"{a}  (Ctrl-C ends it)", flush=True),
    )


def models(as_json: Json = False) -> None:
    """List the models in the box."""
    from puzlm.models import pretrained as checkpoints

    cards = [
        {"name": name, **checkpoints.card(checkpoints.BOX / name)} for name in checkpoints.names()
    ]
    lines = []
    for card in cards:
        lines.append(f"{card['name']}  {card.get('summary', '')}")
    answer(cards, as_json, "\n".join(lines))


def _given(pairs: list[str]) -> dict[int, int]:
    """Read --given piece=cell options."""
    fixed: dict[int, int] = {}
    for pair in pairs:
        piece, equals, cell = pair.partition("=")
        if not (equals and piece.strip().isdigit() and cell.strip().isdigit()):
            raise PuzzleError(f"--given {pair}: write PIECE=CELL, for example 0=4")
        if fixed.setdefault(int(piece), int(cell)) != int(cell):
            raise PuzzleError(f"--given {pair}: piece {int(piece)} is given another cell, too")
    return fixed
