#include "attention/modes/call.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>

#include <cmath>

namespace pardiff::attention {
namespace {

void check_tensors(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  check<ShapeError>(query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
                    "attention takes [batch, sequence, heads, head_dim]; query has shape ", query.sizes(), ", key ",
                    key.sizes(), ", value ", value.sizes(), ".");
  check<ShapeError>(key.sizes() == value.sizes(), "key has shape ", key.sizes(), " and value ", value.sizes(),
                    ". They must be equal.");
  check<ShapeError>(query.size(0) == key.size(0) && query.size(3) == key.size(3), "query has shape ", query.sizes(),
                    " and key ", key.sizes(), ". Batch and head_dim must be equal.");
  check<ShapeError>(query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type(), "query is ",
                    query.scalar_type(), ", key ", key.scalar_type(), ", value ", value.scalar_type(),
                    ". Cast them to one dtype.");
  const int64_t heads = query.size(2), key_heads = key.size(2);
  check<ShapeError>(key_heads > 0 ? heads % key_heads == 0 : heads == 0, heads, " query heads are no multiple of ",
                    key_heads, " key heads.");
}

void check_sharing(const AttentionSharing& sharing, const AttentionOptions& options, int64_t heads) {
  const auto& mode = *sharing.mode;
  check<ConfigError>(!options.query_layout.is_whole() || options.key_layout.is_whole(),
                     "key is split among ranks and query is not. Split query in the plan too, or neither.");
  for (const auto* layout : {&options.query_layout, &options.key_layout}) {
    if (layout->is_whole()) continue;
    check<ConfigError>(layout->ranks() == sharing.size(), "a layout of ", layout->ranks(), " ranks (",
                       layout->to_string(), ") meets an attention shared by ", sharing.size(), ".");
    check<ShapeError>(mode.any_length || layout->is_even(), "mode '", mode.name,
                      "' needs equal shares, and a layout is ", layout->to_string(), ". Use ",
                      mode.ring ? "ring_anything" : "ulysses_anything", ", or a length that ", sharing.size(),
                      " ranks divide.");
  }
  if (options.key_layout.is_whole()) return;
  const auto why_not = mode.why_not_heads(heads, sharing.ulysses.size());
  check<ShapeError>(why_not.empty(), why_not);
}

std::vector<std::vector<SequenceSpan>> all_spans(const SequenceLayout& layout) {
  std::vector<std::vector<SequenceSpan>> spans;
  for (int rank = 0; rank < layout.ranks(); ++rank) spans.push_back(layout.spans(rank));
  return spans;
}

void check_lengths(const Call& call, const at::Tensor& query, const at::Tensor& key) {
  const int rank = call.context_rank(call.ring.rank(), call.ulysses.rank());
  const auto compare = [&](const char* name, const at::Tensor& x, const std::vector<SequenceSpan>& spans) {
    check<ShapeError>(x.size(1) == total_length(spans), name, " holds ", x.size(1), " tokens on context rank ", rank,
                      ", and its layout says ", total_length(spans), ".");
  };
  compare("query", query, call.query_spans.size() > 1 ? call.query_spans[rank] : call.query_spans[0]);
  compare("key", key, call.key_spans.size() > 1 ? call.key_spans[rank] : call.key_spans[0]);
}

// The same on every rank, so all refuse or none.
void check_backend(const Call& call, const at::Tensor& query, const AttentionOptions& options) {
  KernelNeeds needs{.device = query.device().type(),
                    .lse = call.ring.size() > 1,
                    .mask = options.mask.defined(),
                    .dtype = query.scalar_type(),
                    .head_dim = query.size(3)};
  // Causal order among shared tokens becomes a mask.
  needs.mask = needs.mask || (options.is_causal && (call.query_spans.size() > 1 || call.query_spans != call.key_spans));
  const auto reason = call.backend->why_not(needs);
  check<ConfigError>(reason.empty(), "attention backend '", call.backend->name(), "' cannot run ", query.scalar_type(),
                     needs.mask ? " with a mask" : "", ", head_dim ", query.size(3), ", on ", query.device(), ": ",
                     reason, ". Use one of: ", joined(backends_that_can(needs)), ".");
}

void deal_heads(Call& call, int64_t heads, int64_t key_heads) {
  call.query_heads_per_key_head = key_heads > 0 ? heads / key_heads : 1;
  const int ranks = call.ulysses.size();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto share = even_share(heads, ranks, rank);
    const int64_t begin = share.start, end = share.start + share.length, group = call.query_heads_per_key_head;
    call.query_heads.push_back({begin, end});
    call.key_heads.push_back(share.length == 0 ? HeadRange{} : HeadRange{begin / group, (end - 1) / group + 1});
  }
}

// [B, Skv] -> [B, 1, 1, Skv]; checks that every dimension is whole or 1.
at::Tensor whole_mask(const at::Tensor& mask, const at::Tensor& query, int64_t queries, int64_t keys) {
  if (!mask.defined()) return mask;
  check<ShapeError>(!mask.requires_grad(), "a mask that needs a gradient is not supported. Detach it.");
  const auto wide = mask.dim() == 2 ? mask.unsqueeze(1).unsqueeze(1) : mask;
  const auto fits = [&](int64_t dim, int64_t size) { return wide.size(dim) == 1 || wide.size(dim) == size; };
  check<ShapeError>(
      wide.dim() == 4 && fits(0, query.size(0)) && fits(1, query.size(2)) && fits(2, queries) && fits(3, keys),
      "a mask of shape ", mask.sizes(), " does not fit batch ", query.size(0), ", heads ", query.size(2), ", ", queries,
      " queries and ", keys,
      " keys of the whole sequence. Give [B, Skv] or [B|1, H|1, Sq|1, Skv|1], whole on every rank.");
  check<ShapeError>(wide.scalar_type() == at::kBool || at::isFloatingType(wide.scalar_type()), "a mask of dtype ",
                    wide.scalar_type(), " is neither boolean nor additive.");
  return wide;
}

int64_t covered(const std::vector<std::vector<SequenceSpan>>& spans) {
  int64_t sum = 0;
  for (const auto& of_rank : spans) sum += total_length(of_rank);
  return sum;
}

}  // namespace

