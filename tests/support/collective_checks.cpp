#include "support/collective_checks.h"

#include <ATen/ATen.h>
#include <pardiff/core/check.h>

#include <numeric>

#include "comm/backends/backend.h"

namespace pardiff::testing {
namespace {

template <typename... Parts>
void expect(bool condition, const Parts&... what) {
  if (!condition) throw std::runtime_error(text_of(what...));
}

using Counts = std::vector<int64_t>;

// Numbers that tell rank, peer and position apart and are exact in every dtype used here.
at::Tensor numbers(int64_t count, int rank, int peer, const at::TensorOptions& kind) {
  return ((at::arange(count, at::kDouble) + 7 * rank + 31 * peer).fmod(100)).to(kind);
}

int64_t sum_of(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

// counts[from][to]
void check_all_to_all(const ProcessGroup& group, const std::vector<Counts>& counts, const at::TensorOptions& kind) {
  const int rank = group.rank(), size = group.size();
  std::vector<at::Tensor> sent, expected;
  Counts in, out;
  for (int peer = 0; peer < size; ++peer) {
    in.push_back(counts[rank][peer]);
    out.push_back(counts[peer][rank]);
    sent.push_back(numbers(in.back(), rank, peer, kind));
    expected.push_back(numbers(out.back(), peer, rank, kind));
  }
  const auto input = at::cat(sent), output = at::full({sum_of(out)}, -1, input.options());
  all_to_all(output, input, out, in, group).wait();
  expect(at::equal(output, at::cat(expected)), "all_to_all of ", kind.dtype(), " on rank ", rank, " of ", size);
}

void check_gather_and_scatter(const ProcessGroup& group, const Counts& counts, const at::TensorOptions& kind) {
  const int rank = group.rank(), size = group.size();
  std::vector<at::Tensor> parts;
  for (int peer = 0; peer < size; ++peer) parts.push_back(numbers(counts[peer], peer, 0, kind));
  auto output = at::full({sum_of(counts)}, -1, parts[0].options());
  all_gather(output, parts[rank], counts, group).wait();
  expect(at::equal(output, at::cat(parts)), "all_gather of ", joined(counts), " on rank ", rank);

  auto input = at::cat(parts) + rank, share = at::full({counts[rank]}, -1, parts[0].options());
  reduce_scatter(share, input, counts, group).wait();
  const auto sum = parts[rank] * size + size * (size - 1) / 2;
  expect(at::equal(share, sum), "reduce_scatter of ", joined(counts), " on rank ", rank);
}

void check_hops(const ProcessGroup& group, const Counts& counts, const at::TensorOptions& kind) {
  const int rank = group.rank(), size = group.size(), next = (rank + 1) % size, previous = (rank + size - 1) % size;
  // Twice round, so that a rank that has nothing to send or receive at one hop has at others.
  auto sent = numbers(counts[rank], rank, 0, kind);
  for (int step = 1; step <= 2 * size; ++step) {
    const int from = ((rank - step) % size + size) % size;
    const auto received = at::full({counts[from]}, -1, sent.options());
    hop(sent, next, received, previous, group).wait();
    expect(at::equal(received, numbers(counts[from], from, 0, kind)), "hop ", step, " of ", joined(counts), " on rank ",
           rank);
    sent = received;
  }
}

void check_whole(const ProcessGroup& group, const at::TensorOptions& kind) {
  const int rank = group.rank(), size = group.size();
  const auto sum = numbers(5, 0, 0, kind).view({5, 1}) + rank;
  all_reduce(sum, group).wait();
  expect(at::equal(sum, numbers(5, 0, 0, kind).view({5, 1}) * size + size * (size - 1) / 2), "all_reduce of ",
         kind.dtype());
  for (int root = 0; root < size; ++root) {
    const auto tensor = numbers(3, rank, 0, kind);
    broadcast(tensor, root, group).wait();
    expect(at::equal(tensor, numbers(3, root, 0, kind)), "broadcast from ", root, " on rank ", rank);
  }
  all_reduce(at::empty({0}, kind), group).wait();
  broadcast(at::empty({0}, kind), 0, group).wait();
  barrier(group);
}

}  // namespace

void check_group(const ProcessGroup& group, at::Device device) {
  const int size = group.size();
  if (size == 1) return;
  const auto made = [&](const std::function<int64_t(int, int)>& count) {
    std::vector<Counts> counts(size, Counts(size));
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) counts[from][to] = count(from, to);
    }
    return counts;
  };
  const std::function<int64_t(int, int)> shapes[] = {
      [](int, int) { return 3; },                               // even
      [](int from, int to) { return from + 2 * to; },           // uneven
      [](int from, int to) { return from == 0 ? 2 * to : 0; },  // only rank 0 sends
      [](int, int to) { return to == 1 ? 4 : 0; },              // only rank 1 receives
      [](int, int) { return 0; },                               // nothing at all
      [](int from, int to) { return from == to ? 5 : 0; }};     // only to oneself
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
    const auto kind = at::TensorOptions().dtype(dtype).device(device);
    for (const auto& shape : shapes) {
      const auto counts = made(shape);
      check_all_to_all(group, counts, kind);
      check_gather_and_scatter(group, counts[0], kind);
      check_hops(group, counts[0], kind);
    }
    check_whole(group, kind);
  }
}

