#!/bin/sh
# usage: gate.sh TRACELENS BEFORE AFTER   A gate from end to end: baseline, pass, failure, files for build servers.
set -eu
tracelens=$1 before=$2 after=$3
"$tracelens" baseline save main "$before"
test "$("$tracelens" baseline list)" = "baseline:main"
"$tracelens" compare baseline:main "$before" --gate 'step<+3%' --gate 'coverage>-1' -o same.xml >/dev/null
grep -q 'failures="0"' same.xml
if "$tracelens" compare baseline:main "$after" --gate 'step<+3%' --format github -o out -o compare.md >annotations; then
    echo "a slower step passed"; exit 1
else
    test $? -eq 4
fi
grep -q '^::error title=tracelens step<+3%25::' annotations
grep -q 'failures="1"' out/compare.xml
grep -q '"level": "error"' out/compare.sarif
grep -q '❌ ' compare.md
test -s out/compare.html -a -s out/compare.xlsx -a -s out/compare.json
if "$tracelens" compare baseline:main "$after" --gate 'no_such_category<+3%' 2>said; then exit 1; else test $? -eq 3; fi
grep -q "no_such_category" said
