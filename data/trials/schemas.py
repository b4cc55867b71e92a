"""schemathesis against the server's own OpenAPI document: random bodies, wrong and right ones, and whether what comes back is what it says.

    python data/trials/schemas.py [--schemathesis COMMAND] [-m FILE] [--examples 30] [--seed 1]

schemathesis (4.32 was used) need not be in this environment: --schemathesis names its command. Every check of it is on. Exit code 1 if
anything is found. A 400 also counts as a right answer to a body that fits the document, for not all that is asked of a request can be
said there: that a prompt fits the context, that a template takes the roles in this order, that a tool that must come exists.
"""
import argparse, subprocess, sys, tempfile
from pathlib import Path

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--schemathesis", default="schemathesis"); p.add_argument("-m", "--model")
p.add_argument("--examples", type=int, default=30); p.add_argument("--seed", type=int, default=1)
args = p.parse_args()
CONFIG = '[checks.positive_data_acceptance]\nexpected-statuses = ["2xx", 400, 404]\n'
flags = ["-m", args.model] if args.model else []
server = subprocess.Popen([sys.executable, "-m", "alphabook", "serve", *flags, "--port", "0", "--ctx", "256", "--log", "none"],
                          stderr=subprocess.PIPE, text=True)
try:
    address = next(line for line in server.stderr if line.startswith("READY")).split()[1]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder)/"schemathesis.toml").write_text(CONFIG)
        code = subprocess.run([args.schemathesis, "run", address + "/openapi.json", "--checks", "all", "--max-examples", str(args.examples),
                               "--seed", str(args.seed), "--no-color"], cwd=folder).returncode
finally:
    server.terminate()
    said = [line for line in server.stderr if "Traceback" in line]
    ended = server.wait(60)
print(f"schemathesis: {code}, the server's exit code: {ended}, tracebacks: {len(said)}")
sys.exit(bool(code or ended or said))
