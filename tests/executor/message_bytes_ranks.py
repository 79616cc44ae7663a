"""One rank of a job that prints the bytes of each message which it gives to torch.distributed, by receiver."""

import json
from pathlib import Path

import torch.distributed as dist

from pipesched.executor.transport.channel_ends import MESSAGE_TAG
from tests.executor import job_sequence_ranks


def main(arguments):
    sent, isend = {}, dist.isend

    def recorded(tensor, peer, group, tag):
        if tag == MESSAGE_TAG:  # other tags are of the rest of a message that did not fit half precision
            sent.setdefault(peer, []).append(tensor.nbytes)
        return isend(tensor, peer, group=group, tag=tag)

    dist.isend = recorded
    (path,) = Path(arguments[0]).glob("*.json")
    job_sequence_ranks.losses(path.read_text(), path.name, f"file://{arguments[0]}/store")
    print(json.dumps(sent), flush=True)
    return 0
