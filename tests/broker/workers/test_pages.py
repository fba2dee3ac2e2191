"""Pages of metrics of several workers as one."""

from prometheus_client.parser import text_string_to_metric_families

from aerobee_broker.workers.pages import merged

ONE = b"""# HELP a_total text with { and # in it
# TYPE a_total counter
a_total{topic="with } and , and \\"quotes\\"",node_id="x"} 1.0
a_total{topic="other",node_id="x"} 2.0
# HELP b plain
# TYPE b gauge
b 3.0
# HELP h seconds
# TYPE h histogram
h_bucket{le="0.1"} 4.0
h_bucket{le="+Inf"} 5.0
h_count 5.0
h_sum 0.5
"""
OTHER = b"""# HELP b plain
# TYPE b gauge
b 1e+06
# HELP only_here_total t
# TYPE only_here_total counter
only_here_total 1.0
"""


def test_each_family_is_there_once_with_the_series_of_all_by_name() -> None:
    page = merged({"w-1": ONE, "w-2": OTHER}).decode()
    assert page.count("# TYPE b gauge") == 1
    assert page.index('b{worker="w-1"} 3.0') + len('b{worker="w-1"} 3.0\n') == page.index(
        'b{worker="w-2"} 1e+06'
    )
    series = {
        (one.name, one.labels["worker"], one.labels.get("topic", one.labels.get("le", ""))): one.value
        for family in text_string_to_metric_families(page)
        for one in family.samples
    }
    assert series == {
        ("a_total", "w-1", 'with } and , and "quotes"'): 1.0,
        ("a_total", "w-1", "other"): 2.0,
        ("b", "w-1", ""): 3.0,
        ("b", "w-2", ""): 1e6,
        ("h_bucket", "w-1", "0.1"): 4.0,
        ("h_bucket", "w-1", "+Inf"): 5.0,
        ("h_count", "w-1", ""): 5.0,
        ("h_sum", "w-1", ""): 0.5,
        ("only_here_total", "w-2", ""): 1.0,
    }


def test_no_page_is_no_text() -> None:
    assert merged({}) == b""
    assert merged({"w": b""}) == b""


def test_lines_that_are_no_metrics_hurt_nobody() -> None:
    """What a worker answers is not trusted: one broken line took the page of all of them."""
    odd = b"#\n# EOF\n\xff\xfe\n# TYPE \xff gauge\n\xff 1\n" + OTHER
    page = merged({"w-1": odd, "w-2": ONE})
    assert b'only_here_total{worker="w-1"} 1.0' in page
    assert b'b{worker="w-2"} 3.0' in page
