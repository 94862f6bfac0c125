#!/usr/bin/env bash
# Make a release of the commit that is checked out, from a clean clone of it: sdist, wheels of this
# machine, the site, a rendered long description, checksums; check each as a user has it, and tag.
#   ci/release.sh --changelog      before it: the part of CHANGELOG.md for ordermq/version.py, from the
#                                  files of changes/, to be read, mended and committed
#   ci/release.sh --dry-run        everything but the tag
#   ci/release.sh                  the same, then an annotated tag vVERSION, here only: the script
#                                  prints what to push and upload, and does neither
#   REPOSITORY=https://example.org/ordermq ci/release.sh --dry-run
#                                  where links of the long description lead to; a package index
#                                  shows README.md without the files that it links to
#   PYTHONS=python3.12 ci/release.sh --dry-run      wheels of one Python (ci/wheels.sh)
# Leaves all in build/release. Needs git, gcc, clang and a package index. CONTRIBUTING.md has the
# steps before and after.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
dry= changelog=
case ${1:-} in
--dry-run) dry=yes ;;
--changelog) changelog=yes ;;
"") ;;
*)
    echo "ordermq: unknown argument $1; see ci/release.sh --help" >&2
    exit 2
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
python=${PYTHON:-python3}
REPOSITORY=${REPOSITORY:-}

problems=()
say() { echo "ordermq: $*"; }
problem() { # what stops a release, and only is said in a dry run
    problems+=("$*")
    [ -n "$dry" ] || { say "$*" >&2 && exit 1; }
}

version=$("$python" -c 'import runpy; print(runpy.run_path("ordermq/version.py")["VERSION"])')
tag=v$version
if [ -n "$changelog" ]; then
    if grep -q "^## $version, " CHANGELOG.md; then
        say "CHANGELOG.md has a part of $version: edit it, or raise ordermq/version.py" >&2
        exit 1
    fi
    source ci/venv.sh
    exec "$venv/bin/towncrier" build --yes --version "$version"
fi
[ -z "$(git status --porcelain)" ] || problem "the checkout has changes that are not committed"
! git rev-parse -q --verify "refs/tags/$tag" >/dev/null || problem "there is a tag $tag: raise ordermq/version.py"
grep -qE "^## $version, [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
    problem "CHANGELOG.md has no heading '## $version, YYYY-MM-DD'"
parts=$(git ls-files changes ':!changes/README.md')
[ -z "$parts" ] || problem "not in CHANGELOG.md yet (ci/release.sh --changelog): ${parts//$'\n'/ }"
[ -n "$REPOSITORY" ] || {
    problem "REPOSITORY is not set: links of the long description lead nowhere"
    REPOSITORY=https://example.org/ordermq
}

made=$root/build/release
rm -rf "$made"
mkdir -p "$made"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say "release $version of $(git rev-parse --short HEAD), from a clean clone"
git -c advice.detachedHead=false clone -q --no-hardlinks "$root" "$work/clone"
cd "$work/clone"
git -c advice.detachedHead=false checkout -q "$(git -C "$root" rev-parse HEAD)"

"$python" ci/long_description.py README.md "$REPOSITORY" "$tag"
git -c user.name=release -c user.email=release@localhost commit -qam "Links of $tag" # here only

say "sdist and wheels"
DIST=$made/dist ci/wheels.sh

say "the sdist, as pip installs it where there is no wheel"
"$python" -m venv "$work/from-sdist"
"$work/from-sdist/bin/pip" install --quiet "$made"/dist/*.tar.gz
PYTHON=$work/from-sdist/bin/python ci/wheel_check.sh

say "each extra alone, with the newest and with the oldest libraries"
wheel=$(printf '%s\n' "$made"/dist/*.whl | sed -n 1p)
its_python=python3.$(sed -E 's/.*-cp3([0-9]+)-cp.*/\1/' <<<"$wheel")
WHEEL=$wheel PYTHON=$its_python ci/extras.sh
WHEEL=$wheel PYTHON=$its_python ci/extras.sh --lowest

say "metadata and long description"
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet twine "readme_renderer[md]"
"$work/tools/bin/twine" check --strict "$made"/dist/*
"$work/tools/bin/python" ci/long_description.py --render "$made"/dist/*.tar.gz "$made/long_description.html"

say "the site, and the examples of its pages that need Numba"
EXTRAS=dev,numba-test ci/venv.sh
ci/docs.sh
tar -C build -czf "$made/site.tar.gz" site
.venv/bin/python -m pytest -q tests/component/test_core_docs.py

cd "$made"
find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum >SHA256SUMS
say "in build/release:"
cat SHA256SUMS
if [ ${#problems[@]} -gt 0 ]; then
    printf 'ordermq: BEFORE A RELEASE: %s\n' "${problems[@]}"
fi
if [ -n "$dry" ]; then
    say "dry run: nothing is tagged"
else
    git -C "$root" tag -a "$tag" -m "ordermq $version"
    say "tagged $tag; now: git push origin $tag (wheels of all systems are built by wheels.yml)," \
        "then upload its artefacts with: twine upload dist/*"
fi
