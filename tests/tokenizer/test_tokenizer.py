from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from puzlm.errors import ModelError, SettingsError
from puzlm.puzzle import Puzzle, cut
from puzlm.tokenizer.patches import resize_matrix
from puzlm.tokenizer.piece_tokenizer import (
    PieceTokenizer,
    TokenizerSettings,
    lexicographic_order,
    walk,
)


def test_the_walk_on_a_drawn_piece():
    """The paper's figure: B = 4, twelve border patches, clockwise from the top left."""
    drawing = [
        " 0  1  2  3",
        "11        4",
        "10        5",
        " 9  8  7  6",
    ]
    place = {}
    for row, line in enumerate(drawing):
        for column in range(4):
            if text := line[column * 3 : column * 3 + 2].strip():
                place[int(text)] = row * 4 + column
    assert walk(4) == [place[i] for i in range(12)]
    assert walk(4, clockwise=False) == sorted(walk(4))
    assert walk(1) == [0]
    assert sorted(walk(2)) == [0, 1, 2, 3]
    assert walk(3, border=False) == list(range(9))


@pytest.mark.parametrize("B", range(1, 9))
def test_sentence_length_formula(B, crops):
    tokenizer = PieceTokenizer(granularity=B, vocab_size=8, pca_dim=4, piece_size=24, max_cells=12)
    tokenizer.fit(crops[:8], max_iter=2)
    b = max(1, 4 * B - 4)
    for grid in ("2", "3", "3x4"):
        puzzle = Puzzle.from_image(crops[0], grid)
        n = puzzle.cells
        assert tokenizer(puzzle)["input_ids"].shape == (1, b * n + n - 1)
        assert tokenizer.sentence_length(n) == b * n + n - 1


def test_patches_lie_where_the_walk_says(tokenizer):
    """Paint every patch of a piece with its own grey and read the order back."""
    piece = np.repeat(np.repeat(np.arange(16).reshape(4, 4), 8, 0), 8, 1)[..., None].repeat(3, 2)
    patches = tokenizer.patches(piece[None].astype(np.float32), "square")
    assert patches.shape == (1, 12, 8 * 8 * 3)
    assert [set(p.tolist()) for p in patches[0]] == [{float(i)} for i in walk(4)]


def test_touching_strips_show_the_same_picture():
    """Cut a piece from an image twice, mirrored at the seam: both sides read the same strips."""
    rng = np.random.default_rng(0)
    piece = rng.integers(0, 256, (1, 32, 32, 3)).astype(np.float32)
    tokenizer = PieceTokenizer(patch="strip:4", piece_size=32)
    own = tokenizer.patches(piece, "strip:4")[0]
    mirrored = tokenizer.patches(np.flip(piece, 2).copy(), "strip:4")[0]
    right, left_of_mirror = own[4:8], mirrored[12:16][::-1]
    assert np.array_equal(right, left_of_mirror)
    flipped = tokenizer.patches(np.flip(piece, 1).copy(), "strip:4")[0]
    bottom, top_of_flip = own[8:12][::-1], flipped[0:4]
    assert np.array_equal(bottom, top_of_flip)
    # First axis along the side, second from the border inwards.
    assert np.array_equal(own[4].reshape(8, 4, 3)[:, 0], piece[0, :8, -1])
    assert np.array_equal(own[0].reshape(8, 4, 3)[:, 1], piece[0, 1, :8])


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 9), st.integers(1, 14), st.integers(1, 3), st.integers(0, 10**6))
def test_lexicographic_order_is_pythons(n, length, top, seed):
    """Few different symbols, so that ties and long common prefixes are frequent."""
    words = np.random.default_rng(seed).integers(0, top + 1, (3, n, length)) + 65000
    order = lexicographic_order(words)
    for row in range(3):
        want = sorted(range(n), key=lambda i: words[row, i].tolist())  # sorted() is stable
        assert order[row].tolist() == want
    assert np.array_equal(lexicographic_order(torch.from_numpy(words)).numpy(), order)


def test_sentence_reads_sorted_words_with_separators(tokenizer, crops):
    puzzle = Puzzle.from_image(crops[1], 3, missing=2, seed=4)
    out = tokenizer(puzzle)
    words = " ".join(map(str, out["input_ids"][0])).split(f" {tokenizer.sep_token_id} ")
    assert len(words) == 9
    words = [tuple(map(int, w.split())) for w in words]
    assert words == sorted(words)
    codes = tokenizer.encode(puzzle.pieces)[..., 0] + 4
    for slot, piece in enumerate(out["order"][0]):
        want = codes[piece] if piece >= 0 else [tokenizer.mask_token_id] * 12
        assert words[slot] == tuple(want)
    assert (out["order"][0, 7:] == -1).all()  # masks come last
    assert out["attention_mask"].all()


