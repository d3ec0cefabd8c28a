"""Statistics, against published values and values worked out by hand."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import product
from statistics import fmean, median, stdev

import pytest

from refkv_policy.evidence.frontier import error_at, pareto
from refkv_policy.evidence.model import Figure
from refkv_policy.quality.statistics import (
    Candidate,
    bootstrap_interval,
    choose,
    elbow,
    figure_of,
    overlap,
    wilson_interval,
)
from tests.evidence.sample import interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(successes: int, trials: int, low: float, high: float) -> None:
    """Newcombe 1998 (Statistics in Medicine 17:857-872), table I, method 3, 95 %."""
    found = wilson_interval(successes, trials)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    assert (found.level, found.method) == (0.95, "wilson")


def test_wilson_ends_solve_the_score_equation() -> None:
    """Each end p satisfies |share - p| = z sqrt(p (1 - p) / n), the definition; none leaves 0 to 1."""
    z = 1.959963984540054
    for successes, trials in ((3, 10), (27, 30), (30, 30), (0, 30), (1, 1), (135, 150)):
        found = wilson_interval(successes, trials)
        for end in (found.low, found.high):
            assert 0 <= end <= 1
            if 0 < end < 1:
                share = successes / trials
                assert abs(share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / trials), rel=1e-9)
    assert wilson_interval(30, 30).high == 1
    assert wilson_interval(0, 30).low == 0


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 3), (4, 3)])
def test_wilson_refuses_what_is_no_share(successes: int, trials: int) -> None:
    """More answers than were asked for are a mistake of the caller."""
    with pytest.raises(ValueError, match="not a share"):
        wilson_interval(successes, trials)


def exact_quantile(values: list[float], share: float) -> float:
    """The smallest mean of a resample that at least `share` of all equally likely resamples do not exceed."""
    means = sorted(Fraction(sum(map(Fraction, drawn)), len(values)) for drawn in product(values, repeat=len(values)))
    return float(means[math.ceil(share * len(means)) - 1])


def test_bootstrap_agrees_with_all_resamples_counted() -> None:
    """Of five values all 3,125 resamples can be listed; the ends are theirs to within the drawing."""
    values = [0.0, 1.0, 3.0, 4.0, 10.0]
    found = bootstrap_interval(values, resamples=10_000)
    assert found.low == pytest.approx(exact_quantile(values, 0.025), abs=0.21)  # means lie 0.2 apart
    assert found.high == pytest.approx(exact_quantile(values, 0.975), abs=0.21)


def test_bootstrap_agrees_with_the_normal_interval() -> None:
    """Of many values of a bell curve it is mean ± 1.96 standard errors, to a few per cent."""
    values = [random.Random(7).gauss(10, 2) for _ in range(1)] + [random.Random(k).gauss(10, 2) for k in range(399)]
    found = bootstrap_interval(values)
    half = 1.96 * stdev(values) / math.sqrt(len(values))
    assert found.low == pytest.approx(fmean(values) - half, abs=0.1 * half)
    assert found.high == pytest.approx(fmean(values) + half, abs=0.1 * half)


def test_bootstrap_repeats_and_seeds_differ() -> None:
    """The same seed gives the same interval on any machine: these ends are of `random.Random(0).random`."""
    values = [0.1, 0.4, 0.2, 0.9]
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, resamples=50, seed=1) != bootstrap_interval(values, resamples=50, seed=2)
    pick = random.Random(0)
    means = sorted(fmean([values[int(pick.random() * 4)] for _ in range(4)]) for _ in range(2000))
    found = bootstrap_interval(values)
    assert found.low == pytest.approx(means[49] + 0.975 * (means[50] - means[49]))
    assert found.high == pytest.approx(means[1949] + 0.025 * (means[1950] - means[1949]))


def test_bootstrap_draws_whole_groups() -> None:
    """Seeds of one clip are not independent: two clips whose seeds agree have only three means, however many."""
    values, clips = [1.0] * 8 + [3.0] * 8, ["a"] * 8 + ["b"] * 8
    found = bootstrap_interval(values, groups=clips)
    assert (found.low, found.high) == (1, 3)
    alone = bootstrap_interval(values)
    assert 1 < alone.low < 2 < alone.high < 3


def test_bootstrap_takes_other_statistics_and_levels() -> None:
    """The median's interval; and a lower level is narrower."""
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    assert bootstrap_interval(values, statistic=median).low == 1
    wide, narrow = bootstrap_interval(values), bootstrap_interval(values, level=0.5)
    assert wide.low < narrow.low < narrow.high < wide.high
    assert narrow.level == 0.5


def test_an_interval_needs_two_independent_finite_values() -> None:
    """One observation has no interval, and a figure of it says so; not-a-number has neither."""
    for values, groups in (([], None), ([1.0], None), ([1.0, 2.0], ["a", "a"])):
        with pytest.raises(ValueError, match="two independent"):
            bootstrap_interval(values, groups=groups)
    with pytest.raises(ValueError, match="finite"):
        bootstrap_interval([1.0, math.nan])
    with pytest.raises(ValueError, match="finite"):
        figure_of([math.inf])
    with pytest.raises(ValueError, match="finite"):
        figure_of([])
    with pytest.raises(ValueError, match="shorter"):
        bootstrap_interval([1.0, 2.0, 3.0], groups=["a", "b"])
    assert figure_of([2.5]) == Figure(2.5)
    assert figure_of([1.0, 2.0], groups=["a", "a"]) == Figure(1.5)
    assert figure_of([1.0, 2.0]) == Figure(1.5, bootstrap_interval([1.0, 2.0]))


