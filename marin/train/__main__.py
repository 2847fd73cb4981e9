"""Training without a store or a cluster: `python -m marin.train`, also under torchrun.

    python -m marin.train --data DIR --config config.json --checkpoints URL --output DIR
    torchrun --nproc-per-node 2 -m marin.train --data DIR ...

The same loop that the engine runs in a gang. Run the same command again after any crash and it continues.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from marin import fs
from marin.base.config import configuration_error
from marin.base.errors import InputError, MarinError
from marin.train.config import TrainConfig
from marin.train.entry import files_of, train_rank
from marin.train.folder import open_folder
from marin.train.launched import LaunchedMember
from marin.train.ranks import host_rendezvous

log = logging.getLogger("marin.train")


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one rank and return the exit code; progress and errors go to the log."""
    options = _options(arguments)
    try:
        member = launched_member(environment)
        config = read_config(options.config)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: member.stop.set())
        result = train_rank(
            member,
            config=config,
            data=open_folder(fs.normalise(options.data)),
            checkpoints=fs.normalise(options.checkpoints),
            output=fs.FolderOutput(fs.normalise(options.output)),
            validation=open_folder(fs.normalise(options.validation)) if options.validation else None,
        )
        files_of([result])
    except MarinError as error:
        log.error("error: %s", error)  # noqa: TRY400  the reader is a user, who needs no traceback
        return error.exit_code
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m marin.train", description="Train a decoder on packed sequences.")
    parser.add_argument("--data", required=True, help="folder written by marin.train.folder.write_folder")
    parser.add_argument("--validation", help="folder of held-out sequences, written alike; their loss is logged")
    parser.add_argument("--config", required=True, type=Path, help="JSON file with the fields of TrainConfig")
    parser.add_argument("--checkpoints", required=True, help="URL of the folder to resume from and write to")
    parser.add_argument("--output", required=True, help="folder for weights, config.json and training.json")
    return parser.parse_args(arguments)


def launched_member(environment: Mapping[str, str]) -> LaunchedMember:
    """Return the member that torchrun's variables describe; a single rank without them."""
    rank, world_size = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    address = f"{environment.get('MASTER_ADDR', '127.0.0.1')}:{environment.get('MASTER_PORT', '29500')}"
    hosts = rank == 0 and world_size > 1 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return LaunchedMember(
        rank=rank,
        world_size=world_size,
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        generation=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
        rendezvous=address,
        hosted=host_rendezvous(address) if hosts else None,
        say=log.info,
    )


def read_config(path: Path) -> TrainConfig:
    """Return the configuration in a JSON file; raises InputError or ConfigurationError naming what is wrong."""
    try:
        return TrainConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", where=str(path), hint="check the path") from error
    except ValidationError as error:
        raise configuration_error(TrainConfig, error) from None


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    sys.exit(main(sys.argv[1:], os.environ))
