"""`marin gc --apply` again and again, with hardly any grace, while drivers run pipelines on the same store.

No run may fail, no digest may change, and once all is quiet the store is whole.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marin.store import Store
from marin.store.gc.collect import collect
from marin.store.gc.verdict import policy_of
from marin.store.verify import verify

DRIVER = str(Path(__file__).with_name("gc_driver.py"))


@pytest.mark.parametrize(
    ("seconds", "grace"),
    [(5.0, 0.3), pytest.param(60.0, 0.05, marks=pytest.mark.slow), pytest.param(60.0, 1.0, marks=pytest.mark.slow)],
)
def test_gc_with_no_grace_to_speak_of_never_harms_a_run(tmp_path: Path, seconds: float, grace: float):
    root = str(tmp_path / "store")
    store = Store.open(root, write=True)
    drivers = [
        subprocess.Popen(
            [sys.executable, DRIVER, root, str(seconds), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        for seed in map(int, os.environ.get("GC_SEEDS", "0,1").split(","))
    ]
    deleted = unlisted = relisted = 0
    while any(driver.poll() is None for driver in drivers):
        done = collect(store, lambda now: policy_of(now, days=0, grace=grace))
        deleted, unlisted, relisted = deleted + done.deleted, unlisted + done.unlisted, relisted + done.relisted
        time.sleep(0.05)
    told = []
    for driver in drivers:
        out, err = driver.communicate()
        assert driver.returncode == 0, err[-3000:]
        told.append(json.loads(out))
    assert deleted > 20
    assert unlisted > 5
    assert sum(each["states"].get("cached", 0) for each in told) > 0
    assert sum(each["states"].get("done", 0) for each in told) > 5
    digests: dict[str, set[str]] = {}
    for each in told:
        for key, found in each["digests"].items():
            digests.setdefault(key, set()).update(found)
    assert all(len(found) == 1 for found in digests.values()), digests
    checked = verify(store, deep=True)
    assert checked.bad == []
    print(f"deleted {deleted} unlisted {unlisted} relisted {relisted}", [each["states"] for each in told])
