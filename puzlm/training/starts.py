"""A model for training, and what it starts from: centroids, or the weights of another model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from puzlm.models import pretrained as checkpoints
from puzlm.models.backbones import ModelSettings, Seq2Seq
from puzlm.tokenizer.codebooks import dimensions_of
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, is_part, is_residual, read_safetensors
from puzlm.training.fast.bart import POSITION_OFFSET
from puzlm.training.recipes import Recipe

CAREFUL = 0.25  # of what the map says of parts: strips overlap, and all of it at once does harm
RIDGE = 1e-3  # of the linear map from looks to embeddings, as a share of each dimension's spread


def build_model(recipe: Recipe, tokenizer: PieceTokenizer) -> Seq2Seq:
    """Build the recipe's backbone for a tokenizer's vocabulary, and start its embeddings."""
    torch.manual_seed(recipe.train.seed)
    model = Seq2Seq(ModelSettings.of_recipe(recipe.model, tokenizer))
    if recipe.train.centroid_start:
        start_from_centroids(model, tokenizer, recipe.train.seed)
    if recipe.train.start:
        start = checkpoints.find(recipe.train.start)
        arrays = read_safetensors(start / "model.safetensors")
        old = PieceTokenizer.from_pretrained(start)
        arrays = own_decoder(grown(arrays, model, old, tokenizer), model)
        model.load(arrays, recipe.train.start)
    return model


def own_decoder(arrays: dict[str, Any], model: Seq2Seq) -> dict[str, Any]:
    """The same weights, but for the layers of a decoder of another shape: those begin anew.

    A decoder learns within some hundred steps to read off what an encoder knows.
    """
    mark = "decoder.layers."
    own = {name: value for name, value in model.tensors().items() if mark in name}
    old = {name: value for name, value in arrays.items() if mark in name}
    if {n: v.shape for n, v in own.items()} == {n: v.shape for n, v in old.items()}:
        return arrays
    fresh = {name: value.float().cpu().numpy() for name, value in own.items()}
    return {name: value for name, value in arrays.items() if name not in old} | fresh


def grown(
    arrays: dict[str, Any], model: Seq2Seq, old: PieceTokenizer, new: PieceTokenizer
) -> dict[str, Any]:
    """Weights of a model for a smaller grid, or fewer symbols, fitted to one for more.

    Symbols keep their embeddings, and slots their positions; new slots stay as they were started,
    new symbols begin with what the old ones tell (_more_symbols). A cell begins as the blend of the
    old cells at its place in the picture, so that corners begin as corners.
    """
    few, many = old.settings.max_cells, new.settings.max_cells
    same = new.settings.sizes[: len(old.settings.sizes)] == old.settings.sizes
    if not same or (few == many and old.settings.sizes == new.settings.sizes):
        return arrays  # the same size, or other symbols: then load() says what does not fit
    own, result = model.tensors(), dict(arrays)
    for name, value in arrays.items():
        fresh = own[name].detach().float().cpu().numpy() if name in own else value
        if fresh.shape == value.shape:
            continue
        result[name] = fresh.copy()
        if len(value) == len(old) and len(fresh) == len(new):  # rows are tokens
            first, cells = old.mask_token_id, new.cell_token_id(0)
            result[name][:first] = value[:first]
            _more_symbols(result[name], old, new)
            result[name][new.mask_token_id] = value[first]
            a, b = math.isqrt(few), math.isqrt(many)
            if few == many:
                result[name][cells:] = value[first + 1 :]
            elif a * a == few and b * b == many:
                blend = np.array(
                    [
                        [max(0.0, 1 - abs(i * (a - 1) / (b - 1) - j)) for j in range(a)]
                        for i in range(b)
                    ]
                )
                old_cells = value[first + 1 :].astype(np.float64)
                result[name][cells:] = np.kron(blend, blend) @ old_cells
        else:  # rows are positions
            result[name][: len(value)] = value
            if "encoder." in name and old.settings.separator:
                _more_slots(result[name], len(value), old.settings.border_length + 1)
    return result


def _more_symbols(table: NDArray[Any], old: PieceTokenizer, new: PieceTokenizer) -> None:
    """Fill the rows of symbols for what is left over that the old tokenizer had not.

    What is left over of a patch lives in the space of the centroid that left it: a linear map from
    the old centroids to their embeddings says where a further step in that space leads.
    """
    s, known = new.settings, len(old.settings.terms)
    steps = {
        s.terms[base]: _step(old, base, table[s.firsts[base] :])
        for base in range(known)
        if not is_residual(s.terms[base]) and not is_part(s.terms[base])
    }

    def fill(number: int, step: NDArray[Any]) -> None:
        further = new.codebooks_[number].vectors()
        table[s.firsts[number] : s.firsts[number] + len(further)] = further @ step

    base = ""
    for number, term in enumerate(s.whole):
        base = base if is_residual(term) else term
        if number >= known and is_residual(term) and base in steps:
            fill(number, steps[base])
    number = len(s.whole)
    for split in s.splits:
        step = steps.get(f"strip:{split.depth}")
        for place, where in enumerate(dimensions_of(s, split)):
            if number + place >= known and step is not None:
                fill(number + place, CAREFUL * step[where])
        number += split.count


def _step(old: PieceTokenizer, number: int, table: NDArray[Any]) -> NDArray[np.float64]:
    """Linear map (d, d_model) from the looks of a codebook to its rows of the table."""
    looks = np.asarray(old.codebooks_[number].centroids, np.float64)
    looks = looks - looks.mean(0)
    rows = table[: len(looks)].astype(np.float64)
    penalty = np.diag((looks**2).mean(0)) * len(looks) * RIDGE
    found: NDArray[np.float64] = np.linalg.solve(
        looks.T @ looks + penalty, looks.T @ (rows - rows.mean(0))
    )
    return found


def _more_slots(table: NDArray[Any], known: int, word: int) -> None:
    """Fill BART's position table beyond its first `known` rows: new slots, the same places."""
    whole = (known - POSITION_OFFSET) // word
    old = table[POSITION_OFFSET:][: whole * word].reshape(whole, word, -1)
    inside, slots = old.mean(0), old.mean(1)
    rng = np.random.default_rng(0)
    for place in range(known, len(table)):
        slot, where = divmod(place - POSITION_OFFSET, word)
        if where == 0 or place == known:
            deviation = rng.standard_normal(table.shape[1]) * (slots - slots.mean(0)).std()
        table[place] = inside[where] + deviation


