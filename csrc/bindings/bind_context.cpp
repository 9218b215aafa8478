#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "binding.h"

namespace foreword::bindings {
namespace {

constexpr std::size_t kMaxThreads = 256;

std::vector<InstructionSet> available_sets() {  // best first
  std::vector<InstructionSet> sets{detect_instruction_set()};
  if (sets[0] != InstructionSet::kScalar) sets.push_back(InstructionSet::kScalar);
  return sets;
}

InstructionSet choose_set(std::string_view name) {
  std::string known = "auto";
  for (InstructionSet isa : available_sets()) {
    if (name == "auto" || name == instruction_set_name(isa)) return isa;
    known.append(", ").append(instruction_set_name(isa));
  }
  fail("instruction_set", "one of " + known, "'" + std::string(name) + "'");
}

void make_context(Context* self, std::int64_t num_threads, std::string_view instruction_set) {
  if (num_threads < 1 || num_threads > static_cast<std::int64_t>(kMaxThreads)) {
    fail("num_threads", "1 to " + std::to_string(kMaxThreads), std::to_string(num_threads));
  }
  new (self) Context(static_cast<std::size_t>(num_threads), choose_set(instruction_set));
}

}  // namespace
}  // namespace foreword::bindings

void bind_context(nb::module_& module) {
  using namespace foreword;
  using namespace foreword::bindings;
  nb::class_<Context>(module, "Context",
                      "A pool of threads and an instruction set; calls from several threads take turns.")
      .def("__init__", &make_context, nb::arg("num_threads"), nb::arg("instruction_set"))
      .def_prop_ro("num_threads", [](const Context& self) { return self.pool.num_threads(); })
      .def_prop_ro("instruction_set", [](const Context& self) { return instruction_set_name(self.isa); });
  module.def(
      "available_instruction_sets",
      [] {
        std::vector<std::string> names;
        for (InstructionSet isa : available_sets()) names.emplace_back(instruction_set_name(isa));
        return names;
      },
      "Names of the instruction sets this build carries and this machine can run, best first.");
}
