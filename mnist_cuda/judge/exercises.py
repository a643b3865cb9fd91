"""The exercises: each is one of our kernels with a hole or a fault in it, so its answer is our file."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnist_cuda.bench import emulate
from mnist_cuda.errors import UsageError, did_you_mean
from mnist_cuda.files import atomic_write
from mnist_cuda.judge.hints import HINTS
from mnist_cuda.judge.signatures import closing
from mnist_cuda.judge.verdict import Rule, Verdict

WIDTH = 100  # of a statement
HOLE = "Your code."


@dataclass(frozen=True)
class Exercise:
    """`holes`: functions of the answer whose bodies the learner writes; `changes`: what else differs in the skeleton.
    `simpler`: changes of the answer itself; `without`: functions whose paragraphs it is then shown without.

    Where `goal` holds for the counters, or the bits do not repeat although they should, the file is not accepted.
    """

    name: str
    answer: str  # below native/gpu/kernels
    launcher: str
    title: str
    statement: str
    holes: tuple[str, ...] = ()
    changes: tuple[tuple[str, str], ...] = ()
    goal: Rule | None = None
    same_bits: bool = False
    simpler: tuple[tuple[str, str], ...] = ()
    without: tuple[str, ...] = ()


def _bug(number: int, answer: str, launcher: str, what: str, before: str, after: str) -> Exercise:
    statement = f"This is {what}, with one mistake in it. Judge the file as it is, and find the line."
    name = f"bug-{number}"
    return Exercise(name, answer, launcher, f"find the mistake: {what}", statement, changes=((before, after),))


EXERCISES = {
    each.name: each
    for each in (
        Exercise(
            "relu",
            "relu/naive.cu",
            "relu_forward",
            "a first kernel: one thread per element",
            "Write relu_forward_kernel. For each element, pass says whether x passes, 1 or 0, and y is x where it "
            "does and 0 elsewhere. A NaN passes, so test for x <= 0 rather than for x > 0. The last block has more "
            "threads than there are elements left. T is float.",
            ("relu_forward_kernel",),
            without=("relu_backward", "relu_backward_kernel"),
        ),
        Exercise(
            "float4",
            "relu/float4.cu",
            "relu_forward_float4",
            "16 bytes per load",
            "Write relu_forward_float4_kernel: relu by four elements per thread, one load of x as a float4, one store "
            "of y as a float4 and one of pass as a uchar4. The thread with the last, incomplete four takes them one by "
            "one. The launcher refuses arrays at addresses that float4 cannot have.",
            ("relu_forward_float4_kernel",),
            goal=Rule("wide", 8, "bytes per access of a lane", at_least=True),
        ),
        Exercise(
            "linear",
            "linear/naive.cu",
            "linear_forward",
            "a matrix product, one thread per output",
            "Write linear_forward_kernel: y[b,o] = bias[o] + the sum over i of w[o,i] * x[b,i]. Matrices are stored "
            "row by row: w[o,i] is w[o * in + i]. A block has one row b and kBlock outputs. When it is right, read "
            "what the judge says about sectors: a warp reads 32 rows of w at once.",
            ("linear_forward_kernel",),
            simpler=(('  require_sizes("linear_forward", batch, in, out);\n', ""),),
            without=(
                *("require_sizes", "linear_backward"),
                *(f"linear_backward_{what}_kernel" for what in ("x", "w", "bias")),
            ),
        ),
        Exercise(
            "coalesce",
            "linear/coalesced.cu",
            "linear_forward_coalesced",
            "neighbouring lanes read neighbouring numbers",
            "Write linear_forward_coalesced_kernel: one warp per output, whose 32 lanes walk along the row of w side "
            "by side, so that a load of the warp is 128 bytes that lie together. Then add the 32 partial sums by "
            "__shfl_down_sync, and lane 0 writes the output.",
            ("linear_forward_coalesced_kernel",),
            goal=Rule("sectors", 1.1, "sectors over the least"),
        ),
        Exercise(
            "tile",
            "linear/tiled.cu",
            "linear_forward_tiled",
            "tiles in shared memory",
            "Write tiled_kernel: a block computes 32x32 outputs. It walks along the summed index by 32: all threads "
            "load a tile of a and one of b to shared memory, wait for each other, add 32 products each, and wait again "
            "before the next tiles overwrite these. What lies outside of a matrix counts as 0. Each block sums one "
            "slice of the index, blockIdx.z.",
            ("tiled_kernel",),
            goal=Rule("traffic", 8, "bytes of global memory over the arrays'"),
            simpler=(
                ("one thread an output; forward and backward", "one thread an output"),
                ("static_assert(kLinearTile.columns == kTile && kLinearSliceUnit % kTile == 0);\n", ""),
                (
                    "  multiply<true, true>(partial, x, w, batch, out, in, slices, stream);\n",
                    "  const dim3 grid(unsigned(ceil_div(batch, kTile)), unsigned(ceil_div(out, kTile)), "
                    "unsigned(slices.count));\n"
                    "  tiled_kernel<true, true><<<grid, dim3(kTile, kTile), 0, stream>>>(partial, x, w, batch, out, "
                    "in, slices.depth);\n"
                    "  MNIST_CHECK_LAUNCH();\n",
                ),
            ),
            without=("multiply", "linear_backward_tiled"),
        ),
        Exercise(
            "padding",
            "linear/tiled.cu",
            "linear_forward_tiled",
            "bank conflicts",
            "This kernel is right, but slow: where a warp reads a column of a tile, all 32 numbers lie in the same "
            "bank of shared memory, which gives one per turn. Change the shape of the tiles.",
            changes=(
                ("__shared__ float a_tile[kTile][kTile + 1];", "__shared__ float a_tile[kTile][kTile];"),
                (
                    "__shared__ float b_tile[kTile][kTile + 1];  // the column reads below hit 32 banks instead of one",
                    "__shared__ float b_tile[kTile][kTile];",
                ),
            ),
            goal=Rule("turns", 1.1, "turns of the banks over the least"),
        ),
        Exercise(
            "transpose",
            "transpose/tiled.cu",
            "transpose_padded",
            "store through shared memory",
            "Write transpose_tiled_kernel: y[c,r] = x[r,c]. Straight from memory to memory, either the loads or the "
            "stores of a warp would go down a column, 32 sectors for 32 numbers. So a block loads a tile of 32x32 "
            "along the rows of x, waits, and stores it along the rows of y; the tile turns in shared memory. Its rows "
            "are kPitch apart, 33 here: say which banks the 32 numbers of a column lie in. Leave kSwizzled aside, or "
            "use it.",
            ("transpose_tiled_kernel",),
            goal=Rule("sectors", 1.1, "sectors over the least"),
        ),
        Exercise(
            "divergence",
            "row_sums/warp.cu",
            "row_sums_warp",
            "lanes that wait for other lanes",
            "Write row_sums_warp_kernel: y[r] is the sum of the first length[r] numbers of row r. row_sums/naive.cu "
            "gives each row to a thread: a warp goes round as often as its longest row is long, and half of its lanes "
            "idle. Give each row to a warp: its 32 lanes walk along it side by side, add their sums by "
            "__shfl_down_sync, and lane 0 writes. What lies behind the first length[r] numbers is NaN here.",
            ("row_sums_warp_kernel",),
            goal=Rule("idle", 0.2, "share of idle lanes"),
        ),
        Exercise(
            "slices",
            "linear/tiled.cu",
            "linear_forward_tiled",
            "too few blocks for the GPU",
            "This kernel is right, but 64x64 outputs make only 4 blocks, and a GPU has some 100 multiprocessors. Cut "
            "the summed index into slices, each summed in blocks of its own; linear_slices of kernels/linear/slices.h "
            "says how many. The launch of linear_add_slices adds them.",
            changes=(
                (
                    "const auto slices = linear_slices(kLinearTile, batch, out, in);",
                    "const LinearSlices slices{1, (in + kTile - 1) / kTile * kTile};  // count, depth",
                ),
            ),
            goal=Rule("blocks", 32, "blocks of the smallest launch", at_least=True),
        ),
        Exercise(
            "registers",
            "linear/register_tiled.cu",
            "linear_forward_register_tiled",
            "16 outputs in the registers of a thread",
            "Write linear_forward_register_tiled_kernel: a block computes 64x64 outputs by 16x16 threads, 4x4 per "
            "thread. For each step of the summed index a thread loads 4 numbers of either tile, as a float4, for 16 "
            "products. load_tile is there: it stores tiles transposed.",
            ("linear_forward_register_tiled_kernel",),
            goal=Rule("loads", 1, "loads per product"),
        ),
        Exercise(
            "pool",
            "relu_max_pool2d/float2.cu",
            "relu_max_pool2d_forward_float2",
            "relu and the maximum of 2x2 windows, and where it was",
            "Write relu_max_pool2d_forward_float2_kernel: one thread per window of 2x2 numbers, in two loads of a "
            "float2. y is the maximum, or 0 if that is not positive; route is the place of the first maximum, 0 to 3, "
            "or kDead. A NaN wins: `consider` does that.",
            ("relu_max_pool2d_forward_float2_kernel",),
        ),
        Exercise(
            "unpool",
            "relu_max_pool2d/float2.cu",
            "relu_max_pool2d_backward_float2",
            "the gradient goes where the maximum was",
            "Write relu_max_pool2d_backward_float2_kernel: dx is dy at the place that route names and 0 at the other "
            "three of the window, in two stores of a float2. Nothing has set dx to 0 before.",
            ("relu_max_pool2d_backward_float2_kernel",),
            goal=Rule("sectors", 1.3, "sectors over the least"),
        ),
        Exercise(
            "reduction",
            "batch_norm/shuffle.cu",
            "batch_norm_statistics_shuffle",
            "a sum over a block that gives the same bits every time",
            "Write warp_sum, the sum over a warp by shuffles, and moment_kernel, in which a block sums a chunk of a "
            "channel: x, or the squared distances from the mean. Each warp leaves its sum in shared memory, and the "
            "first warp adds these. device::for_each_of_chunk<kBlock>(batch, area, [&](std::int64_t k) { ... }) gives "
            "a thread its share. Without atomicAdd: its order, and so the last bits, change from run to run.",
            ("warp_sum", "moment_kernel"),
            same_bits=True,
        ),
        Exercise(
            "privatise",
            "histogram/privatised.cu",
            "histogram_privatised",
            "counters of one's own",
            "Write histogram_privatised_kernel: count[v] grows by the number of pixels of value v; it was set to 0. "
            "One atomicAdd to count per pixel would be right, and all threads of the GPU would wait at the counter of "
            "the background. So a block counts its kHistogramBlock * kHistogramEach pixels in shared memory, and then "
            "adds each counter once. The bits repeat although the order does not: integers may be added in any.",
            ("histogram_privatised_kernel",),
            goal=Rule("atomics", 1024, "atomic operations on global memory"),
            same_bits=True,
        ),
        Exercise(
            "welford",
            "batch_norm/welford.cu",
            "batch_norm_statistics_welford",
            "mean and variance in one pass, without cancellation",
            "Write Moments::add, which takes one more number, and Moments::merge, which takes another group in: n "
            "numbers, their mean, and the sum of their squared distances from it. E[x^2] - E[x]^2 is no way: for "
            "numbers around 4096 it loses every digit. Look up Welford's and Chan's formulas.",
            ("add", "merge"),
            same_bits=True,
        ),
        Exercise(
            "norm-backward",
            "batch_norm/naive.cu",
            "batch_norm_backward",
            "batch norm's gradient, derived by hand",
            "With xhat = (x - mean) / sigma, derive dbeta, dgamma and dx, then write gradient_sums_kernel, the sums of "
            "dy and of dy * xhat over a chunk, and batch_norm_backward_kernel, dx. Mean and variance depend on x, too. "
            "device::block_sum<kBlock>(value, shared) adds the values of a block in a fixed order.",
            ("gradient_sums_kernel", "batch_norm_backward_kernel"),
            same_bits=True,
        ),
        Exercise(
            "softmax",
            "log_softmax/online.cu",
            "log_softmax_forward_online",
            "maximum and sum in one pass",
            "Write Online::add: it has the maximum of the numbers so far and the sum of exp(x - maximum), and takes "
            "one more. Where that is a new maximum, the sum is worth less.",
            ("add",),
        ),
        Exercise(
            "softmax-warp",
            "log_softmax/online.cu",
            "log_softmax_forward_warp",
            "lanes merge what they have seen",
            "Write Online::merge: two maxima, and two sums of exp(x - maximum), become one. A lane without a number "
            "has a sum of 0 and a maximum of -infinity, and -infinity less -infinity is NaN.",
            ("merge",),
        ),
        Exercise(
            "loss",
            "log_softmax/float4.cu",
            "log_softmax_nll_backward_float4",
            "the gradient of the loss, four numbers per thread",
            "Write log_softmax_nll_backward_float4_kernel: dx[b,k] = scale * (exp(log_p[b,k]) - 1 if k is the label of "
            "row b). Four neighbours may belong to two rows. The last, incomplete four go one by one.",
            ("log_softmax_nll_backward_float4_kernel",),
            goal=Rule("wide", 5, "bytes per access of a lane", at_least=True),
        ),
        Exercise(
            "conv",
            "conv2d/naive.cu",
            "conv2d_forward",
            "a 3x3 convolution with a border",
            "Write conv2d_forward_kernel: y[b,o,p,q] = bias[o] + the sum over i,u,v of w[o,i,u,v] * x[b,i,p+u-1,q+v-1],"
            " where x is 0 outside of the image. A block has one plane (b,o) and kBlock positions.",
            ("conv2d_forward_kernel",),
        ),
        Exercise(
            "conv-tile",
            "conv2d/tiled.cu",
            "conv2d_forward_tiled",
            "planes with their border in shared memory",
            "Write conv2d_forward_tiled_kernel: kPlanes input channels at a time lie in shared memory with a ring of "
            "zeros, beside their filters for kOutputs output channels; a thread computes kOutputs outputs at one "
            "position. Dynamic shared memory has both: extern __shared__ float4 shared[];",
            ("conv2d_forward_tiled_kernel",),
            goal=Rule("traffic", 8, "bytes of global memory over the arrays'"),
        ),
        Exercise(
            "conv-gemm",
            "conv2d/implicit_gemm.cu",
            "conv2d_forward_implicit_gemm",
            "a convolution as a matrix product",
            "Write implicit_gemm_kernel: exercise `registers` with a left side that does not exist in memory. "
            "gather_row and gather, of kernels/conv2d/gather.cuh, give its numbers.",
            ("implicit_gemm_kernel",),
            goal=Rule("loads", 1, "loads per product"),
        ),
        Exercise(
            "conv-weight",
            "conv2d/naive.cu",
            "conv2d_backward_weight",
            "the gradient of a filter: a sum over all positions",
            "Write conv2d_backward_weight_kernel: dw[o,i,u,v] = the sum over b,p,q of dy[b,o,p,q] * "
            "x[b,i,p+u-1,q+v-1]. A block has one pair (o,i) and one chunk of the images, a thread every "
            "kWeightBlock-th position with nine sums in registers. partial[chunk,o,i,u,v] takes the block's sums.",
            ("conv2d_backward_weight_kernel",),
            same_bits=True,
        ),
        Exercise(
            "fuse",
            "conv_bn_relu_pool/moments.cu",
            "layer_of_one_channel",
            "convolution, batch norm, relu and pooling in one launch",
            "Write layer_kernel, a whole layer of one input channel: z = conv2d of the image + bias, y = gamma * (z - "
            "mean) / sqrt(var + kBatchNormEpsilon) + beta, a = the maximum of each 2x2 window of y, or 0, and route = "
            "its first place, 0 to 3, or kDead. z and y stay in registers: a thread computes the four outputs of a "
            "window, for all kLayerChannels channels of the block, from 16 pixels. images.of(b) gives image b, a "
            "function of the position; Images::normalized brings a pixel into the network's units. A negative gamma "
            "turns the maximum around.",
            ("layer_kernel",),
            goal=Rule("traffic", 2, "bytes of global memory over the arrays'"),
        ),
        Exercise(
            "mma",
            "linear/tensor_cores.cu",
            "linear_forward_tensor_cores",
            "tensor cores by hand: mma.sync m16n8k8 in tf32",
            "Write linear_forward_tensor_cores_kernel: a warp multiplies 64x32 outputs by device::mma_tf32, of "
            "kernels/device/mma.cuh, which says which lane holds which number. copy_tile brings tiles by cp.async; "
            "kStages of them take turns.",
            ("linear_forward_tensor_cores_kernel",),
            goal=Rule("loads", 1, "loads per product"),
        ),
        _bug(
            1,
            "relu/float4.cu",
            "relu_forward_float4",
            "relu by four elements per thread",
            "if (first + 3 < count) {",
            "if (first < count) {",
        ),
        _bug(
            2,
            "linear/tiled.cu",
            "linear_forward_tiled",
            "a matrix product by tiles",
            "    __syncthreads();  // everyone is done with them\n",
            "",
        ),
        _bug(
            3,
            "batch_norm/shuffle.cu",
            "batch_norm_statistics_shuffle",
            "mean and variance by shuffles",
            "warp_sum(lane < kWarps ? of_warp[lane] : 0)",
            "warp_sum(of_warp[lane])",
        ),
        _bug(
            4,
            "conv2d/tiled.cu",
            "conv2d_forward_tiled",
            "a convolution by tiles",
            "r >= 0 && r < side && s >= 0 && s < side",
            "r >= 0 && r < side && s < side",
        ),
        _bug(
            5,
            "log_softmax/online.cu",
            "log_softmax_forward_online",
            "log-softmax in one pass",
            "sum = sum * expf(top - x) + 1;",
            "sum = sum + 1;",
        ),
    )
}


def find(name: str) -> Exercise:
    """Raises UsageError for an unknown one."""
    if name not in EXERCISES:
        raise UsageError(
            f"there is no exercise '{name}'{did_you_mean(name, EXERCISES)}; `mnist-cuda exercise` lists all"
        )
    return EXERCISES[name]


def answer(exercise: Exercise) -> str:
    """Our file, without the functions that the exercise has no use for."""
    text = (emulate.sources() / "gpu" / "kernels" / exercise.answer).read_text()
    for before, after in exercise.simpler:
        assert text.count(before) == 1, f"{exercise.name}: {before!r} is {text.count(before)} times in the answer"
        text = text.replace(before, after)
    unused = re.compile(rf"\b({'|'.join(exercise.without)})\(")
    return "\n\n".join(part for part in text.split("\n\n") if not (exercise.without and unused.search(part)))


def solution(exercise: Exercise) -> str:
    """The answer as a file that the judge counts for the exercise."""
    changed = [f"// The answer changes `{before.strip()}`." for before, _ in exercise.changes]
    return "\n".join([f"// exercise: {exercise.name}", *changed, "", answer(exercise)])


def next_hint(exercise: Exercise) -> tuple[list[str], int]:
    """The hints so far and one more, and how many there are; all of them once all were given."""
    given, hints = _given(), HINTS[exercise.name]
    count = min(given.get(exercise.name, 0) + 1, len(hints))
    _write(hints_file(), {**given, exercise.name: count})
    return list(hints[:count]), len(hints)


def hints_file() -> Path:
    """How many hints to each exercise were given."""
    return state_file().with_name("hints.json")


def _given() -> dict[str, int]:
    try:
        found = json.loads(hints_file().read_text())
    except (OSError, ValueError):
        return {}
    return {name: n for name, n in found.items() if isinstance(n, int)} if isinstance(found, dict) else {}


def _write(file: Path, state: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, json.dumps(state, indent=2).encode() + b"\n")


def skeleton(exercise: Exercise) -> str:
    """What the learner begins with: the statement, and the answer with its holes."""
    text = answer(exercise)
    for name in exercise.holes:
        text = _without_body(text, name)
    for before, after in exercise.changes:
        assert text.count(before) == 1, f"{exercise.name}: {before!r} is {text.count(before)} times in the answer"
        text = text.replace(before, after)
    words = [f"exercise: {exercise.name}", *words_of(exercise)]
    return "\n".join(["// " + line for line in words] + ["", text])


def words_of(exercise: Exercise) -> list[str]:
    """The lines of its statement and goal."""
    goal = [f"Goal: {_limit(exercise.goal)}."] if exercise.goal else []
    return [*textwrap.wrap(exercise.statement, WIDTH - 3), *goal]


def _without_body(text: str, function: str) -> str:
    found = []
    for match in re.finditer(rf"\b{function}\s*\(", text):
        end = closing(text, match.end() - 1) + 1
        if opening := re.match(r"\s*(const\s*)?{", text[end:]):
            found.append((match.start(), end + opening.end() - 1))
    assert len(found) == 1, f"{function} is defined {len(found)} times"
    start, opening_at = found[0]
    line = text.rfind("\n", 0, start) + 1
    margin = text[line : line + len(text[line:]) - len(text[line:].lstrip())]
    head = text[max(text.rfind(end, 0, start) for end in ";}{") + 1 : start]
    body = f"\n{margin}  // {HOLE}\n" + ("" if re.search(r"\bvoid\b", head) else f"{margin}  return {{}};\n") + margin
    return text[: opening_at + 1] + body + text[closing(text, opening_at) :]


def _limit(rule: Rule) -> str:
    return f"{rule.words}, at {'least' if rule.at_least else 'most'} {rule.limit:g}"


def apply_goal(exercise: Exercise, verdict: Verdict) -> None:
    """Puts what the exercise asks for beyond right numbers into the verdict."""
    if exercise.same_bits and not verdict.deterministic:
        verdict.goal, verdict.goal_missed = "MISSED: the same bits in every order", True
    if not exercise.goal or not verdict.counters or verdict.wrong or verdict.faults:
        return
    value = getattr(verdict.counters, exercise.goal.counter)
    verdict.goal_missed |= value is None or exercise.goal.holds(verdict.counters)
    reached = "none" if value is None else f"{value:.3g}"
    verdict.goal = f"{'MISSED' if verdict.goal_missed else 'reached'}: {_limit(exercise.goal)}; here {reached}"


def state_file() -> Path:
    """What is solved, in the user's data folder."""
    import platformdirs

    return Path(platformdirs.user_data_dir("mnist-cuda", appauthor=False)) / "exercises.json"


def solved() -> dict[str, str]:
    """Names of exercises, with the file that solved each. A file that cannot be read has none."""
    try:
        found = json.loads(state_file().read_text())
    except (OSError, ValueError):
        return {}
    return {name: str(file) for name, file in found.items() if name in EXERCISES} if isinstance(found, dict) else {}


def mark_solved(name: str, file: Path) -> None:
    _write(state_file(), {**solved(), name: str(file.resolve())})


def following(done: Iterable[str]) -> str:
    """The first one that is not solved, or nothing."""
    return next((name for name in EXERCISES if name not in set(done)), "")