def test_every_choice_is_a_switch(tokenizer, crops):
    base = dict(vocab_size=16, pca_dim=8, piece_size=32, max_cells=9)
    puzzle = Puzzle.from_image(crops[2], 3, seed=1)

    def read(**changes):
        made = PieceTokenizer(**{**base, **changes}).fit(crops[:24], max_iter=3)
        return made, made(puzzle)["input_ids"][0]

    plain, ids = read()
    assert len(ids) == 116
    assert len(read(separator=False)[1]) == 108
    assert len(read(border=False)[1]) == 16 * 9 + 8
    assert read(pca_dim=None)[0].codebooks_[0].components is None
    given_order, ids_given = read(lexicographic=False)
    assert given_order(puzzle)["order"][0].tolist() == list(range(9))
    assert sorted(ids_given) == sorted(ids)
    _, ids_raster = read(clockwise=False)
    assert ids_raster.tolist() != ids.tolist()
    assert len(read(patch="strip:4")[1]) == 16 * 9 + 8
    assert read(patch="strip:4+residual+strip:8")[1].shape == (152, 3)


def test_residual_symbols_say_more(crops):
    """Centroid plus residual centroid is nearer to the strip than the centroid alone."""
    tokenizer = PieceTokenizer(patch="strip:4+residual", vocab_size=32, pca_dim=16, piece_size=32)
    tokenizer.fit(crops, max_iter=8)
    x = tokenizer.canonical(cut(crops[5], (3, 3)))
    codes = tokenizer.encode_canonical(x)
    first, second = tokenizer.codebooks_
    vectors = first.project(tokenizer.patches(x, "strip:4").reshape(9 * 16, -1))
    one = first.centroids[codes[..., 0].ravel()]
    two = one + second.vectors()[codes[..., 1].ravel()]
    assert ((vectors - two) ** 2).sum() < 0.7 * ((vectors - one) ** 2).sum()


def test_further_symbols_say_more_and_leave_the_others(crops, tmp_path):
    """Each residual symbol brings the patch nearer; what was read before stays as it was."""
    patch = "strip:4+residual"
    tokenizer = PieceTokenizer(patch=patch, vocab_size=32, pca_dim=16, piece_size=32, max_cells=9)
    tokenizer.fit(crops, max_iter=8)
    x = np.concatenate([tokenizer.canonical(cut(c, (3, 3))) for c in crops])
    more = tokenizer.with_symbols(patch + "+residual:24+residual:8", x, max_iter=8)
    assert more.settings.sizes == [32, 32, 24, 8] and more.settings.firsts == [4, 36, 68, 92]
    assert len(more) == 4 + 96 + 1 + 9
    codes = more.encode_canonical(x)
    assert (codes[..., :2] == tokenizer.encode_canonical(x)).mean() > 0.995
    assert codes.max((0, 1)).tolist() == [31, 31, 23, 7]
    books = more.codebooks_
    rest = books[0].project(more.patches(x, "strip:4").reshape(-1, 12 * 8))
    left = []
    for number, book in enumerate(books):
        said = book.centroids if number == 0 else book.vectors()
        rest = rest - said[codes[..., number].ravel()]
        left.append((rest**2).sum())
    assert left[2] < 0.85 * left[1] and left[3] < 0.95 * left[2]
    ids, order = more.sentences(codes[:9][None])
    words = ids[0].reshape(-1, 4)[np.arange(152) % 17 < 16].reshape(9, 16, 4)
    assert np.array_equal(words - more.settings.firsts, codes[:9][order[0]])
    # Half precision is enough, and the file is as small.
    more.save_pretrained(tmp_path)
    back = PieceTokenizer.from_pretrained(tmp_path)
    assert np.array_equal(back.encode_canonical(x[:50]), codes[:50])
    kept = load_file(tmp_path / "tokenizer.safetensors")
    assert kept["3.centroids"].dtype == np.float16 and kept["3.centroids"].shape == (8, 16)
    with pytest.raises(SettingsError, match="must begin with 'strip:4[+]residual[+]'"):
        tokenizer.with_symbols("strip:4+strip:8", x)


