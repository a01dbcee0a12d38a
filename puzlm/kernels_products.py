# mypy: ignore-errors
"""Matrix products that do a little more, behind torch operators that also run on a CPU."""

import torch


@torch.library.custom_op(
    "puzlm::two_products",
    mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor c, Tensor d) -> Tensor",
)
def two_products(a, b, c, d):
    """a b + c d, batch by batch: the second product adds to what the first wrote."""
    return torch.bmm(a, b).baddbmm_(c, d)


@two_products.register_fake
def _(a, b, c, d):
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])
