"""How a rank's program leaves its process group."""

from __future__ import annotations

import torch.distributed as dist


def leave_group() -> None:
    """Before the program ends, on every rank.

    Gloo's threads let go of a collective's tensors in their own time. Where Python knows such a
    tensor too (FSDP2's full_tensor(), all_gather_object), doing so while Python ends aborts the
    process: "terminate called without an active exception". They do it while a barrier waits.
    """
    dist.barrier()
    dist.destroy_process_group()
