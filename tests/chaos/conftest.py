"""The storm lasts minutes: it is collected for long runs only."""

from __future__ import annotations

from tests.conftest import SIZE

collect_ignore = [] if SIZE == "long" else ["test_chaos.py", "test_moved_file.py"]
