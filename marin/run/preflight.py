"""What is compared before a run starts on a cluster: each node's facts with this machine's. Pure; others gather them.

Invariant: a difference that would make a step fail or its result another one is an error that names every deviating
node; what only hurts is a warning. Clocks are compared to be reported alone: nothing in a run relies on them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from marin.base.errors import ClusterError
from marin.base.units import format_seconds, format_size
from marin.graph.recipe import source_of
from marin.graph.step import Step
from marin.run.placement import Bundle, kind_of

SKEW_SECONDS = 5.0
LEAST_SHM_BYTES = 10**9
LEAST_DISK_BYTES = 2 * 10**9
LEAST_OPEN_FILES, HOPELESS_OPEN_FILES = 4096, 256
MOST_NAMED = 8
"""Nodes, or modules of a node, that an error names; of the others it says how many they are."""

SAME_PYTHON = "give every node the same Python and packages: one image, or one environment on a shared disk"
SAME_CODE = "put the code at the same path on every node, or let `marin submit` send it along"
SHARED_STORE = "use a store that every node sees: s3://..., or a folder that all mount at one path"


Device: TypeAlias = Literal["CPU", "GPU"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What was found on one machine. A field that is empty or 0 was not found, or not looked for."""

    python: str = ""
    marin: str = ""
    marin_digest: str = ""
    """Of marin's own source files."""
    ray: str = ""
    torch: str = ""
    cuda_driver: str = ""
    cuda: str = ""
    """The runtime's version, as far as a distribution says it."""
    nccl: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)
    """First-party module to the digest of its file; those that cannot be found have no entry."""
    store: str = ""
    """Why the store cannot be used from there, or is another one; empty when all is well."""
    skew_seconds: float = 0
    """By how much the clock is surely ahead of the driver's (behind, if negative)."""
    shm_bytes: int = 0
    disk_bytes: int = 0
    """Free in the folder for temporary files."""
    open_files: int = 0
    """How many a process may have open at once."""

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Facts":
        """Return the facts that another marin may have written: what it does not know is missing."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in record.items() if name in known})


@dataclass(frozen=True, slots=True)
class Node:
    """One node and what it answered: facts, or the `problem` that kept it from answering."""

    name: str
    facts: Facts = Facts()
    has: Bundle = field(default_factory=dict)
    """Its Ray resources, taken or free."""
    problem: str = ""
    silent: bool = False
    """Whether it did not answer in time; Ray gives such a node no work either, once it notices."""

    def holds(self, device: Device) -> bool:
        """Whether ranks on such devices can run here; a head without work holds none."""
        return bool(self.has.get(device)) and not self.problem


@dataclass(frozen=True, slots=True)
class Needs:
    """What the steps of a plan need of the nodes."""

    store: str
    modules: tuple[str, ...] = ()
    """First-party modules that workers will import, by name."""
    gangs_on: frozenset[Device] = frozenset()
    """What the plan's gangs run on."""


def needs_of(steps: Iterable[Step[Any]], store: str) -> Needs:
    """Return what steps need of the nodes, their code included; a class of steps is read once."""
    steps = list(steps)
    sources = (source_of(step) for step in {type(step): step for step in steps}.values())
    modules = {name for source in sources if source is not None for name in source.modules}
    # marin's own files are compared as a whole.
    theirs = sorted(name for name in modules if name.partition(".")[0] not in ("marin", "__main__"))
    return Needs(store, tuple(theirs), gang_devices(steps))


def gang_devices(steps: Iterable[Step[Any]]) -> frozenset[Device]:
    """Return what the gangs among the steps run on."""
    gangs = [step for step in steps if kind_of(step) == "gang"]
    return frozenset("GPU" if step.placed.resources.gpus else "CPU" for step in gangs)


