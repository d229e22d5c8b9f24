// A project of its own that finds an installed pardiff: the ranks add up their numbers.
#include <ATen/ATen.h>
#include <pardiff/pardiff.h>

#include <iostream>

int main() {
  return pardiff::run([](pardiff::World& world) {
    auto sum = at::full({1}, static_cast<double>(world.rank() + 1));
    pardiff::all_reduce(sum, world.group()).wait();
    const double expected = world.size() * (world.size() + 1) / 2.0;
    pardiff::check<pardiff::Error>(sum.item<double>() == expected, "the ranks add up to ", sum.item<double>(), ", not ",
                                   expected, ".");
    if (world.rank() == 0) std::cout << world.size() << " ranks add up to " << expected << "\n";
  });
}
