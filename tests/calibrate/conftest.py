"""What several tests of calibration look at."""

from __future__ import annotations

import pytest

from calibrate import kernels
from planner.call import Call


@pytest.fixture(scope="session")
def kernel_calls() -> dict[str, list[Call]]:
    """Every call that a calibration times, by kind: seconds to make."""
    return {kind: list(generate()) for kind, generate in kernels.KERNELS.items()}
