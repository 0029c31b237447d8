"""Training logs: each dialect as its trainer prints it, the floor, and the correction."""

from types import SimpleNamespace
from typing import Any

import pytest

from calibrate import log
from catalog.errors import RigplanError

# 512 samples of 1,024 tokens a step on 8 GPUs.
BATCH = log.Batch(samples=512, tokens=512 * 1024, gpus=8, accumulation=4)

NANOGPT = """\
step 0: train loss 10.9895, val loss 10.9886
iter 0: loss 10.9886, time 31023.11ms, mfu -100.00%
iter 10: loss 9.4312, time 250.10ms, mfu -100.00%
iter 20: loss 8.7121, time 251.30ms, mfu 38.01%
iter 30: loss 8.1121, time 252.50ms, mfu 38.00%
"""
TORCHTITAN = (
    "[rank0]:2025-01-22 10:12:27 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.2721  "
    "\x1b[33mmemory: 75.10GiB(94.94%)  \x1b[34mtps: 1,212  \x1b[36mtflops: 70.18  \x1b[35mmfu: 7.10%\x1b[39m\n"
    "[rank0]:2025-01-22 10:12:40 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss: 10.7069  "
    "\x1b[33mmemory: 77.00GiB(97.35%)  \x1b[34mtps: 5,762  \x1b[36mtflops: 333.69  \x1b[35mmfu: 33.74%\x1b[39m\n"
    "[rank0]:2025-01-22 10:12:53 - root - INFO - \x1b[31mstep: 20  \x1b[32mloss: 9.7069  "
    "\x1b[33mmemory: 77.00GiB(97.35%)  \x1b[34mtps: 5,762  \x1b[36mtflops: 333.69  \x1b[35mmfu: 33.74%\x1b[39m\n"
)
MEGATRON = (
    " [2024-06-12 10:00:00] iteration      100/  500000 | consumed samples:        51200 | "
    "elapsed time per iteration (ms): 1234.5 | learning rate: 1.0E-04 | global batch size:   512 | lm loss: 7.1E+00 |\n"
)
TRAINER = (
    "{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': 0.1}\n"
    "{'train_runtime': 5559.2, 'train_samples_per_second': 92.1, 'train_steps_per_second': 0.18, 'train_loss': 2.1}\n"
)
TQDM_SLOW = (
    "Loading checkpoint shards: 100%|██████████| 4/4 [00:05<00:00,  1.31s/it]\r"
    "  1%|▏         | 10/1000 [00:31<42:10,  2.56s/it]\r  2%|▏         | 20/1000 [00:55<40:12,  2.46s/it]\r"
    "  3%|▎         | 30/1000 [01:19<39:40,  2.46s/it]\r"
)
TQDM_FAST = " 50%|█████     | 500/1000 [06:57<06:56,  1.20it/s]\n"
LLM_C = (
    "step   10/18865 | loss 9.532 (+nanz)| norm 2.1 (+nanz)| lr 8.57e-06 | 2450.34 ms | 36.1% bf16 MFU | 213987 tok/s\n"
)
DEEPSPEED = (
    "[INFO] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=98.2, "
    "CurrSamplesPerSec=102.4, MemAllocated=1GB\n"
)


@pytest.mark.parametrize(
    ("text", "dialect", "seconds"),
    [
        (NANOGPT, "nanoGPT", 0.2513),  # the first of four is dropped
        (TORCHTITAN, "torchtitan", 512 * 1024 / (5762 * 8)),
        (MEGATRON, "Megatron", 1.2345),
        (TRAINER, "transformers Trainer", 512 / 92.1),  # steps per second are printed with fewer digits
        ("{'train_runtime': '5559.2', 'train_samples_per_second': '92.1'}", "transformers Trainer", 512 / 92.1),
        (TQDM_SLOW, "tqdm", 2.46),  # the bar of the checkpoint's shards is not the training's
        (TQDM_FAST, "tqdm", 1 / 1.2),
        (LLM_C, "llm.c", 2.45034),
        (DEEPSPEED, "DeepSpeed", 5.0),
        ("step 3 | 250 ms/step", "milliseconds per step", 0.25),
        ("2.5 s/step", "seconds per step", 2.5),
        ("step:5/9 train_time:760ms step_avg:151.25ms", "step time", 0.15125),
        ("loss 2.1 | 52,429 tokens/s", "tokens per second", 512 * 1024 / 52429),
        ("throughput: 1,024 tokens/s/gpu", "tokens per second and GPU", 64.0),
        ("tokens_per_second: 52428.8", "tokens per second", 10.0),
        ("speed 256 samples/sec", "samples per second", 2.0),
    ],
)
def test_a_dialect_is_read(text: str, dialect: str, seconds: float) -> None:
    reading = log.read(text, BATCH)
    assert reading.dialect == dialect
    assert reading.seconds == pytest.approx(seconds)


