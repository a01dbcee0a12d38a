"""PCA and k-means in torch, on CPU or GPU, in scikit-learn's estimator shape. Knows no puzzles.

Fitting runs in float64 and rounds the centres to float32 after every step, so that the order in
which a device adds numbers up does not decide which centre a vector falls to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array = Any  # numpy array or torch tensor: `nearest` and Codebook.assign take both
Floats = NDArray[np.float32]

BLOCK = 64  # rows of the pruned search at a time: its tables stay in the cache, 5x faster
CHUNK = 4096  # rows whose distances are held at once: 4096 x 4096 float64 are 134 MB


class PCA:
    """Principal components by the covariance matrix; all of them when n_components is None."""

    def __init__(self, n_components: int | None = None, device: str = "cpu") -> None:
        self.n_components = n_components
        self.device = device

    def fit(self, x: Array) -> PCA:
        """Learn mean_ (D,) and components_ (d, D) from x (n, D)."""
        x = _double(x, self.device)
        mean = x.mean(0)
        cov = sum((part - mean).T @ (part - mean) for part in x.split(CHUNK * 4)) / max(
            1, len(x) - 1
        )
        values, vectors = _eigh(cov)
        vectors = vectors.flip(1).T[: self.n_components]
        # The sign of an eigenvector is free; fix it so that every device gives the same one.
        largest = vectors.abs().argmax(1, keepdim=True)
        vectors = vectors * vectors.gather(1, largest).sign()
        self.mean_ = mean.float().cpu().numpy()
        self.components_ = vectors.float().cpu().numpy()
        self.explained_variance_ratio_ = (
            (values.flip(0)[: self.n_components] / values.sum().clamp_min(1e-12)).cpu().numpy()
        )
        return self

    def transform(self, x: Array) -> Floats:
        """Project x (n, D) to (n, d)."""
        result: Floats = (np.asarray(x, np.float32) - self.mean_) @ self.components_.T
        return result


class KMeans:
    """Lloyd's algorithm from a random start; an empty cluster takes the worst-served vector."""

    def __init__(
        self, n_clusters: int = 8, max_iter: int = 25, random_state: int = 0, device: str = "cpu"
    ) -> None:
        self.n_clusters = n_clusters
        self.max_iter = max_iter
        self.random_state = random_state
        self.device = device

    def fit(self, x: Array) -> KMeans:
        """Learn cluster_centers_ (k, d) and labels_ (n,) from x (n, d)."""
        import torch

        x = _double(x, self.device)
        if len(x) < self.n_clusters:
            raise ValueError(
                f"k = {self.n_clusters} clusters need at least as many vectors, got {len(x)}; "
                "give more images or a smaller k"
            )
        rng = np.random.default_rng(self.random_state)
        start = torch.from_numpy(rng.choice(len(x), self.n_clusters, replace=False))
        centers = _round(x[start.to(x.device)])
        labels = torch.full((len(x),), -1, device=x.device)
        for step in range(1, self.max_iter + 1):
            self.n_iter_, previous = step, labels
            labels, squared = _assign(x, centers)
            counts = torch.bincount(labels, minlength=self.n_clusters)
            sums = torch.zeros_like(centers).index_add_(0, labels, x)
            updated = sums / counts.clamp_min(1).unsqueeze(1)
            empty = (counts == 0).nonzero().squeeze(1)
            if len(empty):
                worst = squared.topk(len(empty)).indices
                updated[empty] = x[worst]
            centers = _round(updated)
            if not len(empty) and bool((labels == previous).all()):
                break
        labels, squared = _assign(x, centers)
        self.cluster_centers_: Floats = centers.float().cpu().numpy()
        self.labels_ = labels.cpu().numpy()
        self.inertia_ = float(squared.sum())
        return self

    def predict(self, x: Array) -> NDArray[np.int64]:
        """Index of the nearest centre for each row of x (n, d)."""
        return np.asarray(nearest(np.asarray(x, np.float32), self.cluster_centers_))


