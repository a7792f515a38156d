#!/bin/sh
# Runs test programs in a virtual machine: as root, and as another user, who owns only the processes
# that the tests start. tests.sh HIDEPID
# Prints records, each on a line of its own:
#   release RELEASE
#   test PROGRAM READER STATUS SECONDS SKIPPED SUMMARY FAILED    (names of the tests that failed)
# The output of programs that fail goes to standard error.
work=/tmp/tests
mkdir -p $work
printf 'release\t%s\n' "$(uname -r)"
[ "$1" = 0 ] || mount -o "remount,hidepid=$1" /proc
while IFS=' ' read -r name folder options; do
    for reader in root user; do
        at=$work/$name-$reader
        mkdir -p $at && chmod 777 $at
        run="cd $folder; export CARGO_MANIFEST_DIR=$folder HOME=$at TMPDIR=$at PAGEWISE_SKIPS=$at/skips"
        run="$run PAGEWISE_TEST_PROGRAMS=/tests/programs"
        run="$run; timeout 400 /tests/$name --test-threads 2 $options"
        begin=$(cut -d . -f 1 /proc/uptime)
        if [ $reader = root ]; then sh -c "$run"; else su -s /bin/sh -c "$run" $reader; fi \
            >$at/out 2>&1 </dev/null
        status=$?
        took=$(($(cut -d . -f 1 /proc/uptime) - begin))
        result=$(grep '^test result: ' $at/out | tail -n 1)
        failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' $at/out | tr '\n' ' ')
        skipped=$(grep -c '^test' $at/skips 2>/dev/null)
        printf 'test\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$name" $reader $status $took "${skipped:-0}" \
            "$result" "$failed"
        [ $status = 0 ] || { echo "== $name, $reader, $status"; cat $at/out; } >&2
        rm -rf $at
    done
done </kernels/tests
exit 0
