#include <pardiff/core/check.h>
#include <pardiff/plan/machine.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace pardiff::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6;

// One object of a file, with a name for messages.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    check<CheckpointError>(json.is_object(), where_, " is no object. See docs/planner.md for its keys.");
  }

  double number(const std::string& key) const {
    check<CheckpointError>(json_.contains(key), where_, " has no '", key, "'. See docs/planner.md for its keys.");
    return checked(key);
  }
  double number(const std::string& key, double otherwise) const {
    return json_.contains(key) ? checked(key) : otherwise;
  }
  bool flag(const std::string& key, bool otherwise) const {
    if (!json_.contains(key)) return otherwise;
    check<CheckpointError>(json_[key].is_boolean(), where_, ": '", key, "' is ", json_[key].dump(),
                           ". Give true or false.");
    return json_[key].get<bool>();
  }
  std::string text(const std::string& key, const std::string& otherwise) const {
    if (!json_.contains(key)) return otherwise;
    check<CheckpointError>(json_[key].is_string(), where_, ": '", key, "' is ", json_[key].dump(), ". Give a text.");
    return json_[key].get<std::string>();
  }
  Fields within(const std::string& key) const {
    check<CheckpointError>(json_.contains(key), where_, " has no '", key, "'. See docs/planner.md for its keys.");
    return {json_[key], where_ + ": " + key};
  }
  const Json& json() const { return json_; }

 private:
  double checked(const std::string& key) const {
    const auto& value = json_[key];
    const double number = value.is_number() ? value.get<double>() : -1;
    check<CheckpointError>(std::isfinite(number) && number >= 0, where_, ": '", key, "' is ", value.dump(),
                           ". Give a number that is not negative.");
    return number;
  }

  const Json& json_;
  std::string where_;
};

Link link_in(const Fields& fields) { return {fields.number("gb_per_s") * kGiga, fields.number("latency_us") * kMicro}; }

Json json_of(const Link& link) {
  return {{"gb_per_s", link.bytes_per_s / kGiga}, {"latency_us", link.latency_s / kMicro}};
}

void check_positive(const Machine& machine, const std::string& where) {
  for (const auto& [key, value] : {std::pair{"half_tflops", machine.half_flops},
                                   {"single_tflops", machine.single_flops},
                                   {"efficiency", machine.efficiency},
                                   {"attention_efficiency", machine.attention_efficiency},
                                   {"memory_gb", machine.memory_bytes},
                                   {"memory_gb_per_s", machine.memory_bytes_per_s},
                                   {"link gb_per_s", machine.link.bytes_per_s},
                                   {"network gb_per_s", machine.network.bytes_per_s},
                                   {"row_tile", static_cast<double>(machine.row_tile)},
                                   {"ranks_per_host", static_cast<double>(machine.ranks_per_host)}}) {
    check<CheckpointError>(value > 0, where, ": '", key, "' is ", value, ". Give a number above 0.");
  }
}

Machine machine_in(const Fields& fields, const std::string& where) {
  Machine machine;
  machine.name = fields.text("name", "");
  check<CheckpointError>(!machine.name.empty(), where, " has no 'name'. Give the kind one.");
  machine.description = fields.text("description", machine.name);
  machine.half_flops = fields.number("half_tflops") * kTera;
  machine.single_flops = fields.number("single_tflops") * kTera;
  machine.efficiency = fields.number("efficiency");
  machine.attention_efficiency = fields.number("attention_efficiency", machine.efficiency);
  machine.row_tile = static_cast<int64_t>(fields.number("row_tile", 128));
  machine.memory_bytes = fields.number("memory_gb") * kGiga;
  machine.memory_is_shared = fields.flag("memory_is_shared", false);
  machine.memory_bytes_per_s = fields.number("memory_gb_per_s") * kGiga;
  machine.pass_bytes_per_s = fields.number("pass_gb_per_s", 0) * kGiga;
  machine.ranks_per_host = static_cast<int>(fields.number("ranks_per_host", 8));
  machine.link = link_in(fields.within("link"));
  machine.network = link_in(fields.within("network"));
  machine.overlap = fields.number("overlap", 1);
  machine.launch_s = fields.number("launch_us") * kMicro;
  machine.asynchronous = fields.flag("asynchronous", true);
  if (fields.json().contains("operations")) {
    const auto operations = fields.within("operations");
    for (const auto& [name, ignored] : operations.json().items()) {
      machine.operations[name] = link_in(operations.within(name));
    }
  }
  check_positive(machine, where);
  return machine;
}

}  // namespace

double Machine::flops(at::ScalarType dtype) const {
  if (dtype == at::kFloat) return single_flops;
  check<ConfigError>(dtype == at::kBFloat16 || dtype == at::kHalf, "no rate is known for ", dtype,
                     ". Use bfloat16, float16 or float32.");
  return half_flops;
}

std::string Machine::to_json() const {
  Json kind = {{"name", name},
               {"description", description},
               {"half_tflops", half_flops / kTera},
               {"single_tflops", single_flops / kTera},
               {"efficiency", efficiency},
               {"attention_efficiency", attention_efficiency},
               {"row_tile", row_tile},
               {"memory_gb", memory_bytes / kGiga},
               {"memory_is_shared", memory_is_shared},
               {"memory_gb_per_s", memory_bytes_per_s / kGiga},
               {"pass_gb_per_s", pass_bytes_per_s / kGiga},
               {"ranks_per_host", ranks_per_host},
               {"link", json_of(link)},
               {"network", json_of(network)},
               {"overlap", overlap},
               {"launch_us", launch_s / kMicro},
               {"asynchronous", asynchronous}};
  for (const auto& [operation, own] : operations) kind["operations"][operation] = json_of(own);
  return Json({{"kinds", Json::array({kind})}}).dump(2) + "\n";
}

std::vector<Machine> machines_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  check<CheckpointError>(stream.is_open(), "cannot read the kinds of machines in ", file.string(),
                         ". Give a JSON file as docs/planner.md describes it.");
  const auto json = Json::parse(stream, nullptr, false);
  check<CheckpointError>(json.is_object() && json.contains("kinds") && json["kinds"].is_array(), file.string(),
                         " holds no list 'kinds'. Give a JSON file as docs/planner.md describes it.");
  std::vector<Machine> machines;
  for (size_t i = 0; i < json["kinds"].size(); ++i) {
    const auto where = text_of(file.string(), ": kind ", i);
    machines.push_back(machine_in(Fields(json["kinds"][i], where), where));
  }
  return machines;
}

}  // namespace pardiff::plan