def nearest(x: Array, centroids: Array) -> Array:
    """Index (n,) of the nearest of the centroids (k, d) for each row of x (n, d).

    |x - c|^2 = |x|^2 - 2 (x c - |c|^2 / 2), so the largest x c - |c|^2 / 2 wins. float32: in
    bfloat16 neighbouring symbols would flip.
    """
    half = (centroids * centroids).sum(-1) * 0.5
    if len(x) <= CHUNK or not isinstance(x, np.ndarray):
        return (x @ centroids.T - half).argmax(-1)
    return np.concatenate([nearest(x[i : i + CHUNK], centroids) for i in range(0, len(x), CHUNK)])


class Codebook:
    """PCA and centroids together: vectors (n, D) -> symbols (n,) in 0 .. k - 1."""

    HEAD = 64  # leading PCA dimensions of the first, pruning look (98 % of a patch's variance)

    def __init__(self, mean: Array, components: Array | None, centroids: Array) -> None:
        self.mean, self.components, self.centroids = mean, components, centroids

    @classmethod
    def fit(
        cls,
        x: Array,
        k: int,
        pca_dim: int | None,
        *,
        seed: int = 0,
        device: str = "cpu",
        max_iter: int = 25,
    ) -> Codebook:
        """Learn a codebook from vectors x (n, D); pca_dim None leaves the PCA out."""
        if pca_dim is None:
            mean, components = _double(x, device).mean(0).float().cpu().numpy(), None
        else:
            pca = PCA(min(pca_dim, x.shape[1]), device).fit(x)
            mean, components = pca.mean_, pca.components_
        book = cls(mean, components, np.empty((0, 0), np.float32))
        projected = book.on(device).project(_float(x, device))
        fitted = KMeans(k, max_iter, seed, device).fit(projected)
        return cls(mean, components, fitted.cluster_centers_)

    def on(self, device: str | torch.device) -> Codebook:
        """Copy with torch tensors on a device."""
        import torch

        def move(a: Array) -> Array:
            return None if a is None else torch.as_tensor(np.asarray(a)).to(device)

        return Codebook(move(self.mean), move(self.components), move(self.centroids))

    def project(self, x: Array) -> Array:
        """Project x (n, D) to (n, d)."""
        return x - self.mean if self.components is None else (x - self.mean) @ self.components.T

    def assign(self, x: Array) -> Array:
        """Symbol (n,) of each row of x (n, D); numpy in, numpy out, torch in, torch out."""
        prunable = self.components is not None and self.centroids.shape[1] > 2 * self.HEAD
        if isinstance(x, np.ndarray) and prunable:
            return self._assign_pruned(x)
        return nearest(self.project(x), self.centroids)

    def assign_rest(self, x: Array) -> tuple[Array, Array]:
        """Symbols (n,) of rows of x (n, D), and what their centroids leave over, (n, d)."""
        symbols = self.assign(x)
        return symbols, self.project(x) - self.centroids[symbols]

    def vectors(self) -> Floats:
        """The centroids in the space of the input, (k, D)."""
        if self.components is None:
            return np.asarray(self.centroids + self.mean)
        return np.asarray(self.centroids @ self.components + self.mean)

    def rounded(self) -> Codebook:
        """Copy whose basis and centroids are numbers of half precision, where they are not too
        large for it."""

        def half(a: Array) -> Array:
            if a is None or np.abs(a).max() > np.finfo(np.float16).max:
                return a
            return a.astype(np.float16).astype(np.float32)

        return Codebook(self.mean, half(self.components), half(self.centroids))

    def half_whitened(self) -> Array:
        """The centroids (k, d) as a start for embeddings: centred, and divided by the root of each
        dimension's spread, so that brightness does not drown the rest."""
        centred = self.centroids - self.centroids.mean(0)
        return centred / np.sqrt(centred.std(0) + 1e-6)

    def _assign_pruned(self, x: Floats) -> NDArray[np.int64]:
        """Find the nearest centroid exactly, looking at most of them in 64 dimensions only.

        Centroids are means, so beyond the leading PCA dimensions they have almost no length, and
        by Cauchy-Schwarz the rest can change a score x c - |c|^2 / 2 by at most |x_rest| |c_rest|.
        The few centroids within that reach of the best are compared in full.
        """
        assert self.components is not None
        if not hasattr(self, "_split"):
            head, tail = self.centroids[:, : self.HEAD], self.centroids[:, self.HEAD :]
            half = 0.5 * (self.centroids**2).sum(1)
            # Two more rows make the product subtract |c|^2 / 2 and the reach by itself.
            table = np.concatenate([head.T, -half[None], -np.sqrt((tail**2).sum(1))[None]])
            self._split = (
                np.ascontiguousarray(self.components[: self.HEAD].T),
                np.ascontiguousarray(table),
                tail @ self.components[self.HEAD :],
            )
        basis, table, rest = self._split
        reach = -table[-1]
        widest = 2 * reach.max()
        symbols = np.empty(len(x), np.int64)
        leading = np.ones((BLOCK, self.HEAD + 2), np.float32)
        scores = np.empty((BLOCK, table.shape[1]), np.float32)
        for start in range(0, len(x), BLOCK):
            centred = x[start : start + BLOCK] - self.mean
            lead, low = leading[: len(centred)], scores[: len(centred)]
            np.matmul(centred, basis, out=lead[:, : self.HEAD])
            total = np.einsum("nd,nd->n", centred, centred)
            energy = total - np.einsum("nd,nd->n", lead[:, : self.HEAD], lead[:, : self.HEAD])
            # Room for rounding: of a flat patch hardly anything is left of the difference.
            length = np.sqrt(np.maximum(energy, 0) + total * np.float32(4e-6))
            lead[:, -1] = length
            np.matmul(lead, table, out=low)  # the least a score can be
            # The likeliest centroid, looked at in full, is the score to beat.
            every, top = np.arange(len(centred)), low.argmax(1)
            floor = low[every, top] + length * reach[top]
            floor += np.einsum("nd,nd->n", centred, rest[top])
            floor -= np.abs(floor) * np.float32(1e-6)
            floor = np.minimum(floor, low[every, top] + 2 * length * reach[top])  # it stays in
            # The most a score can be is low + 2 length reach: first by the widest reach of all,
            # in one pass over the table, then by its own for the few that are left.
            least = np.minimum(floor - length * widest, low[every, top])
            near = np.flatnonzero(low >= least[:, None])
            rows, columns = np.divmod(near, table.shape[1])
            high = low[rows, columns] + 2 * length[rows] * reach[columns]
            kept = high >= floor[rows]
            rows, columns = rows[kept], columns[kept]
            exact = low[rows, columns] + length[rows] * reach[columns]
            exact += np.einsum("nd,nd->n", centred[rows], rest[columns])
            # Rows come sorted: the best of each run is the answer, the first one on a tie.
            best = np.maximum.reduceat(exact, np.searchsorted(rows, every))
            hit = exact == best[rows]
            symbols[start : start + len(centred)][rows[hit][::-1]] = columns[hit][::-1]
        return symbols


def _double(x: Array, device: str) -> torch.Tensor:
    import torch

    return torch.as_tensor(x).to(device, torch.float64)


def _float(x: Array, device: str) -> torch.Tensor:
    import torch

    return torch.as_tensor(x).to(device, torch.float32)


def _round(x: torch.Tensor) -> torch.Tensor:
    return x.float().double()


def _eigh(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvalues ascending; on the CPU, so that the basis does not depend on the device."""
    import torch

    values, vectors = torch.linalg.eigh(matrix.cpu())
    return values.to(matrix.device), vectors.to(matrix.device)


def _assign(x: torch.Tensor, centers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Nearest centre and squared distance of each row."""
    import torch

    half = 0.5 * (centers * centers).sum(1)
    best = [(part @ centers.T - half).max(1) for part in torch.split(x, CHUNK)]
    scores = torch.cat([b.values for b in best])
    return torch.cat([b.indices for b in best]), ((x * x).sum(1) - 2 * scores).clamp_min(0)
