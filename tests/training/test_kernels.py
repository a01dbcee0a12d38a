"""The Triton kernels against their eager twins, run by Triton's interpreter: no GPU is needed.

Triton does not come with torch for CPUs (`pip install triton`); without it nothing is tested.
"""

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)

START = """
import sys, torch, triton
from triton.runtime import interpreter
from puzlm.training.fast import kernels as k
plain_patch = interpreter._patch_lang_tensor
def patched(tensor, scope):
    plain_patch(tensor, scope)  # whose int() of an array of one number a newer numpy refuses
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
interpreter._patch_lang_tensor = patched
torch.manual_seed(0)
def near(got, want, bound=1e-5):
    assert float((got - want).abs().max()) < bound * max(1.0, float(want.abs().max())), (got, want)
"""
ATTENTION = """
length, causal, rows = {length}, {causal}, {rows}
qkv, grad = torch.randn(2, length, 3 * 64), torch.randn(2, length, 64)
block = max(16, triton.next_power_of_2(length))
same = dict(LENGTH=length, HEADS=2, CAUSAL=causal, BLOCK=block, SIZE=32, ROWS=min(rows, block))
scale = 32**-0.5 * k.LOG2E
out, logs = torch.full((2, length, 64), 9.0), torch.full((2, 2, length), 9.0)
k._attend_kernel[(4, triton.cdiv(length, same["ROWS"]))](qkv, out, logs, scale, **same)
want, want_logs = k.attend(qkv, 2, causal)
near(out, want)
near(logs, want_logs)
back, sums = torch.full_like(qkv, 9.0), torch.full((2, 192), 9.0)
k._attend_backward_kernel[(4, 1)](qkv, out, logs, grad, back, sums, scale, **same)
want, want_sums = k.attend_backward(qkv, want, want_logs, grad, 2, causal)
near(back, want)
near(sums, want_sums)
"""
TAIL = """
length = {length}
qkv, grad = torch.randn(2, length, 3 * 64), torch.randn(2, length, 64)
out, logs = torch.full((2, length, 64), 9.0), torch.full((2, 2, length), 9.0)
k._launch("attend", (qkv, out, logs), length, 2, False)
want, want_logs = k.attend(qkv, 2, False)
near(out, want)
near(logs, want_logs)
back, sums = torch.full_like(qkv, 9.0), torch.full((2, 192), 9.0)
k._launch("attend_backward", (qkv, out, logs, grad, back, sums), length, 2, False)
want, want_sums = k.attend_backward(qkv, want, want_logs, grad, 2, False)
near(back, want)
near(sums, want_sums)
try:
    k._launch("attend", (qkv, out, logs), length, 2, True)
except AssertionError:
    sys.exit()
sys.exit("a mask was ignored")
"""
GELU = """
h, grad = torch.randn(7, 64), torch.randn(7, 64)
out = torch.full_like(h, 9.0)
k._gelu_kernel[(3,)](h, out, 7, WIDTH=64)
near(out, torch.nn.functional.gelu(h))
back, sums = torch.full_like(h, 9.0), torch.full((3, 64), 9.0)
k._gelu_backward_kernel[(3,)](grad, h, back, sums, 7, WIDTH=64)
want = k.gelu_backward(grad, h)[0]
near(back, want)
near(sums.sum(0), want.sum(0))
"""
EIGHT = """
import triton.language as tl
from puzlm.training.fast import kernels_fp8 as k

@triton.jit
def word(a, b, c, d, E5: tl.constexpr):
    \"\"\"The interpreter knows no assembler.\"\"\"
    if E5:
        a, b, c, d = a.to(tl.float8e5), b.to(tl.float8e5), c.to(tl.float8e5), d.to(tl.float8e5)
    else:
        a, b = a.to(tl.float8e4nv), b.to(tl.float8e4nv)
        c, d = c.to(tl.float8e4nv), d.to(tl.float8e4nv)
    a, b = a.to(tl.uint8, bitcast=True).to(tl.uint32), b.to(tl.uint8, bitcast=True).to(tl.uint32)
    c, d = c.to(tl.uint8, bitcast=True).to(tl.uint32), d.to(tl.uint8, bitcast=True).to(tl.uint32)
    return (a | (b << 8) | (c << 16) | (d << 24)).to(tl.int32, bitcast=True)

k._word = word
def off(got, want):
    return float((got.float() - want.float()).norm() / want.float().norm())
def room(*shape):  # 0x70 is large, and no number that could be right by chance
    return torch.full(shape, 0x70, dtype=torch.uint8).view(dtype)
n, d = 128, 256
h, grad, gain, shift = torch.randn(n, d), torch.randn(n, d), torch.rand(d) + 0.5, torch.randn(d)
gain[3] = 0.0  # leaves nothing to read back
dtype = k.E4  # the interpreter rounds towards 0
small, turned = room(n, d), room(d, n)
k._gelu_kernel[(n // 32, 1)](h, small, turned.view(torch.int32), n, WIDTH=d, SCALE=k.ACTIVE, R=8,
                             C=256)
assert off(small, k.gelu(h)[0]) < 0.1 and torch.equal(turned.float(), small.float().t())
dtype = k.E5
small, turned, sums = room(n, d), room(d, n), torch.full((2, d), 9.0)
k._gelu_backward_kernel[(2, 2)](
    grad, h, small, turned.view(torch.int32), sums, n, 4.0, WIDTH=d, R=16, C=128)
want = k.gelu_backward(grad, h, 4.0)
assert off(small, want[0]) < 0.2 and torch.equal(turned.float(), small.float().t())
assert off(sums.sum(0), want[2]) < 1e-5
again = room(d, n)
k._turn_kernel[(1, 2)](small.view(torch.uint8), again.view(torch.int32), n, d, R=32, C=128)
assert torch.equal(again.float(), turned.float())
dtype = k.E4
out, spread, small = torch.full((n, d), 9.0), torch.full((n, 1), 9.0), room(n, d)
k._norm_kernel[(n // 4,)](h, grad, gain, shift, out, small, spread, D=d, R=4, SCALE=k.NORMED,
                          LAST=False)
want = k.norm(h, grad, gain, shift)
assert off(out, want[0]) < 1e-5 and off(small, want[1]) < 0.1 and off(spread, want[2]) < 1e-5
dtype = k.E5
back, small, sums = torch.full((n, d), 9.0), room(n, d), torch.full((3, 3, d), 9.0)
k._norm_backward_kernel[(3,)](grad, h, out, spread, gain, shift, back, small, sums, n // 4, 4.0,
                              D=d, R=4, BOTH=True, LEAST=k.LEAST)
want = k.norm_backward(grad, h, out, spread, gain, shift, 4.0)
assert off(back, want[0]) < 1e-5 and off(small, want[1]) < 0.2 and off(sums.sum(0), want[2]) < 1e-5
dtype = k.E4
small, most = room(n, d), h.abs().amax()
k._round_kernel[(n * d // 2048,)](h, most, small, LARGEST=448.0, SIZE=2048)
assert off(small, k.small(h, most, 448.0)) < 0.1
"""
WORDS = """
from puzlm.training.fast import kernels_words as k
def off(got, want):
    return float((got.float() - want.float()).norm() / want.float().norm())
batch, length, d, words = 10, 12, 64, 30  # the last of 4 sentences at a time are half empty
ids = torch.randint(4, words, (batch, length))
ids[:, 5], ids[2:4, 7] = k.SEP, k.PAD
table, places, gain, shift = (torch.randn(n, d) for n in (words, length, 1, 1))
gain, shift = gain[0].abs() + 0.5, shift[0]
n = batch * length
out, spread = torch.full((n, d), 9.0), torch.full((n, 1), 9.0)
small = torch.full((n, d), 0x70, dtype=torch.uint8).view(k.E4)
k._start_kernel[(n // 4,)](ids, table, places, gain, shift, out, small, spread, LENGTH=length, D=d,
                           R=4, SCALE=k.NORMED)
want = k.start(ids, table, places, gain, shift, torch.float32)
near(out, want[0])
near(spread, want[2])
assert off(small, want[1]) < 0.1
a, b = torch.randn(n, d), torch.randn(n, d)
found, sums = torch.zeros(words, d), torch.full((2, length, 3, d), 9.0)
k._start_backward_kernel[(length, 2)](a, b, out, spread, ids, gain, shift, found, sums, batch,
    LENGTH=length, D=d, R=4, SEP=k.SEP, PAD=k.PAD, LEAST=k.LEAST)
want = k.start_backward(a, b, out, spread, ids, gain, shift, words)
near(found, want[0])
near(sums[:, :, 2].sum(0), want[1])
near(sums[:, :, 0].sum((0, 1)), want[2])
near(sums[:, :, 1].sum((0, 1)), want[3])
for step in (3, 4):
    states, means = torch.randn(2, 3 * step - (step == 4), d), torch.full((2, 3, d), 9.0)
    k._pool_kernel[(6,)](states, means, LENGTH=states.shape[1], CELLS=3, B=3, STEP=step, D=d)
    near(means, k.pool(states, 3, 3))
"""
NEAREST = """
from puzlm.training.fast import kernels_nearest as k
x, c = torch.randn(50, 96), torch.randn(300, 96)  # the interpreter knows no bfloat16
half = (c**2).sum(1) / 2
found = torch.full((50,), -1)
k._nearest_kernel[(triton.cdiv(50, 32),)](x, c, half, found, 50, 300, DEPTH=96, ROWS=32, COLUMNS=64,
                                         STEP=64)
assert torch.equal(found, k.nearest(x, c, half))
"""
NEAREST_HALF = """
from puzlm.training.fast import kernels_nearest as k
x, c = torch.randn(50, 2, 32).half(), torch.randn(256, 2, 32).half()
c[100] = c[10] = c[200] = 5 * c[30]  # the farthest of all, thrice: the first one counts
half = (c.float().sum(1) ** 2).sum(1) / 20
half[250:] = float("inf")
found = torch.full((50,), -1)
k._nearest_half_kernel[(2,)](x, c, half, found, 50, COUNT=256, WIDE=32, ROWS=32, COLUMNS=64)
assert torch.equal(found, k.nearest_half(x, c, half))
assert (found == 10).any() and len(set(found.tolist())) > 5
"""
CUT = """
import numpy as np
from puzlm.training.fast import kernels_cut as k
from puzlm.training.corpus import Album, CutSettings, draw_batch
side, depth, rows, columns = {side}, {depth}, {rows}, {columns}
rng = np.random.default_rng(0)
album = Album.of([rng.integers(0, 256, (*s, 3), np.uint8) for s in {sizes}]).with_words()
settings = CutSettings("1x2", gap_share=0.5, jitter=0.5, colour=1.0, min_crop=0.5)
draw = draw_batch(album.sizes.numpy(), 3, settings, (0,))
assert draw.flip.any() and not draw.flip.all()
drawn = [torch.from_numpy(np.ascontiguousarray(a)) for a in vars(draw).values()][:5]
parts = [album.words, album.offsets, album.sizes, *drawn]
out = torch.full((6, side, side, 4), 7, dtype=torch.uint8)
tiles = triton.cdiv(side, rows) * triton.cdiv(side, columns)
first = torch.full((3, 2, side), -9, dtype=torch.int32)
shares = torch.full((3, 2, 4, side), 9.0)
k._shares_kernel[(6,)](drawn[1], first, shares, SIDE=side, BLOCK=triton.next_power_of_2(side))
k._cut_kernel[(6, tiles)](*parts, first, shares, out.view(torch.int32), CELLS=2, SIDE=side,
                          DEPTH=depth, ROWS=rows, COLUMNS=columns)
assert torch.equal(out, k.cut(*parts, side, depth))
"""
PATCHES = """
grid, patch = {grid}, side // {grid}
for clockwise in (True, False):
    want = k.patches(*parts, grid, patch, clockwise)
    got = torch.full_like(want, 9.0)
    k._patches_kernel[(6, 2 * grid - 2)](
        *parts, first, shares, got, CELLS=2, GRID=grid, PATCH=patch, CLOCKWISE=clockwise, ROWS=rows,
        COLUMNS=columns)
    assert torch.equal(got, want)
"""


