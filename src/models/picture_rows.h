#pragma once
#include <ATen/core/Tensor.h>
#include <pardiff/attention/attention.h>
#include <pardiff/comm/process_group.h>
#include <pardiff/nn/convolution.h>
#include <pardiff/nn/norm.h>
#include <pardiff/parallel/layout.h>

#include <cstdint>

namespace pardiff {

/// The rows of one picture, of which every rank of a group has its share, top to bottom; a rank may have none. A group
/// of one has the whole picture. Layers work on the shares, and on what they need of the neighbours'.
/// Tensors have the shape [1, channels, own rows, width]; no gradient is recorded where there are several ranks.
class PictureRows {
 public:
  /// One rank.
  PictureRows() = default;
  PictureRows(int64_t height, ProcessGroup group);

  bool are_whole() const { return group_.size() == 1; }
  /// The same picture at twice the height.
  PictureRows doubled() const;
  /// This rank's share of a picture that every rank has whole.
  at::Tensor own(const at::Tensor& whole) const;
  /// The whole picture from every rank's share. Collective.
  at::Tensor gathered(const at::Tensor& own_rows) const;

  // Everything below is for several ranks, and collective.

  /// A 3x3 convolution with stride 1 and a padding of 1.
  at::Tensor convolved(const nn::Conv2d& layer, const at::Tensor& x) const;
  /// convolved(silu(normalised)), without a pass of its own for the neighbours' rows.
  at::Tensor activated_and_convolved(const nn::GroupNorm& norm, const nn::Conv2d& layer, const at::Tensor& x) const;
  /// convolved of x at twice the size, every value fourfold; the result has the rows of `doubled`.
  at::Tensor enlarged_and_convolved(const nn::Conv2d& layer, const at::Tensor& x) const;
  /// The norm over the whole picture. Precision: statistics in float32, put together in float64.
  at::Tensor normalised(const nn::GroupNorm& norm, const at::Tensor& x) const;
  /// Attention of every position to all; one head. Shapes: [1, own rows x width, 1, channels].
  at::Tensor attended(Attention& attention, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      int64_t width) const;

 private:
  int64_t own_rows() const { return layout_.local_length(group_.rank()); }
  bool has_rows(int rank) const;
  at::Tensor room_for_halo(const at::Tensor& like) const;
  void exchange_halo(const at::Tensor& padded) const;
  at::Tensor convolved_with_halo(const nn::Conv2d& layer, const at::Tensor& padded) const;

  ProcessGroup group_;
  SequenceLayout layout_;
};

}  // namespace pardiff
