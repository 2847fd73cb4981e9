"""The cluster-launcher file against Ray's own schema, the policies, and the watcher of spot notices."""

import fcntl
import json
import os
import re
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[3]
CLOUD = ROOT / "infra/cloud"
CLUSTER: dict[str, Any] = yaml.safe_load((CLOUD / "aws.yaml").read_text())
TYPES = CLUSTER["available_node_types"]
WORKERS = {name: each for name, each in TYPES.items() if name != CLUSTER["head_node_type"]}


def test_cluster_is_what_rays_schema_asks() -> None:
    schema = json.loads((resources.files("ray") / "autoscaler/ray-schema.json").read_text())
    jsonschema.validate(CLUSTER, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**CLUSTER, "max_worker": 1}, schema)


def test_head_runs_no_step_and_stays_workers_come_and_go() -> None:
    head = TYPES[CLUSTER["head_node_type"]]
    assert head["resources"] == {"CPU": 0, "GPU": 0}
    assert "InstanceMarketOptions" not in head["node_config"]
    assert all(each["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot" for each in WORKERS.values())
    assert all(each["min_workers"] == 0 < each["max_workers"] for each in WORKERS.values())
    assert sum(each["max_workers"] for each in WORKERS.values()) <= CLUSTER["max_workers"]


def test_every_machine_has_the_constraints_the_token_and_its_role() -> None:
    assert any("-c constraints.txt" in command for command in CLUSTER["setup_commands"])
    assert any("RAY_AUTH_MODE=token" in command for command in CLUSTER["setup_commands"])
    assert CLUSTER["file_mounts"]["/home/ubuntu/.ray/auth_token"] == "~/.ray/auth_token"
    roles = {name: each["node_config"]["IamInstanceProfile"]["Name"] for name, each in TYPES.items()}
    assert roles == {"head": "marin-head", "cpu": "marin-worker", "gpu": "marin-worker"}
    assert all(each["node_config"]["MetadataOptions"]["HttpTokens"] == "required" for each in TYPES.values())


def test_scripts_named_on_the_machines_exist() -> None:
    commands = " ".join(CLUSTER["worker_start_ray_commands"])
    assert "~/marin/infra/cloud/watch-spot.sh" in commands
    assert os.access(CLOUD / "watch-spot.sh", os.X_OK)


def test_policies_let_workers_reach_the_bucket_only() -> None:
    policies = {name: json.loads((CLOUD / f"{name}.json").read_text()) for name in ("trust", "bucket", "workers")}
    assert all(each["Version"] == "2012-10-17" for each in policies.values())
    bucket = [resource for statement in policies["bucket"]["Statement"] for resource in [statement["Resource"]]]
    assert bucket == ["arn:aws:s3:::BUCKET", "arn:aws:s3:::BUCKET/*"]


def test_roles_are_made_once_and_their_policies_brought_up_to_date(shell) -> None:
    shell.fake(
        "aws",
        'echo "$@" >>"$HOME/calls"; case "$*" in *get-caller-identity*) echo 4711 ;;\n'
        '*get-role*) [ -e "$HOME/$4" ] ;; *create-role*) touch "$HOME/$4" ;; esac\n',
    )
    calls = shell.folder / "calls"
    assert shell.start(CLOUD / "roles.sh", "lab-data").wait(20) == 0
    text = calls.read_text()
    assert (text.count("create-role"), text.count("create-instance-profile")) == (2, 2)
    assert "arn:aws:s3:::lab-data/*" in text
    assert "arn:aws:iam::4711:role/marin-worker" in text
    calls.unlink()
    assert shell.start(CLOUD / "roles.sh", "lab-data").wait(20) == 0
    assert (calls.read_text().count("create-"), calls.read_text().count("put-role-policy")) == (0, 3)
    assert shell.start(CLOUD / "roles.sh").wait(20) == 2


def test_spot_notice_makes_the_node_leave_and_one_watcher_is_enough(shell) -> None:
    """On a copy whose leave.py only says that it was called: this machine may have nodes of other tests."""
    script = shell.folder / "infra/cloud/watch-spot.sh"
    for path in (script, shell.folder / "infra/node/leave.py"):
        path.parent.mkdir(parents=True)
    shutil.copy(CLOUD / "watch-spot.sh", script)
    (shell.folder / "infra/node/leave.py").write_text("import sys\nprint('leaves', *sys.argv[1:])\n")
    shell.fake(
        "curl",
        'case "$*" in *api/token*) echo session ;; *) touch "$HOME/look-$$"\n'
        '[ "$(ls "$HOME"/look-* | wc -l)" -ge 2 ] || exit 22; echo terminate ;; esac\n',
    )
    with (shell.folder / ".watch-spot.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert shell.start(script).wait(20) == 0
        assert shell.log.read_text() == ""
    assert shell.start(script, MARIN_LOOK_SECONDS="0.05").wait(20) == 0
    assert re.fullmatch(r"\S+ notice: terminate\nleaves --seconds 100\n", shell.log.read_text())
    assert len(list(shell.folder.glob("look-*"))) == 2  # the first look found none
