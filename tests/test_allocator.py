"""What is freed is kept for the next request, unless the operator has told the C library something."""

import os
import subprocess
import sys

import pytest

CODE = "from proxy.allocator import keep_freed; print(keep_freed())"
HAS_GLIBC = hasattr(os, "confstr") and "CS_GNU_LIBC_VERSION" in os.confstr_names
SETTINGS = [
    pytest.param({}, HAS_GLIBC, id="nothing told"),
    pytest.param({"MALLOC_TRIM_THRESHOLD_": "131072"}, False, id="told by a variable"),
    pytest.param({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}, False, id="told by a tunable"),
]


@pytest.mark.parametrize(("settings", "expected"), SETTINGS)
def test_what_is_freed_is_kept_unless_the_operator_has_told_otherwise(settings, expected):
    told = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(  # noqa: S603 our own interpreter
        [sys.executable, "-c", CODE], env=told | settings, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(expected)
