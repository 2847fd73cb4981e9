"""Pinning, collecting and verifying on each kind of storage: its times, its listings, its deletions."""

from marin import Context, Shard, Step, Value, fs
from marin.graph.artifact import Sharded
from marin.graph.files import Output
from marin.run import api
from marin.store import Store
from marin.store.gc.collect import collect, survey
from marin.store.gc.verdict import policy_of
from marin.store.pins import pin, unpin
from marin.store.verify import verify


def write(shard: Shard, output: Output) -> int:
    output.write("data", shard.name.encode() * 100)
    return len(shard.name)


class Pieces(Step[Sharded]):
    n: int

    def run(self, ctx: Context) -> Sharded:
        shards = [Shard(str(i), f"{i:064x}") for i in range(self.n)]
        return Sharded.write(ctx.output, shards=ctx.map(write, shards).shards)


class Count(Step[Value[int]]):
    pieces: Step[Sharded]

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, len(ctx.load(self.pieces).shards))


def gc(store: Store) -> int:
    return collect(store, lambda now: policy_of(now, days=0, grace=0)).deleted


def test_gc_pin_run_and_verify_go_the_whole_way(root: str):
    two = Count(pieces=Pieces(n=2))
    api.run([two, Count(pieces=Pieces(n=3))], store=root, backend="inline")
    store = Store.open(root, write=True)
    assert verify(store, deep=True).bad == []
    kept = next(each for each in store.manifests("pieces") if len(each.shards) == 2)
    pin(root, kept, name="mine", user="ada", reason=None)
    recent = survey(store, policy_of(0.0, days=7, grace=86_400))
    assert (recent.candidates, recent.unlist) == ([], [])
    gc(store)
    assert [each.fingerprint for each in store.manifests()] == [kept.fingerprint]
    assert api.run(two, store=root, backend="inline").value == 2
    assert {each.step for each in store.manifests()} == {"pieces", "count"}  # the count was listed again, not made
    assert len(store.runs()) == 2
    gc(store)
    assert gc(store) > 0
    assert [each.fingerprint for each in store.manifests()] == [kept.fingerprint]
    assert verify(store, deep=True).bad == []
    assert verify(store, deep=True).checked == 2
    unpin(root, "mine")
    gc(store)
    gc(store)
    left = {file.path.split("/")[0] for file in fs.list_files(root)}
    assert left - {"code", "locks"} == {"store.json"}
