"""What the manifest says about the corpus of alphabook-mini, and that no held-out document can be trained on."""
import json, re

from conftest import ROOT

from alphabook.corpus import LANGUAGES, Document, Once, Source
from alphabook.mixture import COPYLEFT, choose, edit_prompts, is_held_out

MANIFEST = json.loads((ROOT / "data/corpus/manifest.json").read_text(encoding="utf-8"))

def test_every_source_has_version_licence_and_hash():
    for row in MANIFEST["sources"]:
        assert row["version"] and row["licence"] and "copyright file" not in row["licence"], row
        assert row["name"].endswith("stdlib") or re.fullmatch("[0-9a-f]{64}", row["sha256"]), row

def test_code_is_not_copyleft():
    loud = {r["name"] for r in MANIFEST["sources"] if r["bytes"].get("code") and COPYLEFT.search(r["licence"])}
    assert loud <= {"skrooge-common"}, loud     # the manifest's note tells of it

def test_packages_and_manifest_name_the_same():
    lines = (ROOT / "data/corpus/packages.txt").read_text(encoding="utf-8").splitlines()[1:]
    named = {tuple(line.split()[1:]) for line in lines if not line.startswith("descriptions")}
    used = {(r["name"], r["version"]) for r in MANIFEST["sources"] if not r["name"].startswith("debian-package-")
            and "held_out" not in r}
    assert named == used

def test_shares_add_up():
    kinds = MANIFEST["kinds"]
    assert sum(k["tokens"] for k in kinds.values()) == MANIFEST["n_tokens"] == sum(f["ids"] for f in MANIFEST["files"])
    assert set(kinds) == {"prose", "code", "edit", "chat", *LANGUAGES} == set(MANIFEST["heldout"])
    assert all(k["bytes_per_token"] > 2.5 for k in kinds.values())

def test_no_paragraph_is_both_held_out_and_trained_on():
    paragraph = "def f(x):\n    return x + %d  # " + "words "*20 + "\n"
    docs = [Document("p", f"/{i}.py", "en", "code", "\n\n\n".join(f"# {w}\n" + paragraph % j for j, w in
            enumerate("abcdefgh"[i % 3:])) + "\n") for i in range(600)]
    kept = list(choose(Source("p", "1", "MIT", docs), Once()))
    words = [set(re.findall(r"^# (\w)$", d.text, re.M)) for d in kept]
    assert len(kept) < 5 and sum(map(len, words)) == len(set().union(*words))

def test_edit_prompts_of_the_two_sides_come_from_different_documents():
    body = "def name_%d(left, right):\n    total = left + right\n    print(total, left, right)\n    return total + %d\n"
    docs = {"code": [Document("p", f"/{i}", "en", "code", body % (i, i)) for i in range(900)]}
    sides = [" ".join(edit_prompts(docs, 1e5, 1, held, {})) for held in (False, True)]
    seen = [set(re.findall(r"name_(\d+)", side)) for side in sides]
    held = {str(i) for i, d in enumerate(docs["code"]) if is_held_out(d)}
    assert seen[1] and seen[1] <= held and not seen[0] & held
