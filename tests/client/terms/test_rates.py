from aerobee.terms.rates import WINDOW_S, Rates


def test_rates_are_of_about_the_last_minute() -> None:
    rates = Rates(0.0)
    for second in range(60):
        rates.add(0.010, float(second), ok=second % 3 != 0)
    ok, failed, mean_ms = rates.read(60.0 - 1e-9)
    assert (round(ok, 2), round(failed, 2), round(mean_ms, 3)) == (0.67, 0.33, 10.0)
    assert rates.failed_count == 20


def test_what_is_long_ago_counts_no_more() -> None:
    rates = Rates(0.0)
    rates.add(0.5, 1.0, ok=False)
    assert rates.read(3 * WINDOW_S) == (0.0, 0.0, 0.0)
    assert rates.failed_count == 1
