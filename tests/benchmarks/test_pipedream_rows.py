"""PipeDream's rows: data parallelism with overlapped sums beside closed forms, and the whole part of the page."""

import pytest

from pipesched.profiles.costs import StageCost, StageCosts
from pipesched.simulator.fast import simulate_arrays

ROWS = "paper_rows.pipedream."


def test_a_sum_of_one_bucket_follows_the_backward(rows):
    clusters = rows("clusters")
    cluster = clusters.Server(4, 1e9, 1e8).cluster(4)
    costs = StageCosts((StageCost(forward_s=1, backward_s=2, weight_bytes=4 * 10**9),))
    seconds = simulate_arrays(clusters.overlapped_data_parallel(4, 1), costs, cluster).makespan_s
    assert seconds == pytest.approx(3 + 2 * 3 / 4 * 4, rel=1e-9)  # a ring: 2 (n - 1) / n of the bytes


def test_sums_of_late_layers_hide_behind_the_backward_of_early_ones(rows):
    clusters = rows("clusters")
    cluster = clusters.Server(2, 1e9, 1e8).cluster(2)
    late, early = 5 * 10**9, 10**9
    costs = StageCosts(
        (
            StageCost(forward_s=1, backward_s=7, weight_bytes=early),
            StageCost(forward_s=1, backward_s=1, weight_bytes=late),
        )
    )
    seconds = simulate_arrays(clusters.overlapped_data_parallel(2, 2), costs, cluster).makespan_s
    assert seconds == pytest.approx(2 + 8 + 1, rel=1e-9)  # the five seconds of the late layers' sum are hidden


def test_buckets_fill_from_the_last_layer(rows):
    clusters = rows("clusters")
    for model in ("vgg16", "resnet50", "alexnet", "gnmt"):
        profile = clusters.profile_of(model)
        counts = clusters.Workload(profile).buckets()
        ends = [sum(counts[: index + 1]) for index in range(len(counts))]
        sizes = [
            sum(layer.weight_bytes for layer in profile.layers[end - count : end])
            for count, end in zip(counts, ends, strict=True)
        ]
        assert ends[-1] == len(profile.layers)
        assert all(size >= 25e6 for size in sizes[1:])


def test_rows_agree_or_have_the_papers_order_at_one_share(rows):
    module = rows("speedups")
    published = [case.speedup for case in module.CASES]
    ones = {case: [1.0] * 8 for case in module.CASES}
    for case in module.CASES:
        ones[case][2] = ones[case][-2] = 10 * case.speedup
    verdicts = [module._at_one_share(ones, index, share) for index in (0, -1) for share in range(4)]
    assert verdicts == 2 * ["differs", "differs", "shape agrees", "differs"]
    exact = {case: [speedup] * 4 for case, speedup in zip(module.CASES, published, strict=True)}
    assert module._at_one_share(exact, -1, 0) == "agrees"


def test_gnmt_on_four_gpus_gains_half_over_data_parallelism(rows):
    """Table 1 of the publication has 1.5."""
    module = rows("speedups")
    case = next(case for case in module.CASES if case.num_gpus == 4)
    speedups = [case.speedup_of(workload) for workload in case.workloads((1.0, 0.5))]
    assert min(speedups) < 1.5 < max(speedups)
    assert speedups == sorted(speedups[:2]) + sorted(speedups[2:])