def test_splits_say_nearly_everything(crops, tmp_path):
    """Many small symbols of few dimensions each: hardly anything is left over of the strip."""
    patch = "strip:4+residual+strip:8"
    tokenizer = PieceTokenizer(patch=patch, vocab_size=32, pca_dim=16, piece_size=32, max_cells=9)
    tokenizer.fit(crops, max_iter=8)
    x = np.concatenate([tokenizer.canonical(cut(c, (3, 3))) for c in crops])
    more = tokenizer.with_symbols(patch + "+split:4:8x16+split:8:4x8", x, max_iter=8)
    s = more.settings
    assert s.whole == ["strip:4", "residual", "strip:8"] and len(s.terms) == 15
    assert s.sizes == [32] * 3 + [16] * 8 + [8] * 4 and s.codes == 96 + 128 + 32
    codes = more.encode_canonical(x)
    assert codes.shape[2] == 15
    assert (codes[..., :3] == tokenizer.encode_canonical(x)).mean() > 0.995
    books = more.codebooks_
    rest = books[0].project(more.patches(x, "strip:4").reshape(-1, 12 * 8))
    whole = (rest**2).sum()
    rest = rest - books[0].centroids[codes[..., 0].ravel()]
    rest = rest - books[1].vectors()[codes[..., 1].ravel()]
    before = (rest**2).sum()
    for part in range(8):
        where = slice(2 * part, 2 * part + 2)
        rest[:, where] -= books[3 + part].vectors()[codes[..., 3 + part].ravel()]
    assert (rest**2).sum() < 0.2 * before and before < 0.2 * whole
    # The same on torch, after a file, and whatever order the pieces come in.
    import torch

    on = more.on("cpu").encode_canonical(torch.from_numpy(x[:90]).float())
    assert np.array_equal(on.numpy(), codes[:90])
    more.save_pretrained(tmp_path)
    assert np.array_equal(PieceTokenizer.from_pretrained(tmp_path).encode_canonical(x), codes)
    turned = np.random.default_rng(0).permutation(9)
    one, two = more.sentences(codes[:9][None])[0], more.sentences(codes[:9][turned][None])[0]
    assert np.array_equal(one, two)


def test_pieces_that_only_splits_tell_apart_are_sorted():
    """By a checksum: their order is that of what they say, not that in which they came."""
    words = PieceTokenizer(patch="strip:4+split:4:16x4", pca_dim=16, vocab_size=8, max_cells=9)
    codes = np.zeros((1, 4, 16, 17), np.int64)
    codes[0, :, 3, 5] = [1, 0, 2, 1]
    codes[0, 3, 9, 5] = 1
    first = words.sentences(codes)[0]
    for turn in ([1, 0, 2, 3], [3, 2, 1, 0], [2, 3, 0, 1]):
        assert np.array_equal(words.sentences(codes[:, turn])[0], first)
    assert len(np.unique(first[0, :, 5])) == 4  # PAD beside a separator, and three symbols


def test_pieces_of_any_size_are_resized_first(tokenizer, photo):
    """A piece shrunk by Pillow and the same piece shrunk by the tokenizer read nearly the same."""
    from PIL import Image

    big = cut(photo[:384, :384], (3, 3))
    small = np.stack(
        [np.asarray(Image.fromarray(p).resize((32, 32), Image.Resampling.BILINEAR)) for p in big]
    )
    assert (tokenizer.encode(big) == tokenizer.encode(small)).mean() > 0.95
    assert np.allclose(resize_matrix(7, 3).sum(1), 1)
    assert np.array_equal(resize_matrix(5, 5), np.eye(5, dtype=np.float32))


def test_torch_and_numpy_read_the_same(tokenizer, crops):
    pieces = cut(crops[3], (3, 3))
    x = tokenizer.canonical(pieces)
    twin = tokenizer.on("cpu")
    assert np.array_equal(tokenizer.encode(pieces), twin.encode(torch.from_numpy(pieces)).numpy())
    a = tokenizer.sentences(tokenizer.encode_canonical(x)[None])
    b = twin.sentences(twin.encode_canonical(torch.from_numpy(x))[None])
    assert all(np.array_equal(one, two.numpy()) for one, two in zip(a, b, strict=True))


def test_same_seed_same_tokens(crops):
    def fit(seed):
        made = PieceTokenizer(vocab_size=16, pca_dim=8, piece_size=32)
        return made.fit(iter(crops), seed=seed, max_pieces=200, max_iter=4)

    assert np.array_equal(fit(1).encode(crops[0][None]), fit(1).encode(crops[0][None]))
    assert not np.array_equal(fit(1).codebooks_[0].centroids, fit(2).codebooks_[0].centroids)


