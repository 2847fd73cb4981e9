"""One of several processes that commit the same keys at the same moments: `fault_racer.py STORE NUMBER ROUNDS`.

Prints `ready`, waits for a line, and then, for each round, prints the digest that it was told.
"""

import sys

from fault_results import attempted

from marin.store import Store


def main(url: str, number: int, rounds: int) -> None:
    store = Store.open(url, write=True)
    say("ready")
    for round_number in range(rounds):
        sys.stdin.readline()
        data = b"tokens" if number % 2 else f"tokens of {number}".encode()
        mine = attempted(store, f"{round_number:064x}"[::-1], f"racer-{number}", data)
        say(store.commit(mine).manifest.digest)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
