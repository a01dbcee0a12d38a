"""Known distributions give their known numbers; figures are drawn; bad files are refused."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from PIL import Image

from puzlm import plots
from puzlm.errors import PuzlmError
from puzlm.study import analysis, embeddings
from puzlm.study.analyze import analyze, analyze_set, patch_picture, read_embeddings, read_tokens
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, TokenizerSettings

RNG = np.random.default_rng(0)
SETTINGS = TokenizerSettings(granularity=4, pca_dim=8, vocab_size=128, piece_size=16)


def smooth_pictures(count, side=48):
    """Soft random colour fields: what touches is alike."""
    coarse = RNG.integers(0, 256, (count, 5, 5, 3), np.uint8)
    return [
        np.asarray(Image.fromarray(c).resize((side, side), Image.Resampling.BICUBIC))
        for c in coarse
    ]


def write_tokens(path, tokens, settings=SETTINGS, grid=(3, 3), gap=0.0, **changes):
    np.save(path, np.asarray(tokens, np.uint16))
    record = {
        "grid": list(grid),
        "gap": gap,
        "vocab_size": settings.vocab_size,
        "tokenizer": asdict(settings),
    } | changes
    path.with_suffix(".json").write_text(json.dumps(record))
    return path


def test_codebooks_of_their_own_size_are_counted(tmp_path):
    """Text that uses all of 128 + 8 symbols has none that is dead; a ninth of the 8 is refused."""
    settings = replace(SETTINGS, patch="strip:4+residual:8")
    rng = np.random.default_rng(1)
    tokens = np.stack([rng.integers(0, k, (64, 9, 16)) for k in settings.sizes], -1)
    part = read_tokens(write_tokens(tmp_path / "t.npy", tokens, settings))
    assert part.sequences.max() == 135
    assert analyze_set(part, None)["zipf"]["dead"] == 0
    tokens[0, 0, 0, 1] = 8
    with pytest.raises(PuzlmError, match="do not fit patch"):
        read_tokens(write_tokens(tmp_path / "t.npy", tokens, settings))


# ---- entropy --------------------------------------------------------------------------------


def test_entropy_of_known_rows():
    rows = np.array([[7] * 8, [0, 1] * 4, [0, 1, 2, 3] * 2, range(8), [5, 5, 5, 5, 5, 5, 5, 9]])
    skewed = -(7 / 8 * np.log2(7 / 8) + 1 / 8 * np.log2(1 / 8))
    assert analysis.entropy(rows) == pytest.approx([0, 1, 2, 3, skewed])


def test_uniform_sequences_approach_the_bound():
    short, long = analysis.uniform_entropy(256, 32), analysis.uniform_entropy(256, 20_000)
    assert short[0] < 5 and short[1] <= short[0] <= short[2]
    assert long[0] == pytest.approx(8, abs=0.02)


def test_uniform_puzzles_lie_on_the_uniform_curve_and_dull_ones_fall_away():
    drawn = RNG.integers(0, 512, (400, 9, 12))
    grown = analysis.entropy_growth(drawn, 512, [1, 4, 9])
    assert list(grown["tokens"]) == [12, 48, 108]
    assert grown["below_uniform"] == pytest.approx([0, 0, 0], abs=0.02)
    dull = analysis.entropy_growth(drawn % 16, 512, [1, 4, 9])["below_uniform"]
    assert dull[0] < dull[1] < dull[2]


# ---- Zipf -----------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.4])
def test_maximum_likelihood_recovers_the_exponent(exponent):
    k = 200
    law = np.arange(1, k + 1) ** -exponent
    draws = np.random.default_rng(3).choice(k, (300, 200), p=law / law.sum())
    fit = analysis.zipf(draws, k, resamples=40)
    assert fit["exponent"]["value"] == pytest.approx(exponent, abs=0.02)
    assert fit["exponent"]["low"] < exponent < fit["exponent"]["high"]
    assert 0 < fit["ranking_bias"] < 0.005
    assert fit["ks_distance"] < 0.01 and fit["p_value"] > 0.05
    assert fit["slopes"][1]["exponent"] == pytest.approx(exponent, abs=0.1)


def test_a_law_that_is_not_zipf_is_told_apart():
    geometric = np.minimum(np.random.default_rng(3).geometric(0.02, (300, 200)) - 1, 199)
    fit = analysis.zipf(geometric, 200, resamples=20)
    assert fit["ks_distance"] > 0.1 and fit["p_value"] < 0.05
    slopes = [part["exponent"] for part in fit["slopes"]]
    assert slopes[0] < slopes[-1]  # the tail thins out


def test_dead_and_rare_symbols_are_counted():
    symbols = np.array([[0] * 10, [1] * 9 + [2]])
    fit = analysis.zipf(symbols, 8, resamples=2)
    assert (fit["dead"], fit["rare"]) == (5, 1)


# ---- Heaps ----------------------------------------------------------------------------------


def test_heaps_beta_of_all_distinct_is_one_and_of_few_symbols_near_zero():
    distinct = analysis.heaps(np.arange(20_000).reshape(200, 100))
    assert distinct["beta"]["value"] == pytest.approx(1)
    assert distinct["range"] == [100, 10_000]
    assert distinct["distinct"][-1] == 20_000
    few = analysis.heaps(RNG.integers(0, 4, (200, 100)))
    assert few["beta"]["value"] == pytest.approx(0, abs=0.01) and few["distinct"][-1] == 4


# ---- touching borders -----------------------------------------------------------------------


def test_information_is_zero_for_independent_and_log2_k_for_identical_symbols():
    a, b = RNG.integers(0, 16, (2, 500, 48))
    assert analysis.mutual_information(a, b, 16)["value"] == pytest.approx(0, abs=0.005)
    assert analysis.mutual_information(a, a, 16)["value"] == pytest.approx(4, abs=0.02)


def test_bias_is_taken_out_where_pairs_are_few():
    a, b = RNG.integers(0, 64, (2, 100, 48))
    information = analysis.mutual_information(a, b, 64)
    assert information["plug_in"] > 0.4  # 4096 cells, 4800 pairs
    assert abs(information["value"]) < 0.05


def test_touching_positions_face_each_other():
    """Pixels of one picture cut 2x3: facing positions are one pixel apart in the whole."""
    settings = TokenizerSettings(granularity=4, vocab_size=2000, pca_dim=None, piece_size=16)
    where = np.arange(8 * 12).reshape(8, 12)
    pieces = where.reshape(2, 4, 3, 4).swapaxes(1, 2).reshape(6, 16)
    from puzlm.tokenizer.piece_tokenizer import walk

    tokens = pieces[:, walk(4)].reshape(1, 6, 12, 1)
    first, second = analysis.touching(tokens, (2, 3), settings)
    assert first.shape == second.shape == (1, 4 + 3, 4)
    assert set((second - first)[0, :4].ravel()) == {1}  # right sides and left sides
    assert set((second - first)[0, 4:].ravel()) == {12}  # bottoms and tops


@pytest.mark.parametrize("grid", [(3, 3), (2, 3), (5, 5), (1, 4)])
def test_the_floor_pairs_sides_that_share_no_corner(grid):
    (first, _), (second, _), corners = analysis.inner_borders(grid)
    assert len(first) == grid[0] * (grid[1] - 1) + grid[1] * (grid[0] - 1) == len(corners)
    pairs = analysis.apart(grid)
    assert 0 < len(pairs) <= 128
    for i, j in pairs:
        assert not set(corners[i]) & set(corners[j]) and first[i] != second[j]
    assert not len(analysis.apart((2, 2)))  # all four borders meet in the middle


def test_what_only_corners_share_is_not_in_the_floor():
    """Every corner of the grid has a symbol of its own, which all squares around it show."""
    settings = TokenizerSettings(granularity=2, vocab_size=16, pca_dim=None, piece_size=16)
    corner = RNG.integers(0, 16, (800, 4, 4))
    pieces = [
        corner[:, r : r + 2, c : c + 2].reshape(800, 4)[:, [0, 1, 3, 2]]  # clockwise
        for r in range(3)
        for c in range(3)
    ]
    tokens = np.stack(pieces, 1)[..., None]
    found = analysis.border_information(tokens, (3, 3), settings, np.arange(16))
    assert found["touching"]["value"] == pytest.approx(4, abs=0.02)
    assert found["same_picture"]["value"] == pytest.approx(0, abs=0.02)
    small = analysis.border_information(tokens[:, [0, 1, 3, 4]], (2, 2), settings, np.arange(16))
    assert "same_picture" not in small and small["touching"]["value"] > 3.9


def test_equal_super_tokens():
    tokens = RNG.integers(0, 100, (3, 4, 12, 1))
    tokens[0, 1] = tokens[0, 0]
    tokens[2, 3] = tokens[1, 3]
    share = analysis.equal_super_tokens(tokens)
    assert share == {"in_same_puzzle": 2 / 12, "in_set": 4 / 12}


# ---- embeddings -----------------------------------------------------------------------------


def test_geometry_tells_looks_from_compatibility():
    """Symbols fit their partner, which looks like anything."""
    k, partner = 200, np.random.default_rng(1).permutation(200)
    looks = RNG.standard_normal((k, 6))
    first = RNG.integers(0, k, (400, 50))
    pairs = [(first, partner[first])]
    scores = embeddings.pair_scores(pairs, np.arange(k), np.arange(k))
    assert embeddings.touch_counts(pairs, k).sum() == 2 * first.size
    assert scores[0, partner[0]] > 3 and np.array_equal(scores, scores.T)
    shared = RNG.standard_normal((k, 16))
    tables = {"before": looks, "after": shared + shared[partner] + shared[np.argsort(partner)]}
    found = embeddings.embedding_geometry(tables, looks, scores, (scores, scores))
    assert found["compatibility_reliability"] == pytest.approx(1)
    assert found["before"]["looks"]["value"] > 0.5 > 0.2 > found["before"]["compatibility"]["value"]
    assert found["after"]["compatibility"]["value"] > 0.6
    assert abs(found["after"]["only_looks"]["value"]) < 0.15


def test_only_known_symbols_are_scored():
    first, second = np.array([[0, 0, 3]]), np.array([[1, 2, 3]])
    scores = embeddings.pair_scores([(first, second)], np.array([0, 1]), np.arange(5))
    assert scores[0, 1] == pytest.approx(np.log2(2 / (1 + 2 * 1 / 6)))
    classes = np.array([0, 1, 1, 2, 2])  # 0 touches class 1 twice, 1 touches class 0 once
    scores = embeddings.pair_scores([(first, second)], np.array([0, 1]), classes)
    assert scores[0, 1] == pytest.approx((np.log2(3 / (1 + 4 / 6)) + np.log2(2 / (1 + 2 / 6))) / 2)


def test_partial_correlation_removes_what_is_given():
    cause = RNG.standard_normal(4000)
    x, y = cause + RNG.standard_normal((2, 4000))
    xy, xz, yz = (embeddings.spearman(a, b) for a, b in ((x, y), (x, cause), (y, cause)))
    assert xy == pytest.approx(0.5, abs=0.06)
    assert embeddings.partial(xy, xz, yz) == pytest.approx(0, abs=0.06)
    assert np.isnan(embeddings.partial(0.5, 1.0, 0.5))


def test_noise_in_fit_does_not_turn_the_verdict_to_looks():
    """Embeddings follow fit, looks follow it by half; noisy fit alone would credit looks."""
    k, rng = 120, np.random.default_rng(4)
    true = rng.standard_normal((k, 4))
    tables = {"after": true + 0.5 * rng.standard_normal((k, 4))}
    looks = true + 0.8 * rng.standard_normal((k, 4))
    unit = true / np.linalg.norm(true, axis=1, keepdims=True)
    fit = 2 * unit @ unit.T

    def noisy():
        noise = 2.5 * rng.standard_normal((k, k))
        return fit + (noise + noise.T) / 2

    halves = noisy(), noisy()
    found = embeddings.embedding_geometry(tables, looks, sum(halves) / 2, halves)
    after = {key: row["value"] for key, row in found["after"].items()}
    assert found["compatibility_reliability"] < 0.95
    assert after["only_looks"] > 0.15  # wrong: nothing but fit is in these embeddings
    assert after["corrected_only_looks"] < after["only_looks"] - 0.1
    assert after["corrected_only_compatibility"] > after["only_compatibility"]


def test_embeddings_before_training_are_those_of_the_start_file(tmp_path):
    from safetensors.numpy import save_file

    from puzlm.models.side_model import SideModel, SideSettings

    tokenizer = PieceTokenizer(SETTINGS).fit(smooth_pictures(20), max_iter=2)
    assert read_embeddings(tmp_path, tokenizer, 0) == {}
    SideModel(SideSettings(codes=128, embedding=8, hidden=8, vector=8)).save_pretrained(tmp_path)
    start = RNG.standard_normal((128, 8)).astype(np.float32)
    looks = read_embeddings(tmp_path, tokenizer, 0)["before"]
    save_file({"embedding": start}, tmp_path / "start.safetensors")
    tables = read_embeddings(tmp_path, tokenizer, 0)
    assert np.array_equal(tables["before"], start) and not np.array_equal(looks, start)
    assert np.allclose(tables["learned"], tables["after"] - start)


# ---- the whole ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small gated-recurrent model, its tokenizer, three token files, and their analysis."""
    from puzlm.models.backbones import ModelSettings, Seq2Seq
    from puzlm.puzzle import cut

    folder, pictures = tmp_path_factory.mktemp("analysis"), smooth_pictures(60)
    tokenizer = PieceTokenizer(SETTINGS).fit(pictures, max_iter=5)
    tokenizer.save_pretrained(folder / "model")
    shape = ModelSettings("gru", 1, 1, 16, vocabulary=len(tokenizer), max_length=400)
    Seq2Seq(shape).save_pretrained(folder / "model")
    paths = []
    for name, gap in (("photos-3x3-gap-0", 0.0), ("photos-3x3-gap-0.5", 0.5), ("mine", 0.0)):
        tokens = np.stack([tokenizer.encode(cut(p, (3, 3), gap)) for p in pictures])
        paths.append(write_tokens(folder / f"{name}.npy", tokens, gap=gap))
    result = analyze(paths, folder / "out", model=folder / "model")
    return folder, paths, result