def test_the_frontier_of_the_feasibility_run() -> None:
    """Speed and error of plain reuse at K = 2, 3, 4, 6, 8: K = 3 is dominated, for its error is above that of K = 4."""
    points = [(1.21, 0.0048), (1.29, 0.0124), (1.33, 0.0064), (1.40, 0.0326), (1.42, 0.0334)]
    assert pareto(points) == (0, 2, 3, 4)


def test_the_frontier_keeps_equal_points_and_drops_weakly_worse_ones() -> None:
    """Equal in both is not worse; equal in one and worse in the other is."""
    assert pareto([(2.0, 1.0), (2.0, 1.0), (2.0, 2.0), (1.0, 1.0)]) == (0, 1)
    assert pareto([]) == ()
    assert pareto([(1.0, 0.0)]) == (0,)


def test_the_frontier_agrees_with_its_definition() -> None:
    """On random points, each left out is beaten by one on the frontier, and none on it by any."""
    pick = random.Random(3)
    for _ in range(200):
        points = [(pick.randrange(6), pick.randrange(6)) for _ in range(pick.randrange(1, 9))]
        front = pareto(points)

        def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
            return a != b and a[0] >= b[0] and a[1] <= b[1]

        for index, point in enumerate(points):
            assert (index in front) != any(beats(points[other], point) for other in front)
        assert list(front) == sorted(front, key=lambda i: points[i])


def test_the_elbow_is_kneedles() -> None:
    """The convex, increasing example of the `kneed` package (its DataGenerator): the knee is at x = 7."""
    assert elbow(list(zip(range(10), [1, 2, 3, 4, 5, 10, 15, 20, 40, 100], strict=True))) == 7


def test_the_elbow_by_hand() -> None:
    """Speeds 1, 1.2, 1.4 with errors 0, 1, 10: at 1.2, speed − error is 0.5 − 0.1. Dominated points do not count."""
    assert elbow([(1.0, 0.0), (1.2, 1.0), (1.4, 10.0)]) == 1
    assert elbow([(1.0, 0.0), (1.1, 9.0), (1.2, 1.0), (1.4, 10.0)]) == 2


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1.0, 0.0)],
        [(1.0, 0.0), (2.0, 1.0)],
        [(1.0, 0.0), (1.5, 0.5), (2.0, 1.0)],
        [(1.0, 0.0), (1.5, 0.9), (2.0, 1.0)],
        [(1.0, 0.5), (1.0, 0.5), (1.0, 0.5)],
    ],
    ids=["nothing", "one", "two", "straight", "bent the other way", "all the same"],
)
def test_not_every_frontier_has_an_elbow(points: list[tuple[float, float]]) -> None:
    """Where no point lies below the chord, none is named."""
    assert elbow(points) is None


def test_overlapping_intervals_are_equal() -> None:
    """Sharing an end is overlapping; a figure without an interval is a point."""
    a, b = Figure(1.0, interval(0.8, 1.2)), Figure(1.4, interval(1.2, 1.6))
    assert overlap(a, b)
    assert overlap(b, a)
    assert not overlap(a, Figure(1.4, interval(1.21, 1.6)))
    assert overlap(a, Figure(0.9))
    assert not overlap(a, Figure(1.3))


def candidate(k: int, low: float, high: float) -> Candidate:
    """A refresh interval with an error between two ends."""
    return Candidate(k, Figure((low + high) / 2, interval(low, high)))


def test_of_equal_intervals_the_larger_wins() -> None:
    """The RFC's section 7: where the losses of K = 3 and 4 overlap they are equivalent, and 4 is picked."""
    found = choose([candidate(2, 0.5, 0.6), candidate(3, 0.1, 0.3), candidate(4, 0.2, 0.4), candidate(6, 0.35, 0.5)])
    assert found is not None
    assert found.interval == 4  # 6 overlaps 4, but not the best


def test_without_a_redline_the_best_is_chosen_where_nothing_is_equal_to_it() -> None:
    """No interval overlaps: the smallest error, whatever its K. Of equal errors the larger K."""
    found = choose([candidate(2, 0.4, 0.5), candidate(3, 0.6, 0.7), candidate(4, 0.1, 0.2)])
    assert found is not None
    assert found.interval == 4
    tied = choose([Candidate(2, Figure(0.5)), Candidate(3, Figure(0.5))])
    assert tied is not None
    assert tied.interval == 3
    assert choose([]) is None


def test_with_a_redline_the_largest_within_it_wins() -> None:
    """Critical Notes of section 5.3: errors need not rise with K, so K = 3 may fall where K = 4 passes."""
    listed = [candidate(2, 0.1, 0.2), candidate(3, 0.9, 1.1), candidate(4, 0.3, 0.5), candidate(6, 0.7, 1.3)]
    found = choose(listed, redline=1.0)
    assert found is not None
    assert found.interval == 4
    assert choose(listed, redline=0.1) is None


def test_errors_between_points_are_interpolated() -> None:
    """Fewer steps of the feasibility run, .0027 at 1.25 and .0038 at 1.36: at 1.30 .0032; beyond the ends nothing."""
    line = [(1.36, 0.0038), (1.15, 0.0025), (1.25, 0.0027), (1.50, 0.0044)]
    assert error_at(line, 1.30) == pytest.approx(0.0027 + 0.0011 * 5 / 11)
    assert error_at(line, 1.36) == 0.0038
    assert error_at(line, 1.1) is None
    assert error_at(line, 1.6) is None
    assert error_at([], 1.0) is None
    assert error_at([(1.0, 3.0), (1.0, 2.0), (2.0, 4.0)], 1.5) == 3
