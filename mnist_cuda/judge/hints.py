"""Hints to the exercises, by name: each says a little more than the one before, and none is the code."""

HINTS: dict[str, tuple[str, ...]] = {
    "relu": (
        "The number of a thread among all is blockIdx.x * kBlock + threadIdx.x; its product needs 64 bits.",
        "The last block has threads whose number is count or more: they return before they touch memory.",
        "`!(x[k] <= 0)` is true for a NaN, `x[k] > 0` is not.",
    ),
    "float4": (
        "Thread n has the elements 4 n to 4 n + 3; all four are there where 4 n + 3 < count.",
        "reinterpret_cast<const float4*>(x)[n] is one load of 16 bytes; y and pass are stored likewise.",
        "The rest is a loop from 4 n up to count, which runs only in the thread with the incomplete four.",
    ),
    "linear": (
        "b is blockIdx.x; o is blockIdx.y * kBlock + threadIdx.x, and a thread whose o is out or more returns.",
        "Keep the sum in a variable of the thread, which begins as bias[o], and store it once.",
    ),
    "coalesce": (
        "Lane k takes the elements k, k + 32, k + 64, ... of the row, so that neighbours read neighbours.",
        "Five shuffles, by 16, 8, 4, 2 and 1, bring all 32 sums to lane 0.",
        "All lanes of a warp share o, so they may return together; one that returned alone would be missed.",
    ),
    "tile": (
        "Thread (tx, ty) loads one element of each tile per turn: row ty, column tx, or turned where the matrix is.",
        "An element outside of its matrix, or beyond the end of the slice, is 0 in the tile.",
        "Two barriers per turn: one before anybody reads the tiles, one before anybody overwrites them.",
        "Threads outside of the result load and wait like all others; only the store asks who they are.",
    ),
    "padding": (
        "The bank of a word is its index modulo 32: in rows of 32 words a column lies in one bank.",
        "What if a row were one word longer than it needs to be?",
    ),
    "transpose": (
        "A thread loads x[row, column] to tile[ty][tx], and after the barrier reads tile[tx][ty].",
        "Block (i, j) of x becomes block (j, i) of y, so threadIdx.x stays the index along a row of memory.",
        "Rows that are 33 words apart put the words of a column into 32 banks.",
    ),
    "divergence": (
        "The row is the number of the warp, not of the thread; `order` is not needed.",
        "A lane's loop runs from lane in steps of 32 while the index is less than length[row].",
        "All 32 lanes take part in the shuffles, those that added nothing with 0.",
    ),
    "slices": (
        "The block's number in z names the slice; slices.depth is a multiple of the tile.",
        "linear_slices wants the tile, the rows and columns of the result, and the number of terms.",
    ),
    "registers": (
        "Declare float sum[4][4]: with loops of known length the compiler keeps it in registers.",
        "A thread's four rows lie side by side in the transposed tile, so one float4 has them; so do its columns.",
        "Per step two loads of a float4 serve 16 products.",
    ),
    "pool": (
        "A window's upper two numbers are one float2, its lower two another, one row of x further on.",
        "Begin with the first number and let `consider` compare the other three in their order.",
        "Only at the end: a maximum that is not positive gives 0 and kDead.",
    ),
    "unpool": (
        "Each element of the window is dy where route names it, and 0 elsewhere, kDead included.",
        "Write all four: two float2, one for each row.",
    ),
    "reduction": (
        "In warp_sum, add what __shfl_down_sync or __shfl_xor_sync brings from 16, 8, 4, 2 and 1 lanes away.",
        "Lane 0 of each warp stores its sum; after __syncthreads() the first warp reads them.",
        "There are fewer warps than lanes: a lane without a number takes part with 0.",
    ),
    "privatise": (
        "First all threads set the block's counters to 0, and wait.",
        "Then atomicAdd to shared memory per pixel, and wait again.",
        "Last each thread adds one counter of the block to the global one; counters of 0 can stay away.",
    ),
    "welford": (
        "add: the mean moves by (x - mean) / n; the squares grow by the product of the distances before and after.",
        "merge: with d the difference of the means, the squares grow by the other's and by d * d * n * m / (n + m).",
        "A group without numbers must not divide by 0.",
    ),
    "norm-backward": (
        "dbeta is the sum of dy, dgamma that of dy * xhat.",
        "dx = gamma / sigma * (dy - the mean of dy - xhat * the mean of dy * xhat).",
        "Means and sums are over batch and area: n = batch * area numbers per channel.",
    ),
    "softmax": (
        "If x is no new maximum, the sum grows by exp(x - maximum).",
        "If it is, the old sum was relative to the old maximum: multiply it by exp(old - new), then add 1.",
    ),
    "softmax-warp": (
        "The merged maximum is the larger of the two; each sum is multiplied by exp(its maximum - the merged one).",
        "Where a sum is 0, leave its side out before -infinity less -infinity arises.",
    ),
    "loss": (
        "Element k of the array is class k % classes of row k / classes.",
        "Load log_p as a float4, and find row and class of each of the four by itself.",
        "The thread with fewer than four left takes them one by one.",
    ),
    "conv": (
        "b and o come from blockIdx, p and q from the number of the position: p = k / side, q = k % side.",
        "Skip a tap whose row p + u - 1 or column q + v - 1 is negative or side.",
        "Begin the sum with bias[o].",
    ),
    "conv-tile": (
        "A plane in shared memory has side + 2 rows of side + 2; element (r, s) of it is x[r - 1, s - 1], or 0.",
        "All threads of the block fill planes and filters in turn, wait, add, and wait before the next planes.",
        "Read the nine numbers of a position once, and use them for all kOutputs outputs.",
    ),
    "conv-gemm": (
        "Rows are positions (b, p, q), columns are outputs, and the summed index is (i, u, v).",
        "Fill the left tile by gather, once per tile; the rest is as in `registers`.",
    ),
    "conv-weight": (
        "Each thread keeps nine sums, one for each tap, and walks over its positions by kWeightBlock.",
        "block_sum adds one of the nine after the other; all threads call it.",
        "Positions outside of the image add nothing.",
    ),
    "fuse": (
        "A window's four outputs need 4x4 pixels: load these once, 0 outside of the image.",
        "Fold: y = z * s + t with s = gamma / sqrt(var + epsilon), which leaves one product per output.",
        "Compare y, not z: with a negative s the largest z is the smallest y.",
    ),
    "mma": (
        "A warp has 4 x 4 products of 16x8: keep their sums, four numbers each, in registers.",
        "Per step of 8, load the fragments of both sides, round them to tf32, and multiply each left by each right.",
        "While the warp multiplies one stage, cp.async fills another: wait for all but the newest groups.",
    ),
    "bug-1": (
        "Judge it with attention to the smallest count: which element does the thread touch that is not there?",
        "A thread takes four elements at once. When may it?",
    ),
    "bug-2": (
        "Small cases pass: the mistake needs more than one tile along the summed index.",
        "What keeps a fast thread from loading the next tile while a slow one still reads this one?",
    ),
    "bug-3": (
        "The shared array has one number per warp, and a block has fewer warps than a warp has lanes.",
        "What do the lanes add that have no warp to read?",
    ),
    "bug-4": (
        "One side of the image is wrong, and the other three are right.",
        "Which of the four borders is not tested?",
    ),
    "bug-5": (
        "The result is right where the first number of a row is its maximum.",
        "What is the old sum worth once there is a new maximum?",
    ),
}
