"""Learned image tokenizers, to be measured against PieceTokenizer: a VQ-VAE and a 1-D tokenizer.

    vqvae  convolutions shrink a piece eightfold; each of the 8 x 8 places takes its nearest code
    titok  a transformer reads the patches together with K extra tokens; these alone become codes

Both learn by drawing the piece again (mean squared error), on the pieces that the other tokenizers
are fitted on. They are scaled down from the published ones: pieces of 64 px instead of images of
256 px, widths of 96 to 256 instead of up to 1024, one stage of training without adversarial or
perceptual losses. Token counts and numbers of codes are the published ones.

A LearnedTokenizer writes sentences as PieceTokenizer does: only the symbols come from elsewhere.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from puzlm.errors import ModelError, SettingsError, nearest
from puzlm.model_files import read_settings, save
from puzlm.tokenizer.kmeans import Array, Codebook
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, TokenizerSettings, read_safetensors

KINDS = ("vqvae", "titok")
SHRINK = 8  # pixels of one place of the VQ-VAE, and of one patch of the 1-D tokenizer
CHUNK = 2304  # pieces encoded at a time
DECAY = 0.97  # of the codes' running means
IDLE = 0.02  # a code whose running count is below this share of the even one moves to a used place


@dataclass(frozen=True)
class LearnedSettings(TokenizerSettings):
    """A learned tokenizer; of the inherited settings those of patches and PCA do not apply."""

    vocab_size: int = 4096
    piece_size: int = 64
    kind: str = "vqvae"
    """vqvae or titok."""
    tokens: int = 64
    """Tokens a piece. A VQ-VAE has (piece_size / 8)^2 of them."""
    width: int = 96
    """Channels of the VQ-VAE, d_model of the 1-D tokenizer."""
    layers: int = 2
    """Residual blocks of the VQ-VAE, layers of each transformer of the 1-D tokenizer."""
    code_dim: int = 32
    """Dimensions of a code."""
    fit_seconds: float = 30.0
    """Training time."""
    fit_steps: int = 100_000
    """Training steps at most."""
    fit_batch: int = 256
    """Pieces a step."""
    fit_lr: float = 5e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in KINDS:
            raise SettingsError(f"learned.kind '{self.kind}': {nearest(self.kind, KINDS)}")
        if self.side % SHRINK:
            raise SettingsError(f"piece_size {self.piece_size}: must be a multiple of {SHRINK}")
        if self.kind == "vqvae" and self.tokens != (self.side // SHRINK) ** 2:
            raise SettingsError(
                f"learned.tokens {self.tokens}: a VQ-VAE on pieces of {self.side} px has "
                f"{(self.side // SHRINK) ** 2}; change piece_size instead"
            )

    @property
    def border_length(self) -> int:
        """Tokens of a super-token; no border is selected."""
        return self.tokens


class Quantiser(nn.Module):
    """Codes (k, d) as running means of what falls to them; vectors are compared by direction."""

    codes: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, k: int, d: int) -> None:
        super().__init__()
        start = F.normalize(torch.randn(k, d), dim=-1)
        self.register_buffer("codes", start)
        self.register_buffer("counts", torch.ones(k), persistent=False)
        self.register_buffer("sums", start.clone(), persistent=False)
        self.fresh = True

    def nearest(self, z: Tensor) -> Tensor:
        """Symbols (...) of vectors (..., d) of length 1."""
        return (z.float() @ self.codes.T).argmax(-1)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Quantised vectors that pass gradients straight through, and the commitment loss."""
        z = F.normalize(z.float(), dim=-1)
        if self.training and self.fresh:
            self._begin(z.detach().flatten(0, -2))
        symbols = self.nearest(z.detach())
        taken = self.codes[symbols]
        if self.training:
            self._learn(z.detach().flatten(0, -2), symbols.flatten())
        return z + (taken - z).detach(), F.mse_loss(z, taken) * z.shape[-1]

    def _begin(self, z: Tensor) -> None:
        """Start the codes among the first vectors: elsewhere most would never be the nearest."""
        self.codes.copy_(z[torch.randint(0, len(z), (len(self.codes),), device=z.device)])
        self.sums.copy_(self.codes)
        self.fresh = False

    @torch.no_grad()
    def _learn(self, z: Tensor, symbols: Tensor) -> None:
        k = len(self.codes)
        fresh = torch.bincount(symbols, minlength=k).to(self.counts)
        self.counts.lerp_(fresh * k / len(z), 1 - DECAY)
        sums = torch.zeros_like(self.sums).index_add_(0, symbols, z) * (k / len(z))
        self.sums.lerp_(sums, 1 - DECAY)
        idle = self.counts < IDLE
        # As many candidates as codes, and a mask, so that a GPU never has to wait for a count.
        other = z[torch.randint(0, len(z), (k,), device=z.device)]
        self.sums.copy_(torch.where(idle[:, None], other, self.sums))
        self.counts.copy_(torch.where(idle, torch.ones_like(self.counts), self.counts))
        self.codes.copy_(F.normalize(self.sums, dim=-1))


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.GroupNorm(8, width),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(8, width),
            nn.GELU(),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