def test_every_number_is_in_the_file(run):
    folder, _, result = run
    assert json.loads((folder / "out" / "analysis.json").read_text()) == result
    near, wide, _ = result["sets"]
    assert near["name"] == wide["name"] == "photos-3x3" and wide["gap"] == 0.5
    assert near["borders"]["touching"]["value"] > wide["borders"]["touching"]["value"] > 0
    assert near["borders"]["touching"]["value"] > near["borders"]["same_picture"]["value"]
    assert result["english"]["zipf"]["exponent"]["value"] == pytest.approx(1, abs=0.2)
    embeddings = result["embeddings"]
    assert embeddings["before"]["looks"]["value"] == pytest.approx(0, abs=0.3)
    assert embeddings["puzzles"] == 120 and 0 < embeddings["compatibility_reliability"] <= 1
    assert [part["puzzles"] for part in embeddings["fewer"]] == sorted(
        part["puzzles"] for part in embeddings["fewer"]
    )


@pytest.mark.parametrize("name", ["analysis", "analysis-beyond"])
def test_figures_are_drawn(run, name):
    out = run[0] / "out"
    pixels = np.asarray(Image.open(out / f"{name}.png").convert("L"))
    assert pixels.shape[1] > 1000 and 0.01 < (pixels < 128).mean() < 0.9
    text = (out / f"{name}.svg").read_text()
    assert text.startswith("<?xml") and "photos-3x3" in text and "(bits" in text