Severity: TypeAlias = Literal["warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one node that is not as it should be."""

    node: str
    subject: str
    severity: Severity
    what: str
    hint: str


def compare(here: Facts, nodes: Sequence[Node], needs: Needs) -> list[Finding]:
    """Return all that is wrong with nodes and between those that may hold ranks of one gang; errors first."""
    found = [finding for node in nodes for finding in _of_node(here, node, needs)]
    found += [finding for device in sorted(needs.gangs_on) for finding in _gangs(here, nodes, device)]
    # A gang on CPUs and one on GPUs may find the same: each subject once, errors first.
    found.sort(key=lambda finding: finding.severity)
    firsts: dict[tuple[str, str], Finding] = {}
    for finding in found:
        firsts.setdefault((finding.node, finding.subject), finding)
    found = list(firsts.values())
    if nodes and all(node.silent for node in nodes):
        return [Finding(each.node, each.subject, "error", each.what, each.hint) for each in found]
    return found


def refuse(findings: Sequence[Finding], num_nodes: int) -> list[str]:
    """Raise ClusterError if there are errors, naming each node that has one; return the warnings in words."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        by_node: dict[str, list[str]] = {}
        for error in errors:
            by_node.setdefault(error.node, []).append(error.what)
        lines = [f"{node}: {'; '.join(whats)}" for node, whats in by_node.items()]
        hints = list(dict.fromkeys(error.hint for error in errors))
        raise ClusterError(
            f"{len(by_node)} of {num_nodes} node{'s' if num_nodes > 1 else ''} cannot take part: {_listed(lines)}",
            where="preflight of the cluster",
            hint="; ".join(hints[:3]),
        )
    by_what: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        by_what.setdefault((finding.what, finding.hint), []).append(finding.node)
    return [f"{_listed(names, ', ')}: {what}; {hint}" for (what, hint), names in by_what.items()]


def limits(node: Node, needs: Needs) -> Iterator[Finding]:
    """Yield what is scarce on a node: shared memory, open files, disk."""
    facts = node.facts
    enough = max(LEAST_SHM_BYTES, node.has.get("object_store_memory", 0))
    if "GPU" in needs.gangs_on and node.holds("GPU") and 0 < facts.shm_bytes < enough:
        what = (
            f"/dev/shm has {format_size(facts.shm_bytes)}, less than the {format_size(enough)} that NCCL and Ray want"
        )
        yield Finding(
            node.name, "shm", "warning", what, "start the container with --shm-size=8g, or mount a larger one"
        )
    if 0 < facts.open_files < LEAST_OPEN_FILES:
        severity: Severity = "error" if facts.open_files < HOPELESS_OPEN_FILES else "warning"
        what = f"a process may open {facts.open_files} files only"
        yield Finding(node.name, "open files", severity, what, "raise it before Ray starts there: ulimit -n 65536")
    if 0 < facts.disk_bytes < LEAST_DISK_BYTES:
        what = f"{format_size(facts.disk_bytes)} are free for temporary files"
        yield Finding(
            node.name, "disk", "warning", what, "free some space, or start Ray there with --temp-dir on a larger disk"
        )


def _of_node(here: Facts, node: Node, needs: Needs) -> Iterator[Finding]:
    if node.silent:
        hint = "see whether it hangs (`ray status`); the run goes on with the other nodes"
        yield Finding(node.name, "answer", "warning", node.problem, hint)
    elif node.problem:
        yield Finding(node.name, "answer", "error", node.problem, SAME_PYTHON)
    else:
        yield from _versions(here, node.facts, node.name)
        yield from _code(here, node.facts, node.name, needs)
        if node.facts.store:
            yield Finding(node.name, "store", "error", node.facts.store, SHARED_STORE)
        if abs(node.facts.skew_seconds) > SKEW_SECONDS:
            ahead = "ahead of" if node.facts.skew_seconds > 0 else "behind"
            what = f"its clock is {format_seconds(abs(node.facts.skew_seconds))} {ahead} this machine's"
            yield Finding(node.name, "clock", "warning", what, "no result depends on it, times in logs do: set up NTP")
        yield from limits(node, needs)


def _versions(here: Facts, there: Facts, node: str) -> Iterator[Finding]:
    if _minor(there.python) != _minor(here.python):
        yield Finding(node, "python", "error", f"Python {there.python}, here {here.python}", SAME_PYTHON)
    elif there.python != here.python:
        what = f"Python {there.python}, here {here.python}"
        yield Finding(node, "python", "warning", what, "that works; one image for all nodes is safer")
    if there.ray != here.ray:
        yield Finding(node, "ray", "error", f"Ray {there.ray or 'is missing'}, here {here.ray}", SAME_PYTHON)
    if there.marin != here.marin:
        what = f"marin {there.marin or 'is not installed'}, here {here.marin}"
        yield Finding(node, "marin", "error", what, SAME_PYTHON)
    elif there.marin_digest != here.marin_digest:
        what = f"marin {there.marin} has other source files than here"
        yield Finding(node, "marin", "error", what, SAME_CODE)


def _code(here: Facts, there: Facts, node: str, needs: Needs) -> Iterator[Finding]:
    """Yield what differs of the modules that workers will import; what this machine cannot find is not compared."""
    wanted = [name for name in needs.modules if name in here.modules]
    missing = [name for name in wanted if name not in there.modules]
    other = [name for name in wanted if name not in missing and there.modules[name] != here.modules[name]]
    if missing:
        yield Finding(node, "modules", "error", f"has no {_modules(missing)}", SAME_CODE)
    if other:
        yield Finding(node, "code", "error", f"has another {_modules(other)} than here", SAME_CODE)


def _gangs(here: Facts, nodes: Sequence[Node], device: Device) -> Iterator[Finding]:
    """Yield what would break a gang: its ranks need one torch, and between GPUs one build of it and one NCCL."""
    able = [node for node in nodes if node.holds(device)]

    def torch(facts: Facts) -> str:
        return facts.torch if device == "GPU" else _public(facts.torch)

    for node, has, usual in _deviating(able, torch):
        what = f"torch {has or 'is not installed'}, on most nodes {usual or 'none'}"
        yield Finding(node, "torch", "error", what, SAME_PYTHON)
    for each in able:
        if here.torch and each.facts.torch and _public(each.facts.torch) != _public(here.torch):
            what = f"torch {each.facts.torch}, here {here.torch}"
            yield Finding(each.name, "torch", "warning", what, "that works: ranks run on the nodes alone")
    if device == "GPU":
        for node, has, usual in _deviating(able, lambda facts: facts.nccl):
            what = f"NCCL {has or 'is not installed'}, on most nodes {usual or 'none'}"
            yield Finding(node, "nccl", "error", what, SAME_PYTHON)
        for node, has, usual in _deviating(able, lambda facts: facts.cuda_driver):
            what = f"CUDA driver {has or 'not found'}, on most nodes {usual or 'none'}"
            yield Finding(
                node, "cuda", "warning", what, "kernels may differ between ranks; one driver for all is safer"
            )


def _deviating(nodes: Sequence[Node], get: Callable[[Facts], str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, own and usual value of each node that is not as most are; where two are as many, the newer counts."""
    counts = Counter(get(node.facts) for node in nodes)
    usual = max(counts, key=lambda value: (counts[value], value), default="")
    yield from ((node.name, get(node.facts), usual) for node in nodes if get(node.facts) != usual)


def _public(version: str) -> str:
    """Return a version without its build, such as `+cpu`: builds differ in what they run on."""
    return version.partition("+")[0]


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _modules(names: Sequence[str]) -> str:
    return f"module{'s' if len(names) > 1 else ''} {_listed(names, ', ')}"


def _listed(items: Sequence[str], between: str = "; ") -> str:
    more = f"{between}and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return between.join(items[:MOST_NAMED]) + more
