"""Create-only and commit where answers are lost or damaged: whoever asks learns what stands there, or gets an error."""

import pytest
from fault_results import STEP, attempted

from marin import fs
from marin.base.errors import StoreError
from marin.store import Store
from marin.testing import FaultyStorage, Rule

MINE, OTHERS = b"mine", b"another's"

# What happens to the calls of one `create`, and what it then says when nothing was there, and when another's was.
CASES = {
    "nothing": ((), True, False),
    "answer lost once": ((Rule("lost", operation="create", first=1),), True, False),
    "every answer lost": ((Rule("lost", operation="create"),), True, False),
    "met by its own second request": ((Rule("412", operation="create"),), True, False),
    "conflicts": ((Rule("409", operation="create", first=3),), True, False),
    "overload": ((Rule("503", first=3),), True, False),
    "a read damaged on its way": ((Rule("flip", operation="read", first=1),), True, False),
    "refused": ((Rule("denied", operation="create"),), StoreError, False),
    "no answer at all": ((Rule("timeout"),), StoreError, StoreError),
    "written, and no answer at all": (
        (Rule("lost", operation="create"), Rule("timeout", operation="read")),
        StoreError,
        StoreError,
    ),
}


@pytest.mark.parametrize("there", [False, True], ids=["free", "taken"])
@pytest.mark.parametrize("case", CASES)
def test_create_says_whose_bytes_stand_there(case: str, there: bool):
    rules, free, taken = CASES[case]
    storage = FaultyStorage.memory("create")
    url = storage.url("store/record.json")
    if there:
        storage.objects.create("store/record.json", OTHERS)
    storage.rules = rules
    expected = taken if there else free
    if isinstance(expected, bool):
        assert fs.create(url, MINE) is expected
        assert storage.objects.get("store/record.json") == (MINE if expected else OTHERS)
    else:
        with pytest.raises(expected) as caught:
            fs.create(url, MINE)
        assert caught.value.hint
    storage.rules = ()
    assert fs.create(url, MINE) == (not there)  # and asking again, once the store answers, tells


KEY = "ab" * 32


@pytest.mark.parametrize("fault", ["flip", "cut"])
@pytest.mark.parametrize("nth", range(1, 5))
def test_commit_leaves_a_winner_alone_that_it_reads_wrong_once(fault: str, nth: int):
    storage = FaultyStorage.memory("commit")
    store = Store.open(storage.url("store"), write=True)
    winner = store.commit(attempted(store, KEY, "first", b"tokens")).manifest
    loser = attempted(store, KEY, "second", b"other tokens")
    storage.rules = [Rule(fault, operation="read", nth=nth)]
    assert store.commit(loser) == (winner, "adopted")
    storage.rules = ()
    assert store.find([(STEP, KEY)])[KEY] == winner


@pytest.mark.parametrize("fault", ["503", "timeout", "denied"])
def test_commit_leaves_a_winner_alone_whose_files_it_cannot_ask_for(fault: str):
    storage = FaultyStorage.memory("commit")
    store = Store.open(storage.url("store"), write=True)
    winner = store.commit(attempted(store, KEY, "first", b"tokens")).manifest
    loser = attempted(store, KEY, "second", b"other tokens")
    storage.rules = [Rule(fault, operation="info", path="*/data.bin")]
    with pytest.raises(StoreError):
        store.commit(loser)
    storage.rules = ()
    assert store.find([(STEP, KEY)])[KEY] == winner