class VQVAE(nn.Module):
    """Convolutions down to one vector for every 8 x 8 pixels, codes, and up again."""

    def __init__(self, s: LearnedSettings) -> None:
        super().__init__()
        w = s.width
        blocks = [_Residual(w) for _ in range(s.layers)]
        self.encoder = nn.Sequential(
            nn.Conv2d(3, w // 2, 4, 2, 1),
            nn.GELU(),
            nn.Conv2d(w // 2, w, 4, 2, 1),
            nn.GELU(),
            nn.Conv2d(w, w, 4, 2, 1),
            *blocks,
            nn.Conv2d(w, s.code_dim, 1),
        )
        self.quantiser = Quantiser(s.vocab_size, s.code_dim)
        self.decoder = nn.Sequential(
            nn.Conv2d(s.code_dim, w, 3, padding=1),
            *(_Residual(w) for _ in range(s.layers)),
            nn.ConvTranspose2d(w, w, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose2d(w, w // 2, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose2d(w // 2, 3, 4, 2, 1),
        )

    def vectors(self, x: Tensor) -> Tensor:
        """Pieces (n, 3, side, side) in -1 .. 1 -> vectors (n, tokens, code_dim), raster order."""
        z: Tensor = self.encoder(x).flatten(2).transpose(1, 2)
        return z

    def draw(self, z: Tensor) -> Tensor:
        """Vectors -> pieces."""
        side = math.isqrt(z.shape[1])
        square = z.transpose(1, 2).reshape(len(z), -1, side, side)
        drawn: Tensor = self.decoder(square)
        return drawn


class TiTok(nn.Module):
    """Transformers over patches and K latent tokens; only the latent tokens are kept."""

    def __init__(self, s: LearnedSettings) -> None:
        super().__init__()
        w, places, self.tokens = s.width, (s.side // SHRINK) ** 2, s.tokens
        self.side = s.side // SHRINK
        self.patches = nn.Linear(3 * SHRINK**2, w)
        self.read = nn.Parameter(torch.randn(places + s.tokens, w) * 0.02)
        self.encoder = _layers(w, s.layers)
        self.down = nn.Linear(w, s.code_dim)
        self.quantiser = Quantiser(s.vocab_size, s.code_dim)
        self.up = nn.Linear(s.code_dim, w)
        self.written = nn.Parameter(torch.randn(places + s.tokens, w) * 0.02)
        self.decoder = _layers(w, s.layers)
        self.pixels = nn.Linear(w, 3 * SHRINK**2)

    def vectors(self, x: Tensor) -> Tensor:
        """Pieces (n, 3, side, side) in -1 .. 1 -> vectors (n, tokens, code_dim)."""
        seen = self.patches(F.unfold(x, SHRINK, stride=SHRINK).transpose(1, 2))
        seen = F.pad(seen, (0, 0, 0, self.tokens)) + self.read
        z: Tensor = self.down(self.encoder(seen)[:, -self.tokens :])
        return z

    def draw(self, z: Tensor) -> Tensor:
        """Vectors -> pieces."""
        places = self.side**2
        known = F.pad(self.up(z), (0, 0, places, 0)) + self.written
        patches = self.pixels(self.decoder(known)[:, :places])
        return F.fold(patches.transpose(1, 2), self.side * SHRINK, SHRINK, stride=SHRINK)


def _layers(width: int, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        width, max(1, width // 64), 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)


class LearnedTokenizer(PieceTokenizer):
    """A PieceTokenizer whose symbols are the codes of a trained network."""

    settings: LearnedSettings
    net: VQVAE | TiTok
    report_: dict[str, Any]

    def __init__(self, settings: LearnedSettings) -> None:
        self.settings = settings

    @property
    def parameters(self) -> int:
        """Weights that reading needs: the encoder and the codes, not the decoder."""
        skipped = {"decoder", "up", "written", "pixels"}
        weights = [*self.net.named_parameters(), *self.net.named_buffers()]
        skipped |= {"quantiser.counts", "quantiser.sums"}
        return sum(w.numel() for name, w in weights if not {name, name.split(".")[0]} & skipped)

    def fit_canonical(
        self, pieces: Array, *, seed: int = 0, device: str = "cpu", max_iter: int = 25
    ) -> LearnedTokenizer:
        """Train on canonical pieces (n, side, side, 3) for fit_seconds; `report_` says how far."""
        s = self.settings
        if len(pieces) * s.tokens < s.vocab_size:
            raise SettingsError(
                f"vocab_size k = {s.vocab_size} is larger than the {len(pieces) * s.tokens} tokens "
                "to learn from; give more images or a smaller k"
            )
        torch.manual_seed(seed)
        self.net = _network(s).to(device).train()
        optimiser = torch.optim.AdamW(
            self.net.parameters(), lr=s.fit_lr, weight_decay=0.01, fused="cuda" in device
        )
        store = torch.as_tensor(pieces).to(device)
        rng, losses = np.random.default_rng(seed), []
        began, step, share = time.monotonic(), 0, 0.0
        while share < 1:
            for group in optimiser.param_groups:
                group["lr"] = s.fit_lr * min(1, (step + 1) / 50) * math.cos(math.pi / 2 * share)
            rows = torch.from_numpy(rng.integers(0, len(store), s.fit_batch)).to(device)
            x = _picture(store[rows])
            with _half(device):
                z = self.net.vectors(x)
            z, commitment = self.net.quantiser(z)  # in full precision: the nearest code decides
            with _half(device):
                drawn = self.net.draw(z)
            error = F.mse_loss(drawn.float(), x)
            (error + 0.25 * commitment).backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
            step += 1
            if step % 20 == 0 or step == s.fit_steps:
                # Waits for the device, so that the clock is right.
                losses.append(float(error.detach()))
            share = max((time.monotonic() - began) / s.fit_seconds, step / s.fit_steps)
        if not losses or not math.isfinite(losses[-1]):
            raise SettingsError(
                f"the {s.kind} tokenizer learned nothing in {step} steps: lower fit_lr, or raise "
                "fit_seconds"
            )
        self.net.eval()
        used = np.unique(self.encode_canonical(store[: 4 * CHUNK]).cpu().numpy())
        # 1 is the variance of a picture in -1 .. 1 that is black or white at random.
        self.report_ = {
            "steps": step,
            "seconds": round(time.monotonic() - began, 1),
            "error": losses[-1],
            "variance": float(_picture(store[:CHUNK]).var()),
            "codes_used": len(used),
        }
        self.net.cpu()
        return self._ready()

    def _ready(self) -> LearnedTokenizer:
        """Show the codes where others show centroids, so that embeddings can start from them."""
        codes = self.net.quantiser.codes.detach().float().cpu().numpy()
        self.codebooks_ = [Codebook(np.zeros(codes.shape[1], np.float32), None, codes)]
        return self

    @torch.no_grad()
    def encode_canonical(self, x: Array) -> Array:
        """Symbols (n, tokens, 1) of canonical pieces (n, side, side, 3)."""
        device = self.net.quantiser.codes.device
        given = torch.as_tensor(x).to(device)
        parts = []
        for start in range(0, len(given), CHUNK):
            with _half(str(device)):
                z = self.net.vectors(_picture(given[start : start + CHUNK]))
            parts.append(self.net.quantiser.nearest(F.normalize(z.float(), dim=-1)))
        symbols = torch.cat(parts)[..., None]
        return symbols.cpu().numpy() if isinstance(x, np.ndarray) else symbols

    def on(self, device: Any) -> LearnedTokenizer:
        """Copy on a device."""
        twin = LearnedTokenizer(self.settings)
        twin.net = _network(self.settings)
        twin.net.load_state_dict(self.net.state_dict())
        twin.net.to(device).eval()
        return twin._ready()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer.safetensors."""
        save(folder, "tokenizer", self.settings, self.net.state_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> LearnedTokenizer:
        """Read a saved tokenizer; nothing in the files is executed."""
        tokenizer = cls(read_settings(LearnedSettings, Path(folder) / "tokenizer.json"))
        tokenizer.net = _network(tokenizer.settings)
        arrays = read_safetensors(Path(folder) / "tokenizer.safetensors")
        try:
            tokenizer.net.load_state_dict({k: torch.as_tensor(v) for k, v in arrays.items()})
        except RuntimeError as error:
            raise ModelError(f"{folder}: tokenizer.json and .safetensors disagree") from error
        tokenizer.net.eval()
        return tokenizer._ready()


def _network(s: LearnedSettings) -> VQVAE | TiTok:
    return VQVAE(s) if s.kind == "vqvae" else TiTok(s)


def _picture(pieces: Tensor) -> Tensor:
    """Grey levels (n, side, side, 3) -> (n, 3, side, side) in -1 .. 1."""
    return pieces.permute(0, 3, 1, 2).float() / 127.5 - 1


def _half(device: str) -> Any:
    return torch.autocast("cuda", torch.bfloat16, enabled="cuda" in device)
