"""What a training step may do differently, each with its own switch: to be measured, taken back."""

from __future__ import annotations

from dataclasses import dataclass

from puzlm.errors import SettingsError


@dataclass(frozen=True)
class Tricks:
    """What a training step may do differently; the defaults are the plain ways."""

    tokens: str = "float32"
    """Products of the tokenizer: 'float32', 'split' (three bfloat16 terms a factor, sums in
    float32, arg-max in the same kernel), 'half' (two float16 terms: half the products, and no more
    other symbols) or 'bfloat16' (one term)."""
    cut: bool = False
    """The cut in a kernel of its own (kernels_cut.cut, from pixels of four bytes): the same grey
    levels; what the tokenizer does not read of a piece is not cut."""
    patches: bool = False
    """With cut, tokens 'half' and one symbol a square patch: the cut writes the rows of patches
    that the PCA multiplies, so that no pass gathers and converts them."""
    aligned: bool = False
    """Cross-attention scores as tokens x queries: rows of 72 numbers lie on 16 bytes, rows of 116
    do not, and the matrix units need that."""
    padded: bool = False
    """Cross-attention's backward pass written out, so that none of its products has rows of 116
    numbers and the second adds to what the first wrote; the cells' head padded to 8 rows."""
    cross: bool = False
    """Cross-attention in kernels of its own (kernels_cross.py), by heads, where it suits."""
    gathered: bool = False
    """With blocks: the gradients of the encoder states, one from each reader, are added up in one
    pass instead of one after the other."""
    heads16: bool = False
    """The training-only heads in the dtype of the activations instead of float32."""
    gelu: str = "library"
    """'library'; 'shared': one exponential gives the error function (within 2e-7) and, in the
    backward pass, the density beside it; 'kernel': the same in kernels of its own, which also sum
    up the gradient of the bias."""
    attention: str = "library"
    """'library' (torch chooses), or 'kernel' (kernels.attend) where it suits: up to 160 tokens."""
    fp8: bool = False
    """With blocks: the encoder's products in 8 bits, forward and backward, with kernels of its own
    between them (fast8.py), where it suits."""
    start: bool = False
    """With fp8, one symbol a position: embeddings gathered, normed and learned in kernels of their
    own (kernels_words.py)."""
    pooled: bool = False
    """Means of the pieces' states in a kernel of its own."""
    blocks: bool = False
    """Layers compiled one by one: all layers of a stack share their code, so the compiler works
    half as long; the launches this costs are free in a graph."""
    graph: bool = False
    """The whole step as one CUDA graph."""
    ahead: bool = False
    """With graph: the next batch is cut, tokenised and sorted on a stream of its own beside it."""

    def __post_init__(self) -> None:
        allowed: dict[str, tuple[str, ...]] = {
            "tokens": ("float32", "split", "half", "bfloat16"),
            "gelu": ("library", "shared", "kernel"),
            "attention": ("library", "kernel"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise SettingsError(f"trick {name} '{getattr(self, name)}': one of {values}")


PLAIN = Tricks()
# What the fast loop trains with: measured faster, and the same within rounding (docs/speed.md).
PROVEN = Tricks(
    tokens="half",
    cut=True,
    patches=True,
    aligned=True,
    padded=True,
    cross=True,
    gathered=True,
    heads16=True,
    start=True,
    pooled=True,
    gelu="kernel",
    attention="kernel",
    blocks=True,
    graph=True,
    ahead=True,
)
