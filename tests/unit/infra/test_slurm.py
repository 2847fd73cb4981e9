"""The Slurm script with a fake srun and scontrol: real Ray on two nodes of this host, a real run over both."""

import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "infra/slurm/marin.sbatch"
SRUN = """
while [[ $1 == --* ]]; do shift; done
trap 'kill -TERM $(jobs -p) 2>/dev/null' TERM
for ((i = 0; i < SLURM_JOB_NUM_NODES; i++)); do SLURM_NODEID=$i "$@" & done
while [ -n "$(jobs -pr)" ]; do wait; done
"""
SCONTROL = 'if [ "$1" = show ]; then tr , "\\n" <<<"$3"; else echo "$@" >>"$HOME/scontrol.log"; fi\n'
JOB = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "localhost,localhost",
    "SLURM_CPUS_ON_NODE": "1",
    "SLURM_MEM_PER_NODE": "3000",
}


@pytest.fixture
def slurm(shell):
    shell.fake("srun", SRUN)
    shell.fake("scontrol", SCONTROL)
    return shell


def held_job(slurm) -> subprocess.Popen[str]:
    """Start a job whose ranks go on until they are asked to stop; return once both are there."""
    job = slurm.start(SCRIPT, *slurm.pipeline(held="true"), **JOB)
    for rank in range(2):
        slurm.wait_for(f"rank-{rank}", job)
    return job


def ended(slurm, job: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the job's exit code and output; nothing may be left of it."""
    code = job.wait(150)
    output = slurm.log.read_text()
    assert slurm.processes() == [], output
    assert not (slurm.folder / ".marin/slurm/77").exists()
    return code, output


def test_slurm_job_at_its_time_limit_stops_the_run_over_both_nodes_and_is_queued_again(slurm):
    job = held_job(slurm)
    private = slurm.folder / ".marin/slurm/77"
    assert [oct(path.stat().st_mode)[-3:] for path in (private, private / "token")] == ["700", "600"]
    assert len({(slurm.folder / f"rank-{rank}").read_text() for rank in range(2)}) == 2
    job.send_signal(signal.SIGUSR1)
    code, output = ended(slurm, job)
    assert (code, slurm.run_states()) == (130, ["stopped"]), output
    assert (slurm.folder / "stopped-1").exists(), "the rank was killed before it could leave a checkpoint"
    assert (slurm.folder / "scontrol.log").read_text() == "requeue 77\n"


def test_slurm_job_whose_ray_does_not_start_says_so_and_ends(slurm):
    slurm.fake("ray", "echo no such luck >&2; exit 1\n")
    code, output = ended(slurm, slurm.start(SCRIPT, *slurm.pipeline(), **JOB))
    assert code == 3
    assert "no such luck" in output
    assert "Ray did not start" in output


@pytest.mark.slow
def test_slurm_job_queued_again_continues_to_the_end(slurm):
    job = held_job(slurm)
    job.send_signal(signal.SIGUSR1)
    ended(slurm, job)
    code, output = ended(slurm, slurm.start(SCRIPT, *slurm.pipeline(), **JOB))
    assert (code, slurm.run_states()) == (0, ["done", "stopped"]), output


@pytest.mark.slow
def test_slurm_job_that_is_asked_to_stop_is_not_queued_again(slurm):
    job = held_job(slurm)
    job.send_signal(signal.SIGTERM)
    code, output = ended(slurm, job)
    assert (code, slurm.run_states()) == (130, ["stopped"]), output
    assert not (slurm.folder / "scontrol.log").exists()


@pytest.mark.slow
def test_slurm_job_with_a_missing_node_ends_at_the_deadline_and_counts(slurm):
    slurm.fake("srun", SRUN.replace("i < SLURM_JOB_NUM_NODES", "i < 1"))
    code, output = ended(slurm, slurm.start(SCRIPT, *slurm.pipeline(), **JOB, MARIN_JOIN_SECONDS="8"))
    assert code == 3
    assert "1 of 2 nodes joined within 8 s" in output


@pytest.mark.slow
def test_slurm_jobs_that_share_a_host_do_not_clash(slurm):
    """Four raylets of two clusters on one host, started at once."""
    first, second = (
        slurm.start(SCRIPT, *slurm.pipeline(label=label), **{**JOB, "SLURM_JOB_ID": number})
        for label, number in (("a", "77"), ("b", "78"))
    )
    assert (first.wait(200), second.wait(200)) == (0, 0), slurm.log.read_text()
    assert slurm.processes() == []
