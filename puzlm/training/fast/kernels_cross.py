# mypy: ignore-errors
"""Cross-attention in its absorbed form, for Hopper, behind operators that also run on a CPU.

    mean, kept = cross(q, states)                  q, mean: (heads, B * N, d), states: (B, T, d)
    dq, dstates = cross_backward(q, states, kept, grad)     grad, dq: as q; dstates: as states

Of puzzle b, query r = h * N + l (head h, position l) is row [h, b * N + l]: as the products by
heads before and after it write and read them, so that nothing is permuted. kept (B, T, wide) has
the shares; wide is heads * N rounded up to a multiple of 8. Library products read the states six
times, and permuted queries and means twice; the kernels (gluon_cross.py) once and never.
"""

import functools

import torch

from puzlm.training.fast import gluon_parts

if gluon_parts.THERE:
    import triton

    from puzlm.training.fast.gluon_cross import cross_backward_kernel, cross_kernel


def suits(heads: int, positions: int, length: int, d: int, device: str) -> bool:
    """Whether the kernels can take it (on a GPU in bfloat16)."""
    fits = d in (256, 512) and length <= 128 and heads * positions <= 128
    return fits and ("cuda" not in device or gluon_parts.runs_on(device))


@functools.cache
def _processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


def _shape(q, states):
    heads, rows, d = q.shape
    batch, length, _ = states.shape
    assert batch < 2**23 and q.numel() < 2**31, (q.shape, states.shape)
    positions = rows // batch
    wide = -(-heads * positions // 8) * 8
    tail = max(16, triton.next_power_of_2(heads * positions - 64))
    same = {"T": length, "N": positions, "HEADS": heads, "D": d, "WIDE": wide, "TAIL": tail}
    return (min(batch, _processors(q.device)),), batch, rows * d, same


@torch.library.custom_op(
    "puzlm::cross", mutates_args=(), schema="(Tensor q, Tensor states) -> (Tensor, Tensor)"
)
def cross(q, states):
    """Means of the states under softmax shares, and those shares."""
    q, states = q.contiguous(), states.contiguous()
    if q.is_cuda:
        programs, batch, head, same = _shape(q, states)
        mean = torch.empty_like(q)
        kept = q.new_empty(batch, same["T"], same["WIDE"])
        slots = 5 if same["D"] == 512 else 4  # what shared memory has room for
        cross_kernel[programs](q, states, mean, kept, batch, head, **same, R=slots, num_warps=8)
        return mean, kept
    rows = by_puzzle(q, len(states))
    shares = (states @ rows.transpose(1, 2)).float().softmax(1).to(q.dtype)
    more = -shares.shape[2] % 8
    return _by_head(shares.transpose(1, 2) @ states, q), torch.nn.functional.pad(shares, (0, more))


@cross.register_fake
def _(q, states):
    wide = -(-q.shape[0] * (q.shape[1] // len(states)) // 8) * 8
    return q.new_empty(q.shape), q.new_empty(*states.shape[:2], wide)


@torch.library.custom_op(
    "puzlm::cross_backward",
    mutates_args=(),
    schema="(Tensor q, Tensor states, Tensor kept, Tensor grad) -> (Tensor, Tensor)",
)
def cross_backward(q, states, kept, grad):
    """Gradients of queries and states."""
    q, states, grad = q.contiguous(), states.contiguous(), grad.contiguous()
    if q.is_cuda:
        programs, batch, head, same = _shape(q, states)
        dq, ds = torch.empty_like(q), torch.empty_like(states)
        slots = 6 if same["TAIL"] == 16 else 4  # what shared memory has room for
        cross_backward_kernel[programs](
            q, states, kept, grad, dq, ds, batch, head, **same, R=slots, num_warps=8
        )
        return dq, ds
    rows, back = by_puzzle(q, len(states)), by_puzzle(grad, len(states))
    shares = kept[:, :, : rows.shape[1]]
    wide, scores = shares.float(), (states @ back.transpose(1, 2)).float()
    scores = (wide * (scores - (wide * scores).sum(1, keepdim=True))).to(q.dtype)
    return _by_head(scores.transpose(1, 2) @ states, q), shares @ back + scores @ rows


@cross_backward.register_fake
def _(q, states, kept, grad):
    return q.new_empty(q.shape), states.new_empty(states.shape)


def by_puzzle(x: torch.Tensor, batch: int) -> torch.Tensor:
    """(heads, B * N, d) -> (B, heads * N, d)."""
    heads, _, d = x.shape
    return x.view(heads, batch, -1, d).transpose(0, 1).reshape(batch, -1, d)


def _by_head(x, like):
    """And back."""
    heads, rows, d = like.shape
    return x.view(len(x), heads, -1, d).transpose(0, 1).reshape(heads, rows, d)
