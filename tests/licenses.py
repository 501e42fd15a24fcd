"""Fails if a dependency has a licence that deny.toml does not allow, or if two versions of one crate are linked that
deny.toml does not know of. The same rules as `cargo deny check licenses bans`, without having to install it."""

import json
import re
import subprocess
import sys
import tomllib

rules = tomllib.load(open("deny.toml", "rb"))
allowed = set(rules["licenses"]["allow"])
doubles = {skip["name"] for skip in rules["bans"]["skip"]}
metadata = json.loads(
    subprocess.check_output(["cargo", "metadata", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"])
)
linked = {node["id"] for node in metadata["resolve"]["nodes"]}
problems, versions = [], {}
for package in metadata["packages"]:
    if package["id"] not in linked:
        continue
    versions.setdefault(package["name"], set()).add(package["version"])
    expression = re.sub(r"\bWITH [\w.-]+", "", package["license"] or "").replace("/", " OR ")
    choices = [re.split(r"\s+AND\s+", choice.strip(" ()")) for choice in re.split(r"\s+OR\s+", expression)]
    if not any(all(part.strip(" ()") in allowed for part in choice) for choice in choices):
        # `(A OR B) AND C` and the like: every name that occurs must then be allowed.
        names = set(re.findall(r"[\w.+-]+", expression)) - {"AND", "OR"}
        if not names or not names <= allowed:
            problems.append(f"{package['name']} {package['version']}: licence {package['license']}")
for name, found in sorted(versions.items()):
    if len(found) > 1 and name not in doubles:
        problems.append(f"{name} is linked in {len(found)} versions: {', '.join(sorted(found))}")
print(f"licences: {len(linked)} crates, {len(problems)} problems")
sys.exit("\n".join(problems) if problems else 0)
