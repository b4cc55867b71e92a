"Writes measurements in the one schema of data/results: what all rows share, then the rows, one a line."
import datetime, json, subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TODAY = datetime.date.today().isoformat()


def write(path, topic, rows, command, device='cpu', contract_version=None, **shared):
    "Write `rows` with the date and the commit; returns the path."
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    head = dict(topic=topic, device=device, date=TODAY, commit=commit, command=command, contract_version=contract_version, **shared)
    body = ',\n'.join('  ' + json.dumps(r, ensure_ascii=False) for r in rows)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(head, indent=1, ensure_ascii=False)[:-2] + ',\n "rows": [\n' + body + '\n ]\n}\n', encoding='utf-8')
    return path
