"""A model for training, and what it starts from: centroids, or the weights of another model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from puzlm import checkpoints
from puzlm.backbones import ModelSettings, Seq2Seq
from puzlm.fast import POSITION_OFFSET
from puzlm.settings import Recipe
from puzlm.tokenizer import PieceTokenizer, read_safetensors


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
        model.load(grown(arrays, model, old, tokenizer), recipe.train.start)
    return model


def grown(
    arrays: dict[str, Any], model: Seq2Seq, old: PieceTokenizer, new: PieceTokenizer
) -> dict[str, Any]:
    """Weights of a model for a smaller grid, fitted to one for a larger grid.

    Symbols keep their embeddings, and slots their positions; the new ones stay as they were
    started. A cell begins as the blend of the old cells at its place in the picture, so that
    corners begin as corners.
    """
    few, many = old.settings.max_cells, new.settings.max_cells
    if few == many or old.mask_token_id != new.mask_token_id:
        return arrays  # the same size, or other symbols: then load() says what does not fit
    own, result = model.tensors(), dict(arrays)
    for name, value in arrays.items():
        fresh = own[name].detach().float().cpu().numpy() if name in own else value
        if fresh.shape == value.shape:
            continue
        result[name] = fresh.copy()
        if len(value) == len(old) and len(fresh) == len(new):  # rows are tokens
            first = old.cell_token_id(0)
            result[name][:first] = value[:first]
            a, b = math.isqrt(few), math.isqrt(many)
            if a * a == few and b * b == many:
                blend = np.array(
                    [
                        [max(0.0, 1 - abs(i * (a - 1) / (b - 1) - j)) for j in range(a)]
                        for i in range(b)
                    ]
                )
                result[name][first:] = np.kron(blend, blend) @ value[first:].astype(np.float64)
        else:  # rows are positions
            result[name][: len(value)] = value
            if "encoder." in name and old.settings.separator:
                _more_slots(result[name], len(value), old.settings.border_length + 1)
    return result


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
        first = 4 + number * tokenizer.settings.vocab_size
        rows = torch.from_numpy(start / start.std() * scale).to(model.embedding)
        model.embedding[first : first + len(rows)] = rows
    if model.settings.backbone == "bart":
        table = model.net.model.encoder.embed_positions.weight
        b = tokenizer.settings.border_length + tokenizer.settings.separator
        place = torch.arange(len(table) - 2)
        slot = torch.randn(int(place.max()) // b + 1, table.shape[1]) * scale
        inside = torch.randn(b, table.shape[1]) * scale
        table[2:] = slot[place // b] + inside[place % b]
