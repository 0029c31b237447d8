"""Techniques applied to a workload after its trace: pure functions from Workload to Workload, without torch.

How several ranks come into a workload:

    sharding         traced as                        then the pass
    none             one rank, whole module           ddp.apply: buckets, a last_micro_step that reduces them
    zero1 by torch   one rank, whole module           zero_redundancy.apply: DDP, and a step on one rank's parameters
    zero1, zero2     one rank, weights in the          zero.apply: fp32 partitions, reduction buckets, gather of the
                     computing dtype                  weights after the step
    zero3            as fsdp, in the computing dtype  zero.partitioned: fp32 partitions, live-parameter limit
    fsdp, -grad-op,  under a fake process group with  none: torch's own code has shown it
    hsdp             torch's fully_shard (wrappers)
    tensor parallel  the same, with DTensor           none

A collective is a Call ("collective.all_gather") whose argument is the full tensor and whose keywords name the group
("shard", "replicate", "tensor", "world") and whether its input is computed just before or lies stored. Group sizes are
not
in the workload: a Mesh decided the shapes, and `communication.spans` gives each group its GPUs on a machine. `WAIT`
events
say where the device needs a result. So one workload serves any machine:

    Workload ─► communication.call_seconds (link seconds of each call) ─► collectives.schedule (three queues) ─► exposed

Sizes over n ranks need no trace each: `shard_family.ShardFamily` reads them off the traces over 2 and 4.

Segments: `load` ends with what a technique holds for the whole run (buckets, partitions); `micro_step` is a micro-step
that
is not the last; `last_micro_step`, where it exists, replaces the last one (DDP reduces there alone, no_sync before);
`optimizer_first` and `optimizer` hold the step and the gather of what it changed.
Further blocks are numbered after the trace's; categories are the trace's own.
"""

from __future__ import annotations