def test_patches_are_drawn_as_they_lie():
    """A strip keeps its shape, border on top; a square shrinks."""
    strips = TokenizerSettings(granularity=4, pca_dim=8, piece_size=48, patch="strip:4")
    vector = np.zeros((12, 4, 3))  # along the side, inwards
    vector[:, 0] = 200
    picture = patch_picture(vector.reshape(-1), strips)
    assert picture.shape == (4, 12, 3) and (picture[0] == 200).all() and not picture[1:].any()
    squares = TokenizerSettings(granularity=4, pca_dim=8, piece_size=96)
    assert patch_picture(np.zeros(24 * 24 * 3), squares).shape == (12, 12, 3)


def test_a_single_gap_has_no_panel(run, tmp_path):
    analyze(run[1][:1], tmp_path / "one", model=run[0] / "model")
    one, many = (
        (f / "analysis-beyond.svg").read_text() for f in (tmp_path / "one", run[0] / "out")
    )
    assert "Facing symbols, by gap" in many and "Facing symbols, by gap" not in one
    assert "another side" in one  # the floor is a level line then


def test_without_a_model_it_says_what_was_left_out_and_a_seed_gives_the_same_files(run, tmp_path):
    for name in ("one", "two"):
        result = analyze(run[1][:1], tmp_path / name)
    assert "skipped" in result["sets"][0]["borders"] and "skipped" in result["embeddings"]
    for name in ("analysis.json", "analysis.png", "analysis.svg", "analysis-beyond.svg"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_other_figures(tmp_path):
    bins = [
        {"confidence": c, "accuracy": c - 0.05, "low": c - 0.1, "high": c, "count": 10}
        for c in (0.2, 0.5, 0.9)
    ]
    plots.reliability(bins, tmp_path / "reliability.png")
    plots.heat_map(
        ["a", "b"],
        [0.1, 0.5, 1],
        [[1, 2, None], [4, 5, 6]],
        tmp_path / "heat.png",
        "Absolute accuracy",
        "%",
    )
    log = tmp_path / "metrics.jsonl"
    lines = [{"step": s, "loss": 3 / s, "accuracy": s / 9} for s in range(1, 9)]
    lines += [{"step": 8, "gap_0_absolute": 61.0, "gap_0_perfect": 33.0}]
    log.write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 9, "lo')  # a killed run
    plots.learning_curves([log], tmp_path / "curves.png")
    for name in ("reliability", "heat", "curves"):
        pixels = np.asarray(Image.open(tmp_path / f"{name}.png").convert("L"))
        assert 0.005 < (pixels < 128).mean() < 0.9, name


# ---- bad input ------------------------------------------------------------------------------


def test_bad_token_files_are_refused_in_one_sentence(tmp_path):
    good = RNG.integers(0, 128, (4, 9, 12, 1))
    cases = {
        "empty": (write_tokens(tmp_path / "empty.npy", good[:0]), "empty"),
        "single": (write_tokens(tmp_path / "single.npy", good[:1, :1, :1]), "no symbol but"),
        "flat": (write_tokens(tmp_path / "flat.npy", good[0]), "(puzzles, cells, b, F)"),
        "grid": (write_tokens(tmp_path / "grid.npy", good, grid=(2, 3)), "grid 2x3"),
        "large": (write_tokens(tmp_path / "large.npy", good + 100), "largest symbol"),
        "keys": (write_tokens(tmp_path / "keys.npy", good, gap="wide"), "damaged"),
        "alone": (write_tokens(tmp_path / "alone.npy", good), "alone.json is missing"),
        "noise": (write_tokens(tmp_path / "noise.npy", good), "not a .npy file"),
        "nothing": (write_tokens(tmp_path / "nothing.npy", good), "not a .npy file"),
        "gone": (tmp_path / "gone.npy", "no such token file"),
    }
    (tmp_path / "alone.json").unlink()
    (tmp_path / "noise.npy").write_bytes(b"\x80\x04pickle")
    (tmp_path / "nothing.npy").write_bytes(b"")
    for name, (path, words) in cases.items():
        with pytest.raises(PuzlmError) as error:
            analyze([path], tmp_path / "out")
        assert words in str(error.value) and "\n" not in str(error.value), name
    assert not (tmp_path / "out").exists()
    with pytest.raises(PuzlmError, match="no token files"):
        analyze([], tmp_path / "out")


def test_negative_symbols_are_refused_in_one_sentence(tmp_path):
    path = write_tokens(tmp_path / "negative.npy", RNG.integers(0, 128, (4, 9, 12, 1)))
    np.save(path, RNG.integers(-5, 128, (40, 9, 12, 1)))
    with pytest.raises(PuzlmError, match=r"symbol -5; symbols are 0 to k - 1 = 127"):
        analyze([path], tmp_path / "out")


def test_tokens_of_another_tokenizer_are_refused(run, tmp_path):
    other = TokenizerSettings(granularity=4, pca_dim=8, vocab_size=128, piece_size=32)
    path = write_tokens(tmp_path / "t.npy", RNG.integers(0, 128, (4, 9, 12, 1)), other)
    with pytest.raises(PuzlmError, match="another tokenizer"):
        analyze([path], tmp_path / "out", model=run[0] / "model")
