// node pyodide.mjs PYODIDE CHECKOUT PACKAGES EXAMPLE: the smoke test and a replay.
const [pyodide, checkout, packages, example] = process.argv.slice(2);
const { loadPyodide } = await import(pyodide);
const python = await loadPyodide({ stdout: (line) => console.log(line) });
for (const [name, root] of [["checkout", checkout], ["packages", packages]]) {
  python.FS.mkdirTree(`/${name}`);
  python.FS.mount(python.FS.filesystems.NODEFS, { root }, `/${name}`);
}
python.globals.set("example", example);
try {
  python.runPython(`
import io, json, runpy, sys
from contextlib import redirect_stdout, suppress
sys.dont_write_bytecode = True
sys.path[:0] = ["/checkout", "/packages"]
from tools.portability import smoke
smoke.main()
sys.argv = ["madl", "replay", "--example", example, "--device", "cpu", "--json"]
said = io.StringIO()
with redirect_stdout(said), suppress(SystemExit):
    runpy.run_module("madl", run_name="__main__")
report = json.loads(said.getvalue())
ratio = report["committed_over_live"]
print(f"replay {report['events']} events, {ratio:.3f}")
`);
} catch (error) {
  console.log(String(error.message));
  process.exit(1);
}
