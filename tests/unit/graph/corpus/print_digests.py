"""Print every digest of the corpus as JSON: of this process, after pickling, in a forked and in a spawned child."""

import json
import multiprocessing
import pickle
import sys
from typing import Any

import corpus_steps

from marin import Step
from marin.graph.code.closure import digest_of
from marin.graph.recipe import recipe_of


def fingerprint(step: Step[Any]) -> str:
    """The static fingerprint of a step."""
    return recipe_of(step, fingerprint, ()).fingerprint


def digests() -> dict[str, Any]:
    """All of them."""
    return {
        "equal": {name: [fingerprint(make()) for make in makes] for name, makes in corpus_steps.EQUAL.items()},
        "different": {name: fingerprint(make()) for name, make in corpus_steps.DIFFERENT.items()},
        "code": {function.__name__: digest_of(function).digest for function in corpus_steps.CODE},
    }


def after_pickling() -> dict[str, Any]:
    """Fingerprints of steps that travelled."""
    steps = {name: make() for name, make in corpus_steps.DIFFERENT.items()}
    return {name: fingerprint(pickle.loads(pickle.dumps(step))) for name, step in steps.items()}


def send(queue: Any) -> None:
    """In a child."""
    queue.put(digests())


def in_child(method: str) -> dict[str, Any]:
    """Digests of another process."""
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=send, args=(queue,))
    child.start()
    found: dict[str, Any] = queue.get(timeout=60)
    child.join()
    return found


if __name__ == "__main__":
    forked = in_child("fork")  # before this process has computed anything
    here = digests()
    answer = {"here": here, "fork": forked, "pickled": after_pickling()}
    if "spawn" in sys.argv:
        answer["spawn"] = in_child("spawn")
    print(json.dumps(answer))