@torch.no_grad()
def start_from_centroids(model: Seq2Seq, tokenizer: PieceTokenizer, seed: int) -> None:
    """Let similar symbols start with similar embeddings, and places in a piece with the same.

    The input stays symbols: only the start of training knows what they look like.
    """
    rng = np.random.default_rng(seed)
    scale = float(model.embedding.std())
    for number, book in enumerate(tokenizer.codebooks_):
        c = book.half_whitened()
        turn = rng.standard_normal((c.shape[1], model.embedding.shape[1])) / math.sqrt(c.shape[1])
        start = c @ turn
        first, term = tokenizer.settings.firsts[number], tokenizer.settings.terms[number]
        # A part counts as its dimensions do: all parts of a split together as one symbol.
        share = 1 / math.sqrt(int(term.split("/")[1].split(":")[0])) if is_part(term) else 1.0
        rows = torch.from_numpy(start / start.std() * scale * share).to(model.embedding)
        model.embedding[first : first + len(rows)] = rows
    if model.settings.backbone == "bart":
        table = model.net.model.encoder.embed_positions.weight
        b = tokenizer.settings.border_length + tokenizer.settings.separator
        place = torch.arange(len(table) - 2)
        slot = torch.randn(int(place.max()) // b + 1, table.shape[1]) * scale
        inside = torch.randn(b, table.shape[1]) * scale
        table[2:] = slot[place // b] + inside[place % b]