def interpreted(text):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", START + text],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("length", "causal", "rows"), [(116, False, 32), (70, True, 128), (9, True, 16)]
)
def test_attention(length, causal, rows):
    interpreted(ATTENTION.format(length=length, causal=causal, rows=rows))


@pytest.mark.parametrize("length", [144, 130, 152])
def test_attention_with_a_tail(length):
    interpreted(TAIL.format(length=length))


def test_gelu():
    interpreted(GELU)


def test_between_products_in_8_bits():
    interpreted(EIGHT)


def test_where_sentences_begin_and_pieces_end():
    interpreted(WORDS)


def test_nearest_centroid():
    interpreted(NEAREST)


def test_nearest_centroid_in_float16():
    """Two numbers for each; of equal centroids the first."""
    interpreted(NEAREST_HALF)


@pytest.mark.parametrize(
    ("side", "depth", "tile", "sizes"),
    [
        (16, 0, (8, 16), ((12, 20), (13, 31))),  # two taps a side
        (12, 4, (4, 4), ((40, 50), (30, 64))),  # shrunk: four; a tile that nobody reads
        (10, 3, (4, 8), ((19, 9), (8, 33))),  # tiles beyond the side
    ],
)
def test_cut(side, depth, tile, sizes):
    """Not one grey level is another, in pieces and in rows of patches."""
    text = CUT.format(side=side, depth=depth, rows=tile[0], columns=tile[1], sizes=sizes)
    interpreted(text + PATCHES.format(grid=4 if side % 4 == 0 else 2))
