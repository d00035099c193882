"""The wire code in the Python package is what the schemas of this tree generate."""

import filecmp
import pathlib
import subprocess
import tempfile
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "clients" / "python"


class WireTest(unittest.TestCase):
    def test_up_to_date(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PACKAGE / "generate", folder], check=True)
            fresh = pathlib.Path(folder) / "kvern" / "wire"
            committed = PACKAGE / "kvern" / "wire"
            names = sorted(path.name for path in fresh.glob("*.py"))
            self.assertGreater(len(names), 20)
            self.assertEqual(names, sorted(path.name for path in committed.glob("*.py")))
            _, different, missing = filecmp.cmpfiles(fresh, committed, names, shallow=False)
            self.assertEqual((different, missing), ([], []),
                             "run tools/clients/python/generate and commit the result")


if __name__ == "__main__":
    unittest.main()