int64_t total_length(const std::vector<SequenceSpan>& spans) {
  int64_t sum = 0;
  for (const auto& span : spans) sum += span.length;
  return sum;
}

std::vector<int64_t> Call::ulysses_rows(const std::vector<std::vector<SequenceSpan>>& spans) const {
  std::vector<int64_t> rows;
  for (int peer = 0; peer < ulysses.size(); ++peer) {
    rows.push_back(total_length(spans[context_rank(ring.rank(), peer)]));
  }
  return rows;
}

std::vector<SequenceSpan> Call::ring_spans(const std::vector<std::vector<SequenceSpan>>& spans, int ring_rank) const {
  std::vector<SequenceSpan> joined_spans;
  for (int peer = 0; peer < ulysses.size(); ++peer) {
    const auto& of_peer = spans[context_rank(ring_rank, peer)];
    joined_spans.insert(joined_spans.end(), of_peer.begin(), of_peer.end());
  }
  return joined_spans;
}

Call plan_call(const AttentionSharing* sharing, const AttentionBackend& backend, const at::Tensor& query,
               const at::Tensor& key, const at::Tensor& value, const AttentionOptions& options) {
  check_tensors(query, key, value);
  Call call;
  call.backend = &backend;
  call.scale = options.scale.value_or(query.size(3) > 0 ? 1.0 / std::sqrt(static_cast<double>(query.size(3))) : 1.0);
  call.is_causal = options.is_causal;
  if (sharing) check_sharing(*sharing, options, query.size(2));
  check<ConfigError>(sharing || (options.query_layout.is_whole() && options.key_layout.is_whole()),
                     "a layout of split tensors meets an attention that is not shared. Apply the plan to its model.");

  const std::vector<SequenceSpan> whole_keys = {{0, key.size(1)}}, whole_queries = {{0, query.size(1)}};
  if (!options.key_layout.is_whole()) {
    call.ring = sharing->ring;
    call.ulysses = sharing->ulysses;
    call.rotate = sharing->rotate;
    call.convert_to_fp32 = sharing->convert_to_fp32;
    call.meter = sharing->meter;
    call.query_spans = all_spans(options.query_layout);
    call.key_spans = all_spans(options.key_layout);
    call.same_layout = options.query_layout == options.key_layout;
  } else {  // every rank holds all keys: nothing is exchanged
    call.query_spans = {options.query_layout.is_whole() ? whole_queries : options.query_layout.spans(sharing->rank())};
    call.key_spans = {whole_keys};
  }
  check_lengths(call, query, key);
  check_backend(call, query, options);
  deal_heads(call, query.size(2), key.size(2));
  const int64_t queries = options.query_layout.is_whole() ? query.size(1) : options.query_layout.length();
  call.mask = whole_mask(options.mask, query, queries, covered(call.key_spans));
  return call;
}

}  // namespace pardiff::attention
