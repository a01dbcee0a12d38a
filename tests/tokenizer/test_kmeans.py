from __future__ import annotations

import numpy as np
import pytest
import sklearn.cluster
import sklearn.decomposition

from puzlm.tokenizer.kmeans import PCA, Codebook, KMeans, nearest


@pytest.fixture(scope="module")
def patches(photo):
    """Real 8x8 patches, (n, 192)."""
    rng = np.random.default_rng(0)
    tops, lefts = rng.integers(0, 400, 3000), rng.integers(0, 600, 3000)
    return np.stack(
        [photo[t : t + 8, n : n + 8].ravel() for t, n in zip(tops, lefts, strict=True)]
    ).astype(np.float32)


def test_pca_is_scikit_learns(patches):
    ours = PCA(12).fit(patches)
    theirs = sklearn.decomposition.PCA(12, svd_solver="full").fit(patches.astype(np.float64))
    signs = np.sign((ours.components_ * theirs.components_).sum(1))
    assert np.allclose(ours.components_, theirs.components_ * signs[:, None], atol=1e-4)
    assert np.allclose(ours.transform(patches), theirs.transform(patches) * signs, atol=0.05)
    assert np.allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, atol=1e-6)


def test_kmeans_is_scikit_learns(patches):
    """From the same start, Lloyd's algorithm ends in the same place."""
    ours = KMeans(40, max_iter=300, random_state=1).fit(patches)
    start = patches[np.random.default_rng(1).choice(len(patches), 40, replace=False)]
    theirs = sklearn.cluster.KMeans(40, init=start, n_init=1, tol=0).fit(patches.astype(np.float64))
    assert np.isclose(ours.inertia_, theirs.inertia_, rtol=1e-3)
    assert (ours.labels_ == theirs.labels_).mean() > 0.99
    assert np.array_equal(ours.predict(patches), ours.labels_)


def test_no_cluster_stays_empty():
    """All but a few vectors are equal: a random start puts many centres on one spot."""
    x = np.zeros((500, 2), np.float32)
    x[:20] = np.random.default_rng(0).normal(size=(20, 2)) * 10
    fitted = KMeans(15, max_iter=50).fit(x)
    assert len(np.unique(fitted.labels_)) == 15


def test_same_seed_same_centres(patches):
    a, b = KMeans(30, random_state=3).fit(patches), KMeans(30, random_state=3).fit(patches)
    assert np.array_equal(a.cluster_centers_, b.cluster_centers_)
    c = KMeans(30, random_state=4).fit(patches)
    assert not np.array_equal(a.cluster_centers_, c.cluster_centers_)


def test_pruned_search_is_exact(patches):
    """The short cut over the leading dimensions finds what looking at everything finds."""
    book = Codebook.fit(patches, 300, 150, max_iter=3)
    assert book.centroids.shape[1] > 2 * Codebook.HEAD  # so that assign() prunes
    fast = book.assign(patches)
    slow = nearest(book.project(patches), book.centroids)
    distance = ((book.project(patches)[:, None] - book.centroids[None]) ** 2).sum(-1)
    rows = np.arange(len(patches))
    assert (fast == slow).mean() > 0.999  # rounding may break true ties
    assert np.allclose(distance[rows, fast], distance.min(1), rtol=1e-4, atol=1e-2)


def test_pruned_search_survives_rounding():
    """A flat patch that is its own centroid: what lies beyond the leading dimensions is a
    thousandth of its length, less than the rounding of its 1,728 equal squares."""
    rng, turn = np.random.default_rng(0), 0.85e-3
    axes = np.linalg.qr(np.c_[np.ones(1728), rng.standard_normal((1728, 149))])[0].T
    one, other = axes[0].copy(), axes[Codebook.HEAD].copy()
    axes[0], axes[Codebook.HEAD] = one + turn * other, other - turn * one
    mean, flat = np.full(1728, 100.3), np.arange(256.0)[:, None] + np.zeros(1728)
    arrays = (mean, axes, (flat - mean) @ axes.T)
    book = Codebook(*(a.astype(np.float32) for a in arrays))
    assert np.array_equal(book.assign(flat.astype(np.float32)), np.arange(256))


def test_too_few_vectors():
    with pytest.raises(ValueError, match="k = 10 clusters need at least as many vectors, got 4"):
        KMeans(10).fit(np.zeros((4, 3), np.float32))


def test_half_whitening_keeps_the_order_of_the_spreads():
    """Spreads s become s / sqrt(s): 100 and 1 become 10 and 1, centred."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((4096, 2)) * [100, 1] + [7, -3]).astype(np.float32)
    start = Codebook(np.zeros(2), None, x).half_whitened()
    assert np.allclose(start.std(0), np.sqrt(x.std(0)), rtol=1e-4)
    assert np.allclose(start.mean(0), 0, atol=1e-4)