def test_the_first_tenth_is_dropped_and_the_median_and_quartiles_are_of_the_rest() -> None:
    times = [9000.0, 5000.0] + [100.0 + number for number in range(18)]
    text = "\n".join(f"iter {number}: loss 3.2, time {value}ms, mfu 38%" for number, value in enumerate(times))
    reading = log.read(text, BATCH)
    assert (reading.count, reading.dropped) == (18, 2)
    assert reading.seconds == pytest.approx(0.1085)
    assert reading.low_seconds == pytest.approx(0.10425)
    assert reading.high_seconds == pytest.approx(0.11275)


def test_iterations_that_are_micro_steps_are_added_up() -> None:
    assert log.read(TQDM_FAST, BATCH, micro_steps=True).seconds == pytest.approx(4 / 1.2)
    assert log.read(DEEPSPEED, BATCH, micro_steps=True).seconds == pytest.approx(5.0)  # samples are samples


def test_a_log_without_any_time_is_refused_and_the_dialects_are_named() -> None:
    with pytest.raises(RigplanError, match=r"no step time in the log's 2 lines; wanted one of: nanoGPT, Megatron"):
        log.read("hello\n\nloss 3.2\n", BATCH)


def test_tokens_tell_nothing_of_a_model_without_sequences() -> None:
    with pytest.raises(RigplanError, match="the spec has no sequences"):
        log.read("52,429 tokens/s", log.Batch(64, None, 1))


def _answer(**step: float) -> Any:
    return SimpleNamespace(
        step=SimpleNamespace(
            **{"seconds": 0.2, "low_seconds": 0.19, "high_seconds": 0.22, "floor_seconds": 0.1, "known": "measured"}
            | step
        ),
        throughput=SimpleNamespace(tokens_per_second_per_gpu=327680.0),
        strategy=SimpleNamespace(global_batch=512, accumulation=4),
        hardware=SimpleNamespace(gpu="h100-sxm5-80gb", count=8),
    )


def test_the_batch_is_the_estimates() -> None:
    assert log.batch_of(_answer()) == BATCH


def test_the_correction_is_measured_over_predicted_with_its_range() -> None:
    answer = _answer()
    correction = log.corrected(log.read(NANOGPT, BATCH), answer)
    assert correction.ratio == pytest.approx(0.2513 / 0.2)
    assert (correction.low_ratio, correction.high_ratio) == pytest.approx((0.2507 / 0.2, 0.2519 / 0.2))
    assert not correction.inside
    lines = list(log.report(correction, answer))
    assert (
        lines[0]
        == "log:        251.3 ms a step (250.7 ms to 251.9 ms), 3 readings of nanoGPT in ms, the first 1 dropped"
    )
    assert lines[2] == "correction: x 1.26 (1.25 to 1.26); the estimate's range does not hold the log"
    assert lines[3].startswith("Multiply the seconds, days, GPU-hours and USD of this spec by 1.26")


def test_a_time_below_the_physical_floor_is_refused_with_that_reason() -> None:
    with pytest.raises(
        RigplanError, match=r"found 251.3 ms a step in the log \(nanoGPT\), below the physical floor of 300 ms"
    ):
        log.corrected(log.read(NANOGPT, BATCH), _answer(floor_seconds=0.3))


def test_what_a_reading_takes_for_granted_is_said() -> None:
    answer = _answer()
    for text, told in ((TQDM_FAST, "--micro-steps"), (TRAINER, "a mean over the whole run"), (MEGATRON, "one reading")):
        assert told in "\n".join(log.report(log.corrected(log.read(text, BATCH), answer), answer))
