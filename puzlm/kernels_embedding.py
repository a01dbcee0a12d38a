# mypy: ignore-errors
"""The gradient of an embedding without atomic additions, in Triton; on a CPU by torch.

Ids are sorted once. A program takes some rows of the gradient in that order and sums up runs of
equal ids by a product with a matrix of zeros and ones: all its reads are under way at once, and
sums stay in float32. A run that lies in one program's rows is written to its place; the parts of
longer ones are added up by a second kernel, always in the same order.

Annotations are not postponed: Triton reads them.
"""

import importlib.util

import torch

ROWS = 32  # of the gradient, for one program
MOST_IDS = 65_536  # ids of 16 bits are sorted in two passes, of 64 bits in eight

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _runs_kernel(
        ids, order, grad, out, parts, count,
        REPEAT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Sums of the runs in ROWS sorted rows: whole runs to out, the first and the last part of
        others to parts (programs, 2, WIDTH). REPEAT ids share a row of the gradient."""
        start = tl.program_id(0) * ROWS
        places = start + tl.arange(0, ROWS)
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        there, wide = places < count, columns < WIDTH
        here = tl.load(ids + places, there, other=-1).to(tl.int32)
        before = tl.load(ids + places - 1, there & (places > 0), other=-1).to(tl.int32)
        # The same ids along the other axis: a second read is cheaper than turning the first.
        again = start + tl.arange(0, ROWS)
        other = tl.load(ids + again, again < count, other=-2).to(tl.int32)
        after = tl.load(ids + start + ROWS, start + ROWS < count, other=-1).to(tl.int32)
        rows = tl.load(order + places, there, other=0) // REPEAT
        values = tl.load(grad + rows[:, None] * WIDTH + columns[None, :],
                         there[:, None] & wide[None, :], other=0.0)  # fmt: skip
        same = (here[:, None] == other[None, :]).to(values.dtype)
        sums = tl.dot(same, values, input_precision="ieee")
        first = there & ((here != before) | (places == start))
        earlier = (places == start) & (here == before)
        part = earlier | (here == after)
        at = out + here.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        tl.store(at, sums, (first & (part == 0))[:, None] & wide[None, :])
        line = tl.program_id(0) * 2 + tl.where(earlier, 0, 1)
        at = parts + line[:, None] * WIDTH + columns[None, :]
        tl.store(at, sums, (first & part)[:, None] & wide[None, :])

    @triton.jit
    def _join_kernel(
        starts, parts, out, hidden,
        WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    ):  # fmt: skip
        """Zeros for an id that does not occur or learns nothing; the parts of a long run added."""
        number = tl.program_id(0)
        columns = tl.arange(0, COLUMNS)
        wide = columns < WIDTH
        start, end = tl.load(starts + number), tl.load(starts + number + 1)
        first, last = start // ROWS, (end - 1) // ROWS
        at = out + number.to(tl.int64) * WIDTH + columns
        if (start == end) | (number == hidden):
            tl.store(at, tl.zeros([COLUMNS], tl.float32), wide)
        elif first < last:
            total = tl.load(parts + (first * 2 + 1) * WIDTH + columns, wide, other=0.0)
            for chunk in range(first + 1, last + 1, STEP):
                lines = chunk + tl.arange(0, STEP)
                some = tl.load(parts + lines[:, None] * (2 * WIDTH) + columns[None, :],
                               (lines <= last)[:, None] & wide[None, :], other=0.0)  # fmt: skip
                total += tl.sum(some, 0)
            tl.store(at, total, wide)


@torch.library.custom_op(
    "puzlm::embedding_backward",
    mutates_args=(),
    schema="(Tensor ids, Tensor grad, int rows, int hidden) -> Tensor",
)
def embedding_backward(ids, grad, rows, hidden):
    """Gradient (rows, d) in float32 of a table, from that of what was read, (n, d).

    `ids` are (n, F): the sum of F rows of the table was read. The row `hidden` learns nothing.
    """
    repeat, width = ids.shape[1], grad.shape[1]
    if not grad.is_cuda:
        out = torch.zeros(rows, width)
        out.index_add_(0, ids.flatten(), grad.float().repeat_interleave(repeat, 0))
        out[hidden] = 0
        return out
    flat = ids.flatten()
    if rows <= MOST_IDS:
        small, order = (flat - 32768).to(torch.int16).sort(stable=True)
        kept = small.to(torch.int32) + 32768
    else:
        kept, order = flat.sort(stable=True)
    numbers = torch.arange(rows + 1, dtype=kept.dtype, device=grad.device)
    starts = torch.searchsorted(kept, numbers)
    programs = triton.cdiv(len(kept), ROWS)
    out = torch.empty(rows, width, dtype=torch.float32, device=grad.device)
    parts = torch.empty(programs, 2, width, dtype=torch.float32, device=grad.device)
    _runs_kernel[(programs, triton.cdiv(width, 128))](
        kept, order, grad.contiguous(), out, parts, len(kept), REPEAT=repeat, WIDTH=width,
        ROWS=ROWS, COLUMNS=128, num_warps=4,
    )  # fmt: skip
    _join_kernel[(rows,)](
        starts, parts, out, hidden, WIDTH=width, ROWS=ROWS,
        COLUMNS=triton.next_power_of_2(width), STEP=8, num_warps=4,
    )  # fmt: skip
    return out


@embedding_backward.register_fake
def _(ids, grad, rows, hidden):
    return grad.new_empty(rows, grad.shape[1], dtype=torch.float32)
