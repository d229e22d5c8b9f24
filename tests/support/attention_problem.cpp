#include "support/attention_problem.h"

#include <ATen/ATen.h>
#include <pardiff/attention/backend.h>
#include <pardiff/core/check.h>

#include <limits>

#include "support/golden.h"
#include "support/plain_attention.h"

namespace pardiff::testing {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();

// Every batch row sees another number of keys; every third problem has a row that sees none.
at::Tensor key_padding(const AttentionProblem& problem, int64_t length) {
  auto mask = at::zeros({problem.batch, length}, at::kBool);
  for (int64_t row = 0; row < problem.batch; ++row) {
    const int64_t seen = (problem.seed + row) % 3 == 0 && length > 0 ? static_cast<int64_t>(problem.seed / 3) % length
                                                                     : length - row % std::max<int64_t>(length, 1);
    mask[row].narrow(0, 0, std::max<int64_t>(seen, 0)).fill_(true);
  }
  return mask;
}

// Every second problem has one mask for all heads or batch rows; one query sees nothing.
at::Tensor additive_mask(const AttentionProblem& problem, int64_t length) {
  const bool per_batch = problem.seed % 2 == 0, per_head = problem.seed % 3 == 0;
  const int64_t batch = per_batch ? problem.batch : 1, heads = per_head ? problem.heads : 1;
  auto mask = random_normal({batch, heads, length, length}, problem.seed + 90, problem.dtype);
  mask.masked_fill_(random_normal({batch, heads, length, length}, problem.seed + 91) > 0.8, kHidden);
  if (length > 1) mask.select(2, static_cast<int64_t>(problem.seed) % length).fill_(kHidden);
  return mask;
}

at::Tensor boolean_mask(const AttentionProblem& problem, int64_t length) {
  auto mask = random_normal({problem.batch, 1, length, length}, problem.seed + 92) < 0.5;
  if (length > 1) mask.select(2, static_cast<int64_t>(problem.seed) % length).fill_(false);
  return mask;
}

at::Tensor mask_of(const AttentionProblem& problem, int64_t length) {
  switch (problem.mask) {
    case MaskKind::kKeyPadding:
      return key_padding(problem, length);
    case MaskKind::kAdditive:
      return additive_mask(problem, length);
    case MaskKind::kBoolean:
      return boolean_mask(problem, length);
    default:
      return {};
  }
}

const char* name_of(MaskKind mask) {
  constexpr const char* kNames[] = {"no mask", "key padding", "additive", "boolean", "causal"};
  return kNames[static_cast<int>(mask)];
}

double largest_of(const at::Tensor& x) { return x.numel() > 0 ? x.abs().max().item<double>() : 0; }

}  // namespace

std::string AttentionProblem::to_string() const {
  return text_of("image ", image, ", text ", text, ", heads ", heads, ":", key_heads, ", batch ", batch, ", ",
                 name_of(mask), ", ", dtype, ", head_dim ", head_dim, ", seed ", seed);
}

SolvedProblem solve(const AttentionProblem& problem) {
  const int64_t length = problem.text + problem.image;
  SolvedProblem solved;
  solved.problem = problem;
  const auto tensor = [&](int64_t heads, uint64_t stream) {
    return random_normal({problem.batch, length, heads, problem.head_dim}, problem.seed * 16 + stream, problem.dtype);
  };
  solved.query = tensor(problem.heads, 0);
  solved.key = tensor(problem.key_heads, 1);
  solved.value = tensor(problem.key_heads, 2);
  solved.weight = tensor(problem.heads, 3);
  solved.mask = mask_of(problem, length);

  const auto query = solved.query.to(at::kDouble).detach().clone().requires_grad_();
  const auto key = solved.key.to(at::kDouble).detach().clone().requires_grad_();
  const auto value = solved.value.to(at::kDouble).detach().clone().requires_grad_();
  const auto out = plain_attention(query, key, value, solved.mask, problem.mask == MaskKind::kCausal);
  (out * solved.weight).sum().backward();
  solved.out = out.detach();
  solved.grad_query = query.grad();
  solved.grad_key = key.grad();
  solved.grad_value = value.grad();
  return solved;
}

std::string AttentionWay::to_string() const {
  return text_of(mode->name, " ring ", ring, " x ulysses ", ulysses, rotate ? ", rotating, " : ", all-gather, ",
                 backend, convert_to_fp32 ? "" : ", no conversion", backward ? "" : ", forward only");
}

bool AttentionWay::accepts(const AttentionProblem& problem) const {
  const bool lengths_divide = problem.text % ranks() == 0 && problem.image % ranks() == 0;
  const bool is_causal_in_parts = problem.mask == MaskKind::kCausal && ranks() > 1;
  const KernelNeeds needs{
      .device = device,
      .lse = mode->needs_lse(),
      .mask = is_causal_in_parts || (problem.mask != MaskKind::kNone && problem.mask != MaskKind::kCausal),
      .backward = backward,
      .dtype = problem.dtype,
      .head_dim = problem.head_dim};
  return (mode->any_length || lengths_divide) && (mode->any_heads || problem.heads % ulysses == 0) &&
         attention_backend(backend).why_not(needs).empty();
}