def test_a_stream_of_any_length_is_bounded(crops, monkeypatch):
    """Of 864 pieces 200 are kept, and they are a sample of all, not the first or the last."""
    seen = []
    monkeypatch.setattr(PieceTokenizer, "fit_canonical", lambda self, x, **_: seen.append(x))
    tokenizer = PieceTokenizer(piece_size=32)
    tokenizer.fit(iter(crops), max_pieces=200)
    (kept,) = seen
    assert kept.shape == (200, 32, 32, 3)
    every = [piece.tobytes() for c in crops for piece in tokenizer.canonical(cut(c, (3, 3)))]
    places = [every.index(piece.tobytes()) for piece in kept]
    assert 300 < np.mean(places) < 564 and len(set(places)) == 200


def test_save_and_load(tokenizer, crops, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    back = PieceTokenizer.from_pretrained(tmp_path)
    assert back.settings == tokenizer.settings
    assert np.array_equal(back.encode(crops[0][None]), tokenizer.encode(crops[0][None]))
    assert len(back) == 4 + 64 + 1 + 9


def test_loading_refuses_what_is_damaged(tokenizer, tmp_path):
    with pytest.raises(ModelError, match="tokenizer.json is missing"):
        PieceTokenizer.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.safetensors").write_bytes(b"\x80\x04pickle.")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        PieceTokenizer.from_pretrained(tmp_path)
    (tmp_path / "tokenizer.safetensors").unlink()
    with pytest.raises(ModelError, match="tokenizer.safetensors is missing"):
        PieceTokenizer.from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    record = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**record, "granulrity": 3}))
    with pytest.raises(SettingsError, match="did you mean 'granularity'"):
        PieceTokenizer.from_pretrained(tmp_path)


def test_a_super_token_can_be_shown(tokenizer, photo):
    pieces = tokenizer.canonical(cut(photo, (3, 3))).astype(np.uint8)
    codes = tokenizer.encode(pieces)
    text = tokenizer.text(codes[0])
    assert len(text.split()) == 12 and all(len(s) == 2 for s in text.split())
    picture = tokenizer.picture(codes[4])
    border = np.ones((32, 32), bool)
    border[8:-8, 8:-8] = False
    drawn, real = picture[border].astype(float), pieces[4][border].astype(float)
    assert np.corrcoef(drawn.ravel(), real.ravel())[0, 1] > 0.6  # it looks like the piece's border


@pytest.mark.parametrize(
    "change",
    [
        {"granularity": 0},
        {"granularity": 9},
        {"patch": "circle"},
        {"patch": "strip:0"},
        {"patch": "strip:4+residual:1"},
        {"patch": "strip:4+residual:"},
        {"patch": "residual:16"},
        {"patch": "split:4:8x16"},
        {"patch": "strip:4+split:8:8x16"},
        {"patch": "strip:4+split:4:8x1"},
        {"patch": "strip:4+split:4:7x16", "pca_dim": 16},
        {"patch": "strip:4+split:4:0x16"},
        {"patch": "strip:4+split:4:8x16+residual"},
        {"vocab_size": 64, "patch": "strip:4+residual:65468"},
        {"patch": "square+strip:4"},
        {"patch": "strip:4", "border": False},
        {"vocab_size": 1},
        {"vocab_size": 65_532},
        {"vocab_size": 32_766, "patch": "strip:4+residual"},
        {"pca_dim": 0},
        {"piece_size": 2},
    ],
)
def test_bad_settings(change):
    with pytest.raises(SettingsError):
        TokenizerSettings(**change)


def test_the_largest_vocabulary_still_sorts():
    """Three ids go into one comparison, 16 bits each: [MASK] is the largest of them."""
    mask = PieceTokenizer(vocab_size=65_531).mask_token_id
    assert mask == 65_535
    words = np.array([[[5, mask, mask], [6, 4, 4], [5, mask, 4], [5, 4, mask]]])
    assert lexicographic_order(words).tolist() == [[3, 2, 0, 1]]


def test_bad_use(crops):
    with pytest.raises(SettingsError, match="call fit"):
        PieceTokenizer()(Puzzle.from_image(crops[0], 3))
    with pytest.raises(SettingsError, match="larger than the"):
        PieceTokenizer(vocab_size=4096).fit(crops[:2])
    small = PieceTokenizer(vocab_size=8, pca_dim=4, piece_size=16, max_cells=9).fit(
        crops[:9], max_iter=1
    )
    with pytest.raises(SettingsError, match="at most 9"):
        small(Puzzle.from_image(crops[0], 4))
