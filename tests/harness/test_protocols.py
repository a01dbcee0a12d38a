"""Named benchmarks: geometry as published, the same puzzles everywhere, files as released."""

import io
import re
import tarfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from puzlm.errors import ImageError, PuzlmError, PuzzleError, SettingsError
from puzlm.harness.protocols import PROTOCOLS, get_protocol, make_puzzle, prepare, read_data
from puzlm.puzzle import assemble
from puzlm.solver import Solver

PHOTO = load_sample_image("china.jpg")  # 427 x 640
SQUARE = [p for p in PROTOCOLS.values() if p.resize]


def numbered(height, width):
    """Make an image whose pixel values tell where they are: red the row, green the column."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows % 256, columns % 256, rows // 256 * 16 + columns // 256], 2).astype("u1")


def write(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def test_names_are_known():
    names = "imagenet-3x3 imagenet-3x3-eroded imagenet-3x3-cfn imagenet-3x3-fcvit kaggle-3x3"
    names += " imagenet-3x3-missing-1 imagenet-3x3-missing-2 imagenet-3x3-missing-3"
    names += " jpwleg-3 jpwleg-5 jpwleg-3-fixed-centre jpwleg-5-fixed-centre"
    names += " imagenet-lsej-10x10-2 imagenet-lsej-10x10-5"
    names += " classic-mit-432 classic-mcgill-540 classic-bgu-805 classic-bgu-2360 classic-bgu-3300"
    names += " classic-mcgill-540-type2 worn-2x2 worn-3x4 worn-4x4 worn-4x6 worn-6x6"
    names += " worn-mit-432 worn-mcgill-540 eroded-mcgill-88 eroded-bgu-150"
    large = " classic-sholomon-"
    names += "".join(f"{large}{count}{large}{count}-type2" for count in (5015, 10375, 22834))
    names += "".join(f" imagenet-lsej-10x10-8 imagenet-lsej-20x20-{off}" for off in (2, 5, 8))
    names += "".join(f" paintings-type2-{side}x{side}" for side in (6, 8, 10, 12))
    damages = ("light", "noise", "light-jpeg", "cut")
    names += "".join(f" {damage}-4x4 {damage}-8x8" for damage in damages) + " scan-4x4 scan-6x8"
    names += "".join(f" table-{side}x{side} table-{side}x{side}-clean" for side in (3, 5, 8))
    names += " turned-3x3 turned-5x5 turned-10x10 turned-worn-3x3 turned-worn-5x5"
    assert set(PROTOCOLS) == set(names.split())
    with pytest.raises(SettingsError, match="did you mean 'jpwleg-3'"):
        get_protocol("jpwleg3")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_records_agree_with_themselves(name):
    protocol = PROTOCOLS[name]
    assert protocol.cell - protocol.piece == protocol.gap
    if name.startswith("classic") and "22834" not in name:  # that one is named after its paper
        assert protocol.grid[0] * protocol.grid[1] == int(name.split("-")[2])


@pytest.mark.parametrize(
    ("name", "corners"),
    [
        ("imagenet-3x3", (0, 96, 192)),
        ("imagenet-3x3-eroded", (16, 112, 208)),
        ("jpwleg-3", (7, 151, 295)),
        ("jpwleg-5", (3, 111, 219, 327, 435)),
        ("imagenet-lsej-10x10-5", tuple(range(5, 500, 50))),
    ],
)
def test_pieces_lie_where_the_papers_say(name, corners):
    protocol = PROTOCOLS[name]
    image = numbered(protocol.size, protocol.size)
    _, where, scale = prepare(protocol, image)
    tops = [where.origin[0] + r * where.cell[0] + where.slack[0] // 2 for r in range(len(corners))]
    assert tuple(tops) == corners
    assert (scale, where.piece) == (1.0, (protocol.piece,) * 2)
    if not protocol.restore:
        puzzle = make_puzzle(protocol, image, 5)
        for piece, cell in zip(puzzle.pieces, puzzle.truth, strict=True):
            top, left = (corners[i] for i in divmod(int(cell), len(corners)))
            side = protocol.piece
            assert np.array_equal(piece, image[top : top + side, left : left + side])


def test_small_image_scales_the_geometry():
    puzzle = make_puzzle(PROTOCOLS["jpwleg-3"], numbered(264, 300), 0)
    assert puzzle.pieces.shape == (9, 64, 64, 3)
    assert puzzle.settings["scale"] == round(264 / 398, 4)
    first = puzzle.pieces[puzzle.truth == 0][0]
    second = puzzle.pieces[puzzle.truth == 1][0]
    assert int(second[0, 0, 1]) - int(first[0, -1, 1]) - 1 == 32  # the gap, in the image's pixels


@pytest.mark.parametrize("protocol", SQUARE, ids=lambda p: p.name)
def test_every_size_gives_whole_equal_pieces(protocol):
    smallest = 100 * max(1, protocol.grid[0] // 5)  # below that a piece is too small
    if protocol.damage == "scan":  # takes some pixels off a piece
        smallest = 480
    step = 10 if protocol.grid[0] == 20 else 1  # those take long
    sides = [*range(smallest, smallest + 31, step), 255, 264, 288, 397, 398, 501, 1001]
    for side in [smallest, 501] if protocol.table else sides:  # a camera takes seconds
        if side < smallest:
            continue
        _, where, scale = prepare(protocol, image := np.zeros((side, side + 9, 3), np.uint8))
        reach = where.cell[0] if protocol.jitter else where.piece[0] + where.slack[0] // 2
        whole = round(scale * protocol.size)
        for origin, count in zip(where.origin, where.grid, strict=True):
            low = origin + (0 if protocol.jitter else where.slack[0] // 2)
            high = origin + (count - 1) * where.cell[0] + reach
            assert low >= 0 and high <= whole, side
            assert abs(low - (whole - high)) <= 1 or protocol.jitter  # in the middle
        puzzle = make_puzzle(protocol, image, 0)
        assert len(puzzle.pieces) == where.grid[0] * where.grid[1] - protocol.missing
        assert (scale < 1) == (side < protocol.resize)


def test_large_image_is_resized_and_cropped_in_the_middle():
    image = np.zeros((600, 900, 3), np.uint8)
    image[:, 150:750] = 200  # the centre square
    puzzle = make_puzzle(PROTOCOLS["imagenet-3x3"], image, 0)
    assert puzzle.pieces.shape == (9, 96, 96, 3)
    assert puzzle.pieces[:, :, 4:-4].min() == 200


def test_no_pixel_holds_anything_from_beyond_the_cut():
    """Each pixel is the mean over its own area; Lanczos reached three pixels further."""
    image = np.full((1000, 1000, 3), 90, np.uint8)
    image[:, 500:] = 200  # from the middle cut of 10x10 on
    for name in ("imagenet-lsej-10x10-2", "imagenet-lsej-20x20-2"):
        puzzle = make_puzzle(PROTOCOLS[name], image, 0)
        assert {int(v) for v in np.unique(puzzle.pieces)} == {90, 200}
        assert puzzle.settings["shrunk"] == PROTOCOLS[name].size / 1000
    odd = (np.arange(300) // 2).astype(np.uint8)[None, :, None].repeat(300, 0).repeat(3, 2)
    small = prepare(PROTOCOLS["imagenet-3x3"], odd)[0]
    assert small.shape == (288, 288, 3) and abs(small.mean() - odd.mean()) < 0.5
    assert np.all(np.diff(small[0, :, 0].astype(int)) >= 0)


def test_a_codec_leaves_traces_of_the_neighbour_only_if_it_comes_before_the_cut():
    protocol = PROTOCOLS["imagenet-lsej-10x10-2"]
    image = np.random.default_rng(0).integers(0, 2, (500, 500, 3), np.uint8) * 255
    image[:, :100] = 128  # two columns of cells are flat, their pieces end 2 px before
    spread = {}
    for codec in ("", "picture", "pieces"):
        puzzle = make_puzzle(replace(protocol, codec=codec), image, 0)
        assert (puzzle.truth == make_puzzle(protocol, image, 0).truth).all()
        flat = puzzle.pieces[puzzle.truth % 10 == 1].astype(int)
        spread[codec] = int(abs(flat - np.median(flat)).max())
    assert spread[""] == 0 and spread["pieces"] <= 2 < 8 < spread["picture"]


def test_puzzles_follow_from_seed_and_index_alone():
    protocol = PROTOCOLS["imagenet-3x3-cfn"]
    one, again, other = (make_puzzle(protocol, PHOTO, i) for i in (3, 3, 4))
    assert np.array_equal(one.pieces, again.pieces) and np.array_equal(one.truth, again.truth)
    assert not np.array_equal(one.truth, other.truth)
    # Written down once: another machine or another numpy must give the same.
    assert one.truth.tolist() == [4, 7, 2, 8, 1, 5, 3, 6, 0]
    assert one.settings["offsets"][:3] == [[2, 4], [14, 6], [2, 11]]
    plain = make_puzzle(PROTOCOLS["imagenet-3x3"], PHOTO, 3)
    assert np.array_equal(plain.truth, one.truth)  # erosion changes the pieces, not the order


def test_jitter_moves_pieces_by_the_offsets_recorded():
    protocol, image = PROTOCOLS["imagenet-3x3-cfn"], numbered(255, 255)
    puzzle = make_puzzle(protocol, image, 1)  # 255 < 256: scaled, and cut from 254 px
    cell, piece = puzzle.settings["cell"], puzzle.settings["piece"]
    _, where, _ = prepare(protocol, image)
    offsets = np.array(puzzle.settings["offsets"])
    assert len({tuple(o) for o in offsets.tolist()}) > 3 and offsets.max() <= cell - piece
    for pixels, at, offset in zip(puzzle.pieces, puzzle.truth, offsets, strict=True):
        row, column = divmod(int(at), 3)
        assert pixels[0, 0, 0] == where.origin[0] + row * cell + offset[0]
        assert pixels[0, 0, 1] == where.origin[1] + column * cell + offset[1]


def test_missing_and_given_pieces():
    puzzle = make_puzzle(PROTOCOLS["imagenet-3x3-missing-2"], PHOTO, 0)
    assert len(puzzle.pieces) == len(set(puzzle.truth.tolist())) == 7
    puzzle = make_puzzle(PROTOCOLS["jpwleg-5-fixed-centre"], PHOTO, 0)
    ((piece, cell),) = puzzle.settings["given"].items()
    assert cell == 12 == puzzle.truth[piece]
    assert "given" not in make_puzzle(PROTOCOLS["jpwleg-5"], PHOTO, 0).settings


def test_classic_sets_cut_28_pixels_from_the_top_left():
    image = numbered(20 * 28 + 5, 27 * 28 + 9)
    puzzle = make_puzzle(PROTOCOLS["classic-mcgill-540"], image, 0)
    assert puzzle.grid == (20, 27) and puzzle.pieces.shape == (540, 28, 28, 3)
    whole = assemble(puzzle.pieces, puzzle.truth, puzzle.grid)
    assert np.array_equal(whole, image[: 20 * 28, : 27 * 28])
    tall = make_puzzle(PROTOCOLS["classic-mcgill-540"], numbered(27 * 28, 20 * 28), 0)
    assert tall.grid == (27, 20)
    with pytest.raises(PuzzleError, match="gives 15x22 pieces of 28 px, the set has 540"):
        make_puzzle(PROTOCOLS["classic-mcgill-540"], PHOTO, 0)


def test_too_small_an_image_is_refused():
    with pytest.raises(PuzzleError, match="too few"):
        make_puzzle(PROTOCOLS["imagenet-lsej-10x10-5"], PHOTO[:40, :40], 0)


def test_folder_tar_and_torchvision_layout_agree(tmp_path):
    protocol = PROTOCOLS["imagenet-3x3"]
    for i in range(6):
        write(tmp_path / "val" / f"n{i // 2:04d}" / f"{i}.png", PHOTO[i : i + 90, :90])
    with tarfile.open(tmp_path / "val.tar", "w") as tar:
        for file in sorted((tmp_path / "val").rglob("*.png")):
            tar.add(file, file.relative_to(tmp_path / "val").as_posix())
    (tmp_path / "val" / "named.png").mkdir()  # a folder, whatever it is called
    folder = list(read_data(tmp_path / "val", protocol))
    archive = list(read_data(tmp_path / "val.tar", protocol))
    assert [i for i, _ in folder] == list(range(6))
    for (_, a), (_, b) in zip(folder, archive, strict=True):
        assert a.settings == b.settings and a.settings["name"].startswith("n0")
        assert np.array_equal(a.pieces, b.pieces)
    # A limit takes one image of each class, with the puzzles of the full run.
    few = list(read_data(tmp_path / "val", protocol, limit=3))
    assert [i for i, _ in few] == [0, 2, 4]
    assert few[1][1].settings == folder[2][1].settings
    assert len(list(read_data(tmp_path / "val.tar", protocol, limit=2))) == 2
    ((_, single),) = read_data(tmp_path / "val" / "n0000" / "0.png", protocol)
    assert single.settings["name"] == "0.png"


def test_data_that_is_not_there(tmp_path):
    protocol = PROTOCOLS["imagenet-3x3"]
    with pytest.raises(ImageError, match="no such file"):
        list(read_data(tmp_path / "none", protocol))
    with pytest.raises(ImageError, match="holds no images"):
        list(read_data(tmp_path, protocol))
    with pytest.raises(SettingsError, match="limit 0"):
        list(read_data(tmp_path, protocol, limit=0))
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(ImageError, match="broken.jpg"):
        list(read_data(tmp_path, protocol))


def jpwleg_files(folder, grid, suffix, count=3, split="test"):
    """Write files in the released format: shuffled pictures, centre in place, one-hot labels."""
    side, rng = 96, np.random.default_rng(1)
    cells, centre = grid * grid, grid * grid // 2
    others = [c for c in range(cells) if c != centre]
    images = np.zeros((count, grid * side, grid * side, 3), np.uint8)
    labels = np.zeros((count, cells - 1, cells - 1), bool)
    originals = []
    for number in range(count):
        whole = np.asarray(Image.fromarray(PHOTO).resize((grid * side, grid * side)))
        whole = np.roll(whole, 31 * number, axis=1)
        originals.append(whole)
        for i, j in enumerate(rng.permutation(cells - 1)):
            labels[number, i, j] = True  # non-centre piece i belongs in non-centre cell j
        for at in range(cells):
            home = centre if at == centre else others[labels[number, others.index(at)].argmax()]
            row, column, r, c = (side * v for v in (*divmod(at, grid), *divmod(home, grid)))
            images[number, row : row + side, column : column + side] = whole[
                r : r + side, c : c + side
            ]
    np.save(folder / f"{split}_img_{suffix}.npy", images)
    np.save(folder / f"{split}_label_{suffix}.npy", labels)
    return originals


@pytest.mark.parametrize(("grid", "suffix"), [(3, "48gap_33"), (5, "12gap_55")])
def test_released_jpwleg_files(tmp_path, grid, suffix):
    originals = jpwleg_files(tmp_path, grid, suffix)
    centre = grid * grid // 2
    fixed = list(read_data(tmp_path, PROTOCOLS[f"jpwleg-{grid}-fixed-centre"]))
    free = list(read_data(tmp_path / f"test_img_{suffix}.npy", PROTOCOLS[f"jpwleg-{grid}"]))
    assert len(fixed) == len(free) == 3
    for whole, (_, given), (_, hidden) in zip(originals, fixed, free, strict=True):
        for puzzle in (given, hidden):
            assert np.array_equal(assemble(puzzle.pieces, puzzle.truth, puzzle.grid), whole)
        assert given.settings["given"] == {centre: centre}
        assert "given" not in hidden.settings
    # All three centres still in the middle would betray them to a solver that has to find them.
    assert any(puzzle.truth[centre] != centre for _, puzzle in free)
    assert [i for i, _ in read_data(tmp_path, PROTOCOLS[f"jpwleg-{grid}"], limit=1)] == [0]


def test_train_file_with_its_download_suffix(tmp_path):
    jpwleg_files(tmp_path, 3, "48gap_33", 1, "train")
    (tmp_path / "train_img_48gap_33.npy").rename(tmp_path / "train_img_48gap_33-001.npy")
    assert list(read_data(tmp_path / "train_img_48gap_33-001.npy", PROTOCOLS["jpwleg-3"]))
    with pytest.raises(PuzzleError, match="holds 0 files test_img_48gap_33"):
        list(read_data(tmp_path, PROTOCOLS["jpwleg-3"]))


def test_jpwleg_files_that_do_not_fit(tmp_path):
    jpwleg_files(tmp_path, 3, "48gap_33")
    image, label = (tmp_path / f"test_{k}_48gap_33.npy" for k in ("img", "label"))

    def refused(words, protocol="jpwleg-3", path=image):
        with pytest.raises(PuzlmError, match=words):
            list(read_data(path, PROTOCOLS[protocol]))

    refused("needs a file named SPLIT_img_12gap_55.npy", "jpwleg-5")
    refused("fit jpwleg-3 and jpwleg-5, not imagenet-3x3", "imagenet-3x3")
    good = np.load(label)
    np.save(label, np.concatenate([good[:, :1], good[:, :1], good[:, 2:]], axis=1))
    refused("label 0 is not a permutation")
    np.save(label, good[:2])
    refused(r"holds \(2, 8, 8\), jpwleg-3 needs \(3, 8, 8\)")
    np.save(label, np.array([object()]), allow_pickle=True)
    refused("not an .npy file that can be read")
    label.unlink()
    refused("are not beside it")
    np.save(label, good)
    np.save(image, np.zeros((3, 280, 280, 3), np.uint8))
    refused(r"holds \(3, 280, 280, 3\) of uint8, jpwleg-3 needs \(n, 288, 288, 3\)")
    image.write_bytes(b"\x93NUMPY")
    refused("not an .npy file that can be read")


def kaggle_files(folder, labels):
    rows = [",image,label"]
    for number, label in enumerate(labels):
        whole, shuffled = PHOTO[number : number + 201, :201], np.zeros((201, 201, 3), np.uint8)
        for at, home in enumerate(label):
            row, column, r, c = (67 * v for v in (*divmod(at, 3), *divmod(home, 3)))
            shuffled[row : row + 67, column : column + 67] = whole[r : r + 67, c : c + 67]
        write(folder / "test" / f"{number}.png", shuffled)
        rows.append(f"{number},{number}.png,{' '.join(map(str, label))} ")
    (folder / "test.csv").write_text("\n".join(rows) + "\n")


def test_kaggle_csv(tmp_path):
    labels = [[5, 3, 2, 8, 1, 0, 4, 6, 7], [3, 7, 8, 1, 5, 6, 0, 4, 2]]
    kaggle_files(tmp_path, labels)
    for path in (tmp_path, tmp_path / "test.csv"):
        found = list(read_data(path, PROTOCOLS["kaggle-3x3"]))
        assert [p.truth.tolist() for _, p in found] == labels
        for number, (index, puzzle) in enumerate(found):
            assert index == number and puzzle.settings["scale"] == 1.0
            whole = assemble(puzzle.pieces, puzzle.truth, (3, 3))
            assert np.array_equal(whole, PHOTO[number : number + 201, :201])
    assert len(list(islice(read_data(tmp_path, PROTOCOLS["kaggle-3x3"], 1), 5))) == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("5 3 2", "5 5 2", "label '5 5 2 8 1 0 4 6 7 ' of 0.png is not a permutation of 0 to 8"),
        ("5 3 2", "5 x 2", "is not a permutation"),
        ("0.png", "../0.png", "is not a plain file name"),
        ("0.png", "9.png", "9.png: no such file"),
        ("image,label", "picture,label", "no readable columns"),
    ],
)
def test_kaggle_csv_that_is_wrong(tmp_path, old, new, words):
    kaggle_files(tmp_path, [[5, 3, 2, 8, 1, 0, 4, 6, 7]])
    table = tmp_path / "test.csv"
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(PuzlmError, match=re.escape(words)):
        list(read_data(tmp_path, PROTOCOLS["kaggle-3x3"]))


def test_kaggle_needs_its_table(tmp_path):
    write(tmp_path / "test" / "0.png", PHOTO)
    with pytest.raises(PuzzleError, match="needs test.csv"):
        list(read_data(tmp_path, PROTOCOLS["kaggle-3x3"]))


def test_damaged_tar(tmp_path):
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    (tmp_path / "a.tar").write_bytes(whole.getvalue())
    (tmp_path / "b.tar").write_bytes(b"nothing of the kind")
    with pytest.raises(ImageError, match="holds no images"):
        list(read_data(tmp_path / "a.tar", PROTOCOLS["imagenet-3x3"]))
    with pytest.raises(ImageError, match="neither a folder"):
        list(read_data(tmp_path / "b.tar", PROTOCOLS["imagenet-3x3"]))


def test_the_page_lists_every_protocol_as_it_is():
    page = (Path(__file__).parents[2] / "docs" / "protocols.md").read_text()
    rows = {}
    for line in page.splitlines():
        if line.startswith("| `"):
            name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            rows[name.strip("`")] = cells
    assert set(rows) == set(PROTOCOLS)
    for name, (grid, image, cell, piece, gap, *_) in rows.items():
        protocol = PROTOCOLS[name]
        assert grid == f"{protocol.grid[0]}x{protocol.grid[1]}"
        numbers = [int(re.match(r"\d+", text)[0]) for text in (cell, piece, gap)]
        assert numbers == [protocol.cell, protocol.piece, protocol.gap], name
        assert image.startswith(str(protocol.resize) if protocol.resize else "as it is")


def test_the_default_solver_turns_the_pieces_of_a_protocol_that_turned_them():
    puzzle = make_puzzle(PROTOCOLS["paintings-type2-6x6"], PHOTO, 0)
    turned = Solver.from_pretrained().solve(puzzle)
    whole = (np.array(turned.turns) - puzzle.settings["turns"]) % 4
    assert len(set(whole.tolist())) == 1  # nobody says which way up the picture is
