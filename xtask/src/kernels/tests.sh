#!/bin/sh
# Runs test programs in a virtual machine: by root, by a user, and by another one. Writes tests.tsv:
# program, reader, exit status, the summary of libtest, names of the tests that failed.
out=$PAGEWISE_RESULTS
work=/tmp/tests
mkdir -p $work
uname -r >"$out/release"
while IFS=' ' read -r name folder; do
    for reader in root user nobody; do
        at=$work/$name-$reader
        mkdir -p $at && chmod 777 $at
        run="cd $folder; export CARGO_MANIFEST_DIR=$folder HOME=$at TMPDIR=$at PAGEWISE_SKIPS=$at/skips"
        run="$run; timeout 300 /tests/$name --test-threads 2"
        if [ $reader = root ]; then sh -c "$run"; else su -s /bin/sh -c "$run" $reader; fi \
            >$at/out 2>&1 </dev/null
        status=$?
        result=$(grep '^test result: ' $at/out | tail -n 1)
        failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' $at/out | tr '\n' ' ')
        skipped=$(grep -c '^test' $at/skips 2>/dev/null)
        printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$name" $reader $status "$result" "${skipped:-0}" \
            "$failed" >>"$out/tests.tsv"
        [ $status = 0 ] || cp $at/out "$out/failed-$name-$reader"
        rm -rf $at
    done
done </kernels/tests
exit 0
