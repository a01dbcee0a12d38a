"""Train the side model of models/side_model.py: each true neighbour told from all other sides."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from puzlm.devices import pick_device
from puzlm.errors import ModelError, SettingsError
from puzlm.files import write_bytes
from puzlm.images import cores
from puzlm.models import pretrained as checkpoints
from puzlm.models.side_model import SideModel, SideSettings
from puzlm.puzzle import Grid, parse_grid
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, side_symbols
from puzlm.tokenizer.token_files import TokenFiles
from puzlm.training.corpus import Album, Bounds, CutSettings, cut_batch, draw_batch
from puzlm.training.recipes import Recipe
from puzlm.training.run_files import TrainingError
from puzlm.training.train_reader import fit_tokenizer


def fit(
    tokenizer: PieceTokenizer,
    batch: Callable[[int], Tensor],
    grid: Grid,
    *,
    steps: int,
    lr: float = 1e-3,
    warmup: int = 100,
    weight_decay: float = 0.01,
    seed: int = 0,
    device: str = "cpu",
    compiled: bool = False,
    log_every: int = 50,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
    **shape: int,
) -> SideModel:
    """Train a side model. `batch(step)` gives symbols (n, cells, b, F) in raster order."""
    s = tokenizer.settings
    torch.manual_seed(seed)
    model = SideModel(SideSettings(s.granularity, len(s.whole), max(s.sizes), **shape))
    model.start_from_centroids(tokenizer)
    model.to(device)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=lr, weight_decay=weight_decay, fused="cuda" in device
    )
    pairs = [
        tuple(t.to(device) if isinstance(t, Tensor) else t for t in pair)
        for pair in touching_pairs(grid)
    ]

    def loss_of(sides: Tensor) -> tuple[Tensor, Tensor]:
        n = len(sides)
        vectors = model(sides.flatten(0, 1)).unflatten(0, (n, -1))
        loss = right = torch.zeros((), device=device)
        for first, second, out, into in pairs:
            a = vectors[:, first, out].flatten(0, 1)
            b = vectors[:, second, into].flatten(0, 1)
            logits = a @ b.T * model.sharpness.exp()
            answer = torch.arange(len(a), device=device)
            loss = loss + 0.5 / len(pairs) * (
                F.cross_entropy(logits, answer) + F.cross_entropy(logits.T, answer)
            )
            right = right + (logits.argmax(1) == answer).float().mean() / len(pairs)
        return loss, right

    run: Any = torch.compile(loss_of) if compiled else loss_of
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = (
                lr * min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
            )
        with torch.no_grad():
            sides = side_symbols(batch(step), tokenizer.settings)
        loss, right = run(sides)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if (step + 1) % log_every == 0 or step + 1 == steps:
            if not math.isfinite(loss.item()):
                raise TrainingError(
                    f"the loss is {loss.item()} at step {step + 1}: training "
                    f"diverged; lower sides.lr (now {lr})"
                )
            report({"step": step + 1, "loss": round(loss.item(), 4), "first_rank": right.item()})
    return model.eval()


def touching_pairs(grid: Grid) -> list[tuple[Tensor, Tensor, int, int]]:
    """Cells that touch, and the sides they touch with: right to left, bottom to top."""
    cells = torch.arange(grid[0] * grid[1]).view(*grid)
    pairs = [
        (cells[:, :-1].reshape(-1), cells[:, 1:].reshape(-1), 1, 3),
        (cells[:-1].reshape(-1), cells[1:].reshape(-1), 2, 0),
    ]
    pairs = [pair for pair in pairs if len(pair[0])]  # a single row has nothing below it
    if not pairs:
        raise SettingsError(f"grid {grid[0]}x{grid[1]}: has no pieces that touch")
    return pairs


# ---- where batches come from ----------------------------------------------------------------


def batches_of(tokens: Any, size: int, seed: int = 0, device: str = "cpu") -> Any:
    """Draw batches from a token array (puzzles, cells, b, F), a memory map or several of them."""

    def batch(step: int) -> Tensor:
        rows = np.random.default_rng((seed, step)).integers(0, len(tokens), size)
        return torch.from_numpy(np.asarray(tokens[np.sort(rows)]).astype(np.int64)).to(device)

    return batch


def cuts_of(
    album: Album,
    tokenizer: PieceTokenizer,
    cut: CutSettings,
    size: int,
    seed: int = 0,
    compiled: bool = False,
) -> Callable[[int], Tensor]:
    """Draw batches from images on the device, cut and tokenised there at every step."""
    device, sizes = album.pixels.device, album.sizes.cpu().numpy()
    there, side = tokenizer.on(device), tokenizer.settings.side

    def read(*parts: Tensor) -> Tensor:
        pieces = cut_batch(album, *parts, side=side)
        symbols: Tensor = there.encode_canonical(pieces.view(-1, side, side, 3))
        return symbols.view(size, -1, *symbols.shape[1:])

    run: Any = torch.compile(read) if compiled else read

    def batch(step: int) -> Tensor:
        # 7: other puzzles than those the language model sees with the same seed.
        draw = draw_batch(sizes, size, cut, (seed + 7, step))
        parts = [
            torch.from_numpy(np.ascontiguousarray(a)).to(device, non_blocking=True)
            for a in list(vars(draw).values())[:-1]
        ]
        symbols: Tensor = run(*parts)
        return symbols

    return batch


def fit_sides(
    recipe: Recipe,
    folder: str | Path,
    tokens: Sequence[str | Path] = (),
    *,
    album: Album | None = None,
    report: Callable[[dict[str, Any]], None] = lambda line: None,
) -> dict[str, Any]:
    """Fit a recipe's side model on its images, or on token files, and write it to `folder`.

    Beside it go its settings, a log with a line every few steps, and the tokenizer: the recipe's,
    or the one that `folder` already has, or one fitted on the images.
    """
    began, folder, s = time.monotonic(), Path(folder), recipe.sides
    device = pick_device(s.device, "sides.device")
    if not tokens and recipe.data.tokens:
        tokens = [recipe.data.tokens]
    if not tokens and album is None and not recipe.data.train:
        raise SettingsError("fit-sides: the recipe names no images; set data.train")
    tokenizer = _tokenizer(recipe, folder)
    settings = recipe.tokenizer if tokenizer is None else tokenizer.settings
    bounds = Bounds.of([recipe.cut.grid], settings.side)
    if album is not None:
        album = album.within(bounds)
    elif not tokens:
        limit, threads = recipe.data.limit or None, cores()
        recipe.data.check("train")
        album = Album.read(recipe.data.train, device, limit, threads, bounds)
    if tokenizer is None:
        if album is None:
            raise SettingsError(
                "fit-sides: token files need the tokenizer that made them; give --tokenizer"
            )
        tokenizer = fit_tokenizer(recipe, album, device)
    side_symbols(
        np.zeros((1, tokenizer.settings.border_length, 1)), tokenizer.settings
    )  # or it cannot be
    grid, batch = parse_grid(recipe.cut.grid), None
    if tokens:
        shelf = TokenFiles(tokens, tokenizer)
        grid, batch = shelf.grid, batches_of(shelf, s.batch, s.seed, device)
    else:
        assert album is not None
        batch = cuts_of(album, tokenizer, recipe.cut, s.batch, s.seed, "cuda" in device)
    touching_pairs(grid)
    tokenizer.save_pretrained(folder)
    about = {**recipe.as_dict(), "tokens": [str(path) for path in tokens]}
    write_bytes(folder / "sides.settings.json", (json.dumps(about, indent=1) + "\n").encode())
    last: dict[str, Any] = {}
    with (folder / "sides.metrics.jsonl").open("w") as log:

        def note(line: dict[str, Any]) -> None:
            now = time.monotonic() - began
            steps, seconds = line["step"] - last.get("step", 0), now - last.get("seconds", 0.0)
            line |= {"puzzles_per_second": round(steps * s.batch / seconds, 1)}
            line |= {"seconds": round(now, 2)}
            last.update(line)
            log.write(json.dumps(line) + "\n")
            log.flush()
            report(line)

        model = fit(
            tokenizer,
            batch,
            grid,
            steps=s.steps,
            lr=s.lr,
            warmup=s.warmup,
            seed=s.seed,
            weight_decay=s.weight_decay,
            device=device,
            compiled="cuda" in device,
            log_every=s.log_every,
            report=note,
            embedding=s.embedding,
            hidden=s.hidden,
            vector=s.vector,
        )
    model.save_pretrained(folder)
    return {"folder": str(folder), "grid": list(grid), **last}


def _tokenizer(recipe: Recipe, folder: Path) -> PieceTokenizer | None:
    """The recipe's tokenizer, or the folder's; None if there is none yet."""
    beside = (folder / "tokenizer.json").is_file()
    if not recipe.tokenizer_path:
        return PieceTokenizer.from_pretrained(folder) if beside else None
    tokenizer = PieceTokenizer.from_pretrained(checkpoints.find(recipe.tokenizer_path))
    if beside:
        own = PieceTokenizer.from_pretrained(folder)
        books = zip(own.codebooks_, tokenizer.codebooks_, strict=False)
        if own.settings.patch != tokenizer.settings.patch or not all(
            np.array_equal(a.centroids, b.centroids) for a, b in books
        ):
            raise ModelError(
                f"{folder}: already has another tokenizer than "
                f"{recipe.tokenizer_path}; choose another folder"
            )
        return own
    return tokenizer
