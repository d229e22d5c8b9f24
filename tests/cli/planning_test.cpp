// pardiff plan, generate --parallel auto and pardiff bench. Nothing here depends on how fast the machine is.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/failure.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace pardiff::testing {
namespace {

using Json = nlohmann::json;

ChildResult succeed(const std::vector<std::string>& arguments) {
  auto result = run_program(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result;
}

void expect_refused(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
  const auto result = run_program(arguments);
  EXPECT_EQ(result.exit_code, 2) << result.out;
  expect_mentions(result.err, parts);
}

// A machine on which `operation` costs nothing, and every other a second.
std::string kind_that_likes(const std::string& operation) {
  Json kind = {{"name", "made-up"},
               {"half_tflops", 100},
               {"single_tflops", 100},
               {"efficiency", 1},
               {"memory_gb", 100},
               {"memory_gb_per_s", 1e6},
               {"launch_us", 0},
               {"overlap", 0},
               {"link", {{"gb_per_s", 1000}, {"latency_us", 1e6}}},
               {"network", {{"gb_per_s", 1000}, {"latency_us", 1e6}}}};
  kind["operations"][operation] = {{"gb_per_s", 1000}, {"latency_us", 0}};
  // The tensor-parallel gather of modulations is one operation a step; it must not decide.
  kind["operations"]["all_gather"] = {{"gb_per_s", 1000}, {"latency_us", 0}};
  return Json({{"kinds", Json::array({kind})}}).dump();
}

TEST(Plan, RanksLayoutsAndSaysWhyOthersCannotRun) {
  const TemporaryFolder folder;
  const auto result = succeed({"plan", "flux-dev", "--kind", "l20", "--count", "4", "--height", "1008", "--width",
                               "1008", "--all", "--json", folder / "plan.json", "--plot", folder / "plan.svg"});
  expect_mentions(result.out, {"flux-dev", "4 x l20", "ulysses 4, anything",
                               "cannot run:", "3969 tokens cannot be cut equally among 4 context ranks",
                               "dp_degree is 4", "first: pardiff generate --"});
  const auto plan = Json::parse(content_of(folder / "plan.json"));
  EXPECT_EQ(plan["image_tokens"], 3969);
  double before = 0;
  int possible = 0;
  for (const auto& layout : plan["layouts"]) {
    if (!layout["fits"]) {
      EXPECT_FALSE(layout["why_not"].get<std::string>().empty());
      continue;
    }
    ++possible;
    const auto& step = layout["step_seconds"];
    EXPECT_NEAR(step["total"].get<double>(),
                step["compute"].get<double>() + step["exchange"].get<double>() + step["host"].get<double>(), 1e-9);
    EXPECT_GE(step["total"].get<double>(), before);
    before = step["total"].get<double>();
    EXPECT_GT(layout["memory_bytes"]["total"].get<double>(), 1e10);
  }
  EXPECT_GT(possible, 3);
  const auto svg = content_of(folder / "plan.svg");
  EXPECT_EQ(svg.find("<svg"), 0u);
  expect_mentions(svg, {"ulysses 4, anything", "exchange", "</svg>"});
}

TEST(Plan, TakesOwnKindsAndNamesUnknownOnes) {
  const TemporaryFolder folder;
  put(folder / "kinds.json", kind_that_likes("all_reduce"));
  const auto result = succeed({"plan", "bench", "--kinds", folder / "kinds.json", "--kind", "made-up", "--count", "2"});
  expect_mentions(result.out, {"first: pardiff generate --tp-degree 2"});
  expect_refused({"plan", "bench", "--kind", "abacus"}, {"--kind is 'abacus'", "h100", "--kinds FILE"});
  expect_refused({"plan", "bench"}, {"--kind is missing"});
  expect_refused({"plan", "bench", "--kind", "l20", "--threads", "2"}, {"for --calibrate"});
  expect_refused({"plan", "bench", "--kind", "l20", "--plot", "plan.png"}, {"ends in .svg"});
}

TEST(Plan, CalibratesOverRealRanks) {
  const TemporaryFolder folder;
  const auto shapes = model_path("flux-shapes");
  succeed({"plan", shapes, "--calibrate", folder / "here.json", "--count", "2", "--device", "cpu", "--dtype", "float32",
           "--height", "64", "--width", "64", "--max-sequence-length", "16"});
  const auto kind = Json::parse(content_of(folder / "here.json"))["kinds"][0];
  for (const auto* key : {"single_tflops", "attention_efficiency", "memory_gb_per_s", "pass_gb_per_s", "launch_us"}) {
    EXPECT_GT(kind[key].get<double>(), 0) << key;
  }
  for (const auto* operation : {"all_to_all", "all_gather", "all_reduce", "send"}) {
    EXPECT_GT(kind["operations"][operation]["gb_per_s"].get<double>(), 0) << operation;
    EXPECT_GT(kind["operations"][operation]["latency_us"].get<double>(), 0) << operation;
  }
  expect_mentions(succeed({"plan", shapes, "--kinds", folder / "here.json", "--kind", "measured", "--count", "2"}).out,
                  {"2 x measured", "ulysses 2", "tp 2"});
}

TEST(ParallelAuto, RunsTheFirstPlan) {
  const TemporaryFolder folder;
  for (const auto& [operation, degree] :
       {std::pair{"all_reduce", "tp_degree"}, {"all_to_all", "ulysses_degree"}, {"send", "ring_degree"}}) {
    put(folder / "kind.json", kind_that_likes(operation));
    const auto result = run_child(
        generate_command(folder / "picture.png", {"--parallel", "auto", "--machine", folder / "kind.json",
                                                  "--nproc-per-node", "2", "--report", folder / "report.json"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(Json::parse(content_of(folder / "report.json"))["config"][degree], 2) << operation;
  }
}

TEST(ParallelAuto, MeasuresTheMachineWhereNoneIsGiven) {
  const TemporaryFolder folder;
  for (const auto* ranks : {"1", "2"}) {
    const auto result = run_child(generate_command(
        folder / "picture.png", {"--parallel", "auto", "--nproc-per-node", ranks, "--report", folder / "report.json"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_mentions(result.err, {"layout: ", "ms a step"});
    const auto config = Json::parse(content_of(folder / "report.json"))["config"];
    const int product = config["tp_degree"].get<int>() * config["ulysses_degree"].get<int>() *
                        config["ring_degree"].get<int>() * config["fsdp_degree"].get<int>();
    EXPECT_EQ(std::to_string(product), ranks);
  }
}

TEST(ParallelAuto, IsRefusedBesideALayout) {
  const TemporaryFolder folder;
  const auto expect = [&](const std::vector<std::string>& flags, const std::vector<std::string>& parts) {
    const auto result = run_child(generate_command(folder / "picture.png", flags));
    EXPECT_EQ(result.exit_code, 2);
    expect_mentions(result.err, parts);
  };
  expect({"--parallel", "auto", "--tp-degree", "2"}, {"--parallel is auto", "Leave out the degrees"});
  expect({"--machine", "kind.json"}, {"--machine is given", "--parallel auto"});
}

TEST(Bench, SweepsModesAndSizes) {
  const TemporaryFolder folder;
  const auto result =
      succeed({"bench", "attention", "--nproc-per-node", "2", "--sizes", "17,32", "--heads", "3", "--head-dim", "8",
               "--repeats", "2", "--json", folder / "a.json", "--plot", folder / "a.svg"});
  expect_mentions(result.out, {"ulysses 2", "ring 2", "ring 2, allgather", "17 tokens", "32 tokens", "median ms"});
  const auto json = Json::parse(content_of(folder / "a.json"));
  EXPECT_EQ(json["rows"].size(), 6u);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["seconds"].size(), 2u);
    EXPECT_GT(row["bytes_sent"].get<int64_t>(), 0);
  }
  expect_mentions(content_of(folder / "a.svg"), {"<svg", "ring 2"});
}

TEST(Bench, RunsEveryOperationAndEveryLayout) {
  const TemporaryFolder folder;
  const auto operations = succeed({"bench", "collectives", "--nproc-per-node", "2", "--sizes", "64", "--repeats", "1"});
  expect_mentions(operations.out, {"all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "send"});
  const auto passes = succeed({"bench", "denoise", "--model", model_path("flux-shapes"), "--nproc-per-node", "2",
                               "--sizes", "64", "--max-sequence-length", "16", "--repeats", "1"});
  expect_mentions(passes.out, {"ulysses 2", "ring 2", "tp 2", "planned ms"});
  expect_refused({"bench", "collectives", "--sizes", "64"}, {"there is one rank"});
  expect_refused({"bench", "everything"}, {"WHAT is 'everything'"});
}

// A result with one case of these times, in seconds.
std::string result_of(const std::string& name, const std::vector<double>& seconds) {
  return Json({{"what", "attention"},
               {"config", {{"ranks", "2"}}},
               {"rows", Json::array({{{"name", name}, {"size", "64 tokens"}, {"seconds", seconds}}})}})
      .dump();
}

TEST(Bench, ComparesTwoRunsWithTheirSpread) {
  const TemporaryFolder folder;
  put(folder / "a.json", result_of("ring 2", {1.0, 1.01, 1.02, 0.99, 0.98}));
  put(folder / "b.json", result_of("ring 2", {1.5, 1.51, 1.52, 1.49, 1.48}));
  put(folder / "c.json", result_of("ring 2", {0.7, 1.3, 1.01, 0.8, 1.2}));
  put(folder / "d.json", result_of("ulysses 2", {1.0}));
  const auto compare = [&](const char* first, const char* second) {
    return run_program({"bench", "compare", folder / first, folder / second});
  };
  expect_mentions(compare("a.json", "b.json").out, {"ring 2", "1.500", "slower"});
  expect_mentions(compare("b.json", "a.json").out, {"0.6667", "faster"});
  expect_mentions(compare("a.json", "c.json").out, {"no difference"});
  EXPECT_EQ(compare("a.json", "c.json").out, compare("a.json", "c.json").out);
  expect_mentions(compare("a.json", "d.json").err, {"no case in common"});
  put(folder / "e.json", "{}");
  expect_mentions(compare("a.json", "e.json").err, {"e.json", "no result of pardiff bench"});
}

}  // namespace
}  // namespace pardiff::testing
