"""The layer check finds what it is there to find."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_layers  # noqa: E402


def violations(path, text):
    return list(check_layers.violations_in(path, text))


class CheckLayers(unittest.TestCase):
    def test_refuses_a_layer_above(self):
        for path, include in [
            ("src/core/log.cpp", "<pardiff/comm/world.h>"),
            ("src/comm/world.cpp", '"attention/modes/ring.h"'),
            ("include/pardiff/nn/linear.h", "<pardiff/models/model.h>"),
            ("src/io/image.cpp", "<pardiff/parallel/mesh.h>"),
            ("src/models/model.cpp", "<pardiff/pipelines/flux_pipeline.h>"),
        ]:
            self.assertEqual(len(violations(path, f"#include {include}\n")), 1, path)

    def test_allows_the_own_layer_and_those_below(self):
        self.assertEqual(violations("src/models/x.cpp", "#include <pardiff/core/check.h>\n#include \"models/y.h\"\n"), [])
        self.assertEqual(violations("cli/x.cpp", "#include <pardiff/comm/world.h>\n#include \"cli/flags.h\"\n"), [])

    def test_keeps_transports_in_their_place(self):
        text = "#include <torch/csrc/distributed/c10d/TCPStore.hpp>\n"
        self.assertEqual(len(violations("src/comm/world.cpp", text)), 1)
        self.assertEqual(violations("src/comm/rendezvous.cpp", text), [])
        self.assertEqual(violations("src/comm/backends/gloo.cpp", text), [])

    def test_keeps_modules_out_of_low_headers(self):
        text = "#include <torch/nn/module.h>\n"
        self.assertEqual(len(violations("include/pardiff/comm/world.h", text)), 1)
        self.assertEqual(violations("include/pardiff/models/model.h", text), [])

    def test_refuses_an_unknown_layer(self):
        self.assertEqual(len(violations("src/utils/x.cpp", "")), 1)


if __name__ == "__main__":
    unittest.main()