namespace {

std::map<std::string, OperationCount> counted(World& world, const std::function<void()>& operations) {
  const auto before = world.counter().counts();
  operations();
  return difference(world.counter().counts(), before);
}

void expect_count(const std::map<std::string, OperationCount>& counts, const std::string& name, int64_t calls,
                  int64_t bytes) {
  const auto found = counts.find(name);
  const auto got = found == counts.end() ? OperationCount{} : found->second;
  expect(got.calls == calls && got.bytes_sent == bytes, name, ": ", got.calls, " calls, ", got.bytes_sent,
         " bytes; expected ", calls, " calls, ", bytes, " bytes");
}

}  // namespace

void check_one_rank(comm::GroupBackend& backend, at::Device device) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
    const auto kind = at::TensorOptions().dtype(dtype).device(device);
    const auto input = numbers(6, 1, 2, kind), sum = input.clone(), sent = input.clone();
    const auto expect_copied = [&](const char* operation, const std::function<Pending(const at::Tensor&)>& start) {
      const auto output = at::full({6}, -1, kind);
      start(output).wait();
      expect(at::equal(output, input), operation, " of ", kind.dtype(), " with one rank");
    };
    const Counts all = {6};
    expect_copied("all_to_all", [&](const auto& output) { return backend.all_to_all(output, input, all, all); });
    expect_copied("all_gather", [&](const auto& output) { return backend.all_gather(output, input, all); });
    expect_copied("reduce_scatter", [&](const auto& output) { return backend.reduce_scatter(output, input, all); });
    backend.all_reduce(sum).wait();
    backend.broadcast(sent, 0).wait();
    expect(at::equal(sum, input) && at::equal(sent, input), "all_reduce and broadcast with one rank");
    backend.all_to_all(at::empty({0}, kind), at::empty({0}, kind), {0}, {0}).wait();
  }
  backend.barrier();
}

void check_collectives(World& world) {
  check_group(world.group(), world.device());
  std::vector<int> even, odd, reversed;
  for (int rank = 0; rank < world.size(); ++rank) {
    (rank % 2 == 0 ? even : odd).push_back(rank);
    reversed.insert(reversed.begin(), rank);
  }
  check_group(world.group_of(world.rank() % 2 == 0 ? even : odd), world.device());
  const auto backwards = world.group_of(reversed);
  expect(backwards.rank() == world.size() - 1 - world.rank(), "a group keeps the order of its list");
  check_group(backwards, world.device());
}

void check_overlapping_operations(World& world) {
  const auto& group = world.group();
  const int rank = world.rank(), size = world.size(), next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const auto kind = at::TensorOptions().dtype(at::kFloat).device(world.device());
  const auto sent_a = numbers(6, rank, 0, kind), sent_b = numbers(6, rank, 1, kind);
  const auto got_a = at::zeros({6}, kind), got_b = at::zeros({6}, kind), sum = at::full({2}, 1.0, kind);
  auto first = hop(sent_a, next, got_a, previous, group);
  auto second = hop(sent_b, next, got_b, previous, group);
  auto third = all_reduce(sum, group);
  third.wait();
  second.wait();
  first.wait();
  expect(at::equal(got_a, numbers(6, previous, 0, kind)), "the first hop's data on rank ", rank);
  expect(at::equal(got_b, numbers(6, previous, 1, kind)), "the second hop's data on rank ", rank);
  expect(at::equal(sum, at::full({2}, 1.0 * size, kind)), "the sum on rank ", rank);
}

void check_counts(World& world) {
  const auto& group = world.group();
  const int rank = world.rank(), size = world.size(), next = (rank + 1) % size, previous = (rank + size - 1) % size;
  Counts counts;
  for (int peer = 0; peer < size; ++peer) counts.push_back(peer % 2 == 0 ? peer + 1 : 0);  // uneven, with zeros
  const int64_t all = sum_of(counts), own = counts[rank];
  const auto double_of = [&](int64_t count) {
    return at::zeros({count}, at::TensorOptions().dtype(at::kDouble).device(world.device()));
  };

  auto seen = counted(world, [&] { all_gather(double_of(all), double_of(own), counts, group).wait(); });
  expect(seen.size() == 1, "an uneven all_gather counts under its own name only");
  expect_count(seen, "all_gather", 1, 8 * own * (size - 1));

  seen = counted(world, [&] { reduce_scatter(double_of(own), double_of(all), counts, group).wait(); });
  expect(seen.size() == 1, "a reduce_scatter counts under its own name only");
  expect_count(seen, "reduce_scatter", 1, 8 * (all - own));

  seen = counted(world,
                 [&] { all_to_all(double_of(own * size), double_of(all), Counts(size, own), counts, group).wait(); });
  expect_count(seen, "all_to_all", 1, 8 * (all - own));

  seen = counted(world, [&] { all_reduce(double_of(6), group).wait(); });
  expect_count(seen, "all_reduce", 1, 2 * (size - 1) * 48 / size);

  seen = counted(world, [&] { broadcast(double_of(6), size - 1, group).wait(); });
  expect_count(seen, "broadcast", 1, rank == size - 1 ? 48 * (size - 1) : 0);

  seen = counted(world, [&] { barrier(group); });
  expect_count(seen, "barrier", 1, 0);

  seen = counted(world, [&] { hop(double_of(own), next, double_of(counts[previous]), previous, group).wait(); });
  expect_count(seen, "send", own > 0 ? 1 : 0, 8 * own);
}

}  // namespace pardiff::testing
