#!/usr/bin/env python3
# Writes reference.tsv, the figures that reference.rs compares with: kind, values, other values, figures.
#     pip install numpy==2.4.6 scipy==1.17.1 pymannkendall==1.4.3
#     python3 reference.py > reference.tsv
import numpy as np
import pymannkendall
from scipy import stats

rng = np.random.default_rng(20)
samples = [
    [3.5],
    [2, 1],
    [5, 5, 5, 5, 5, 5, 5],
    [100, 100, 100, 101, 100, 100],
    [0, 0, 0, 0, 7, 0, 0],
    [-4, 3, -2, 8, 1.5, 0],
    [1.02, 1.01, 1.03, 1.00, 1.01, 9.5, 1.02],
    list(np.round(rng.normal(100, 5, 9), 3)),
    list(np.round(rng.normal(100, 5, 10) + 2 * np.arange(10), 3)),
    list(np.round(rng.lognormal(3, 1, 20), 4)),
    [float(n) for n in rng.integers(10, 15, 25)],
    list(np.round(rng.normal(1e9, 1e6, 50) - 1e5 * np.arange(50))),
]


def line(kind, a, b, figures):
    join = lambda values: " ".join(repr(float(value)) for value in values)
    print(kind, join(a), join(b), join(figures), sep="\t")


def expanded(n):
    """The level of a normal interval that ends where a t interval for n values at 95 % would."""
    return 1 - 2 * stats.norm.cdf(-np.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1))


def bootstrap(data, statistic, level):
    found = stats.bootstrap(
        data, statistic, n_resamples=400_000, batch=10_000, method="percentile", paired=True,
        confidence_level=level, vectorized=True, rng=np.random.default_rng(3),
    )
    return list(found.confidence_interval)


def ratio(a, b, axis=-1):
    return np.median(a, axis=axis) / np.median(b, axis=axis)


for values in samples:
    sd = np.std(values, ddof=1) if len(values) > 1 else np.nan
    line("summary", values, [], [
        np.median(values), stats.median_abs_deviation(values), np.mean(values), sd, min(values), max(values),
    ])
for values in samples:
    mad = stats.median_abs_deviation(values)
    if len(values) > 2 and mad > 0:
        score = stats.norm.ppf(0.75) * (values - np.median(values)) / mad
        line("outliers", values, [], np.flatnonzero(abs(score) > 3.5))
for values in samples:
    if len(values) >= 6 and np.median(values) != 0 and min(values) != max(values):
        rounds = np.arange(len(values))
        slope = stats.theilslopes(values, rounds).slope
        line("drift", values, [], [
            stats.kendalltau(rounds, values).statistic, pymannkendall.original_test(values).p,
            slope * (len(values) - 1) / abs(np.median(values)),
        ])
for values in samples:
    if len(values) >= 5 and min(values) != max(values):
        line("interval", values, [], bootstrap((values,), np.median, expanded(len(values))))
for values in samples:
    if len(values) >= 5 and min(values) > 0:
        others = np.round(np.array(values) * 1.3 * rng.normal(1, 0.02, len(values)), 3)
        line("ratio", others, values, [ratio(others, values)] + bootstrap((others, values), ratio, 0.95))
