"""Settings that hold for every test.

Hypothesis: no deadline, because a busy machine is not a fault; the long run (`./dev test --long`) tries many more
examples; CI always tries the same ones, so that a red run can be repeated.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "aerobee",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    max_examples=5_000 if os.environ.get("AEROBEE_LONG") else 100,
    derandomize=bool(os.environ.get("CI")) and not os.environ.get("AEROBEE_LONG"),
)
settings.load_profile("aerobee")
