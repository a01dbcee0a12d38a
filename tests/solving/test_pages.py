"""Shredded pages: strips come into order, pages apart, and blank strips are left out."""

import numpy as np
import pytest
from drawn_pages import cut_page, draw_page, wear
from hypothesis import given, settings
from hypothesis import strategies as st

from puzlm.harness.page_sets import neighbours
from puzlm.solving.pages import draw, paper_sizes, solve_strips
from puzlm.solving.search import path as paths
from puzlm.solving.search.path import best_path


def value(order, score, begin, end):
    return begin[order[0]] + end[order[-1]] + score[order[:-1], order[1:]].sum()


@given(st.integers(2, 7), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_search_finds_what_the_exact_method_finds(n, seed):
    rng = np.random.default_rng(seed)
    score, begin, end = rng.normal(size=(n, n)), rng.normal(size=n), rng.normal(size=n)
    exact = best_path(score, begin, end)
    gain = np.full((n + 1, n + 1), -1e9)
    gain[:n, :n], gain[:n, n], gain[n, :n] = score, end, begin
    np.fill_diagonal(gain, -1e9)
    tour = paths._searched(gain, 0) if n > 3 else paths._exact(gain)
    tour = np.roll(tour, -int(np.flatnonzero(tour == n)[0]))[1:]
    assert sorted(exact.tolist()) == sorted(tour.tolist()) == list(range(n))
    assert value(exact, score, begin, end) >= value(tour, score, begin, end) - 1e-9
    assert value(tour, score, begin, end) >= value(exact, score, begin, end) - 1.0


def shuffled(strips, seed=0):
    order = np.random.default_rng(seed).permutation(len(strips))
    return [strips[i] for i in order], order


def test_a_page_cut_by_program_is_put_together():
    strips, order = shuffled(cut_page(draw_page(), 16))
    found = solve_strips(strips)
    (page,) = found.pages
    printed = order[page.strips]
    assert printed.tolist() == sorted(printed.tolist())
    assert sorted([*printed, *order[found.blank]]) == list(range(16))
    assert np.median(page.sure) > 0.8


def test_a_worn_page_is_put_together_and_drawn():
    strips, order = shuffled([wear(s, k) for k, s in enumerate(cut_page(draw_page(1), 14))])
    found = solve_strips(strips)
    (page,) = found.pages
    assert np.mean(neighbours(order[page.strips] - min(order[page.strips]), (99,))) > 0.8
    picture = draw(page, strips)
    assert (picture < 128).mean() == pytest.approx((draw_page(1) < 128).mean(), rel=0.35)


def test_two_mixed_pages_come_apart():
    first = cut_page(draw_page(2), 12)[1:11]
    second = cut_page(draw_page(3, size=19), 12)[1:11]
    strips, order = shuffled(first + second)
    found = solve_strips(strips, 2)
    assert [sorted(order[p.strips] // 10) for p in found.pages] in (
        [[0] * 10, [1] * 10],
        [[1] * 10, [0] * 10],
    )


def test_strips_of_two_paper_sizes_are_two_pages():
    large = cut_page(draw_page(4), 12)
    small = cut_page(draw_page(5, width=437, height=620), 8)
    assert [len(part) for part in paper_sizes(large + small)] == [8, 12]
    assert len(solve_strips(large + small).pages) == 2


def test_a_joint_from_page_to_page_is_right_and_back_into_the_page_is_not():
    assert neighbours([0, 1, 2, 3], (2, 2)) == [True, True, True]
    assert neighbours([1, 0, 2, 3], (2, 2)) == [False, False, True]
    assert neighbours([1, 2, 3, 0], (4,)) == [True, True, False]


def test_strips_that_lie_upside_down_are_turned():
    strips, order = shuffled(cut_page(draw_page(6), 16))
    down = {2, 7, 11}
    lying = [s.turned() if k in down else s for k, s in enumerate(strips)]
    found = solve_strips(lying)
    (page,) = found.pages
    assert {int(s) for s, t in zip(page.strips, page.turned, strict=True) if t} == down - {
        *found.blank.tolist()
    }
    printed = order[page.strips]
    assert printed.tolist() == sorted(printed.tolist())
