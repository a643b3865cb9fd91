// cuDNN's graph interface: describe an operation, or several that pass arrays on, let the heuristics rank the engines
// that can compute it, keep the first that obeys our rules, run it. Where none of theirs does, every engine
// that cuDNN has for the operation is tried in turn: what is fast is left to them, what is there is not.
//
// The choice never depends on a measurement: the same build on the same GPU with the same libraries takes the same
// algorithm in every process, which is what makes repeated runs bitwise equal.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libraries/cudnn.h"

namespace mnist::cudnn {

// A tensor as the graph interface sees it: (n, c, h, w), 16-byte aligned.
struct Shape {
  int type;  // kFloat, kBfloat16, kInt8 or kInt64
  std::int64_t n, c, h, w;
  bool channels_last = true;  // in memory; false: in the order of the dimensions
};

// What an algorithm must be like. Nondeterministic ones are never taken.
struct Rules {
  bool tensor_cores = false;                            // false: IEEE float32 products only
  std::int64_t workspace_bytes = 0;                     // at most
  std::span<const std::int64_t> first;                  // engines to try before the heuristics' own order, best first
  std::function<bool(const std::string& plan)> refuse;  // for tests: plans, by their text, to do as if they failed
};

// A chosen algorithm for a graph on tensors of fixed shapes; empty if none obeys the rules. Copies share it.
class Plan {
 public:
  Plan() = default;
  explicit Plan(std::string why_empty) : text_(std::move(why_empty)) {}
  explicit operator bool() const { return bool(plan_); }

  // `pointers` in the order of the shapes that the plan was made for; queues the work on the context's stream.
  void run(RawContext context, std::initializer_list<const void*> pointers, void* workspace) const;

  // "engine 67, workspace 2.1 MB, tensor cores"; of an empty one what became of the engines, with cuDNN's last reason
  const std::string& text() const { return text_; }

 private:
  friend class Graph;
  std::shared_ptr<const Owner<RawBackend>> plan_;
  std::vector<std::int64_t> ids_;
  std::string text_;
};

// conv2d 3x3, stride 1, padding 1. Pointers x, w, y; backward, those of two gradients in their places.
enum class Direction { kForward, kBackwardData, kBackwardWeight };
Plan conv2d_plan(Direction direction, RawContext context, const Shape& x, const Shape& w, const Shape& y,
                 const Rules& rules);

// Batch norm by the batch's own statistics. Pointers x, scale, bias, mean, inverse deviation, host epsilon, y; the
// statistics are outputs, every array by channel is float32.
Plan batch_norm_forward_plan(RawContext context, const Shape& x, const Rules& rules);
// Pointers x, dx, scale, mean, inverse deviation, dscale, dbias, dy.
Plan batch_norm_backward_plan(RawContext context, const Shape& x, const Rules& rules);

// 2x2 max pooling that also keeps where each maximum was. Pointers x, y, index (int8, one byte an element of y).
Plan max_pool2d_forward_plan(RawContext context, const Shape& x, const Rules& rules);
// Pointers dx, dy, index.
Plan max_pool2d_backward_plan(RawContext context, const Shape& dx, const Rules& rules);

// ---- graphs of several operations, channels last ----
// y, and by channel the sums of its values and of their squares. Pointers x, w, y, sum, squares.
Plan conv2d_sums_plan(RawContext context, const Shape& x, const Shape& w, const Shape& y, const Rules& rules);
// What batch norm of x needs of such sums. Pointers, by channel, sum, squares, scale, bias, running mean and variance
// and what they become, mean, inverse deviation, and the factor and shift of batch norm; host int64 count of values,
// epsilon and momentum.
Plan batch_norm_finalize_plan(RawContext context, const Shape& x, const Rules& rules);
// y = relu(factor x + shift). Pointers x, factor, shift, y.
Plan scale_relu_plan(RawContext context, const Shape& x, const Rules& rules);
// relu of batch_norm_forward_plan's y, with its pointers.
Plan batch_norm_relu_forward_plan(RawContext context, const Shape& x, const Rules& rules);

}  // namespace mnist::cudnn