std::vector<AttentionWay> attention_ways(int ranks, at::DeviceType device) {
  std::vector<AttentionWay> ways;
  for (int ring = 1; ring <= ranks; ++ring) {
    if (ranks % ring != 0) continue;
    const int ulysses = ranks / ring;
    for (const auto& mode : attention_modes()) {
      if (mode.ring != (ring > 1) || mode.ulysses != (ulysses > 1)) continue;
      for (const auto& backend : backends_that_can({.device = device, .lse = mode.needs_lse()})) {
        AttentionWay way{.mode = &mode, .ring = ring, .ulysses = ulysses, .backend = backend, .device = device};
        ways.push_back(way);
        way.rotate = false;
        if (ring > 1) ways.push_back(way);
      }
    }
  }
  return ways;
}

std::shared_ptr<AttentionSharing> share_attention(World& world, const AttentionWay& way) {
  const Mesh mesh(world.rank(), world.size(), {{"ring", way.ring}, {"ulysses", way.ulysses}});
  auto sharing = std::make_shared<AttentionSharing>();
  sharing->mode = way.mode;
  sharing->ring = world.group_of(mesh.ranks_along({"ring"}));
  sharing->ulysses = world.group_of(mesh.ranks_along({"ulysses"}));
  sharing->rotate = way.rotate;
  sharing->convert_to_fp32 = way.convert_to_fp32;
  return sharing;
}

std::pair<int64_t, int64_t> share_of(int64_t count, int ranks, int rank) {
  int64_t begin = 0;
  for (int earlier = 0; earlier < rank; ++earlier) begin += count / ranks + (earlier < count % ranks ? 1 : 0);
  return {begin, begin + count / ranks + (rank < count % ranks ? 1 : 0)};
}

at::Tensor joint_share(const at::Tensor& whole, const AttentionProblem& problem, int ranks, int rank) {
  const auto [text_begin, text_end] = share_of(problem.text, ranks, rank);
  const auto [image_begin, image_end] = share_of(problem.image, ranks, rank);
  return at::cat(
      {whole.slice(1, text_begin, text_end), whole.slice(1, problem.text + image_begin, problem.text + image_end)}, 1);
}

SequenceLayout joint_layout(const AttentionProblem& problem, int ranks) {
  return SequenceLayout::joint(SequenceLayout::split(problem.text, ranks), SequenceLayout::split(problem.image, ranks));
}

AttentionAnswer answer(const SolvedProblem& solved, const AttentionWay& way, World& world) {
  const auto& problem = solved.problem;
  const int ranks = way.ranks(), rank = world.rank();
  const auto leaf = [&](const at::Tensor& whole) {
    return joint_share(whole, problem, ranks, rank).to(world.device()).detach().requires_grad_(way.backward);
  };
  const auto query = leaf(solved.query), key = leaf(solved.key), value = leaf(solved.value);
  Attention attention;
  attention->set_backend(way.backend);
  attention->share(share_attention(world, way));
  const auto layout = joint_layout(problem, ranks);
  const auto out = attention->forward(query, key, value,
                                      {.query_layout = layout,
                                       .key_layout = layout,
                                       .mask = solved.mask.defined() ? solved.mask.to(world.device()) : at::Tensor(),
                                       .is_causal = problem.mask == MaskKind::kCausal});
  if (!way.backward) return {out.cpu(), {}, {}, {}};
  out.backward(joint_share(solved.weight, problem, ranks, rank).to(world.device()));
  return {out.detach().cpu(), query.grad().cpu(), key.grad().cpu(), value.grad().cpu()};
}

AttentionErrors attention_errors(const SolvedProblem& solved, const AttentionWay& way, World& world) {
  const auto got = answer(solved, way, world);
  const auto error = [&](const at::Tensor& actual, const at::Tensor& whole, double least_scale) {
    if (!actual.defined() || actual.scalar_type() != solved.problem.dtype) return 1e300;
    const auto expected = joint_share(whole, solved.problem, way.ranks(), world.rank());
    const double apart = absolute_error(actual, expected);
    return apart == 0 ? 0 : apart / std::max(least_scale, largest_of(whole));
  };
  if (!way.backward) return {error(got.out, solved.out, 0), 0};
  const double gradients =
      std::max({largest_of(solved.grad_query), largest_of(solved.grad_key), largest_of(solved.grad_value)});
  return {error(got.out, solved.out, 0), std::max({error(got.grad_query, solved.grad_query, gradients / 10),
                                                   error(got.grad_key, solved.grad_key, gradients / 10),
                                                   error(got.grad_value, solved.grad_value, gradients / 10)})};
}

double tolerance_of(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 1e-12;
  if (dtype == at::kFloat) return 1e-5;
  return dtype == at::kBFloat16 ? 3e-2 : 4e-3;
}

}  // namespace pardiff::testing
