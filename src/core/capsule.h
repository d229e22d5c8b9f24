#pragma once
#include <ATen/core/ivalue.h>

#include <utility>

namespace pardiff {

// Autograd contexts hold IValues; this carries any C++ value in one.
template <typename Value>
struct Capsule : torch::CustomClassHolder {
  explicit Capsule(Value held) : value(std::move(held)) {}
  Value value;
};

template <typename Value>
c10::IValue enclose(const Value& value) {
  return c10::IValue::make_capsule(c10::make_intrusive<Capsule<Value>>(value));
}

template <typename Value>
const Value& enclosed_as(const c10::IValue& capsule) {
  return static_cast<const Capsule<Value>&>(*capsule.toCapsule()).value;
}

}  // namespace pardiff
