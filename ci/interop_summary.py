"""Print one table of interop runs, and each skip with its reason.

python ci/interop_summary.py LABEL=JUNIT_FILE...
"""

from __future__ import annotations

import sys
from collections import Counter
from xml.etree import ElementTree


def main() -> None:
    skips: Counter[tuple[str, str]] = Counter()
    broken: list[str] = []
    print(f"{'RocketMQ':28}{'cases':>7}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for given in sys.argv[1:]:
        label, _, path = given.partition("=")
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
        failed = skipped = 0
        for case in cases:
            name = f"{case.get('classname')}::{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                failed += 1
                broken.append(f"{label}: {name}")
            elif (skip := case.find("skipped")) is not None:
                skipped += 1
                skips[(label, f"{case.get('classname')}: {skip.get('message')}")] += 1
        seconds = sum(float(case.get("time") or 0) for case in cases)
        passed = len(cases) - failed - skipped
        print(f"{label:28}{len(cases):7}{passed:8}{failed:8}{skipped:9}{seconds:9.0f}")
    for (label, reason), count in sorted(skips.items()):
        print(f"skipped on {label}, {count} of {reason}")
    for name in broken:
        print(f"FAILED on {name}")


if __name__ == "__main__":
    main()
