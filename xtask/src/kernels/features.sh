#!/bin/sh
# Runs each feature of pagewise in a virtual machine: as root, as the user who owns the target, and
# as another user. features.sh HIDEPID
#
# Prints each record at once, on a line of its own: if the machine is stopped early, its finished
# records have been sent.
#   release RELEASE
#   feature NAME READER STATUS SECONDS LAST_WORDS    (of standard error)
#   report NAME READER JSON                          (where the feature prints JSON)
hidepid=$1
work=/tmp/features
mkdir -p $work
printf 'release\t%s\n' "$(uname -r)"
[ "$hidepid" = 0 ] || mount -o "remount,hidepid=$hidepid" /proc

# as USER COMMAND
as() {
    if [ "$1" = root ]; then sh -c "$2"; else su -s /bin/sh -c "$2" "$1"; fi
}

# A target ends at the end of its standard input.
mkfifo $work/open
sleep 100000 >$work/open &
opener=$!

# Starts a target; its PID is $target.
start_target() {
    as user "exec steady leaks" <$work/open >$work/target 2>&1 &
    tries=0
    until grep -qs ready $work/target; do
        tries=$((tries + 1))
        [ $tries -gt 600 ] && echo "the target does not start" >&2 && exit 1
        sleep 0.1
    done
    target=$(pidof steady)
}

# feature NAME COMMAND: TARGET stands for the PID of the target.
feature() {
    for reader in root user nobody; do
        at=$work/$1-$reader
        mkdir -p $at && chmod 777 $at
        # A target ends itself after ten minutes. If that happens, the command runs once more, with a
        # new target.
        for try in 1 2; do
            words=$(echo "$2" | sed "s/TARGET/$target/")
            begin=$(cut -d . -f 1 /proc/uptime)
            as $reader "cd $at; export HOME=$at; timeout 200 $words" >$at/out 2>$at/err </dev/null
            status=$?
            took=$(($(cut -d . -f 1 /proc/uptime) - begin))
            said=$(grep -v '^ *$' $at/err | tail -n 3 | tr '\n\t' '  ')
            [ -d /proc/$target/task ] && break
            status=target said="the target ended: $said"
            start_target
        done
        printf 'feature\t%s\t%s\t%s\t%s\t%s\n' "$1" $reader $status $took "$said"
        if head -c 1 $at/out | grep -q '{'; then
            printf 'report\t%s\t%s\t' "$1" $reader
            tr -d '\n' <$at/out
            echo
        fi
        rm -rf $at
    done
}

start_target
feature explain "pagewise explain TARGET --json --full"
feature explain-fast "pagewise explain TARGET --json --fast"
feature maps "pagewise maps TARGET --json"
feature pages "pagewise pages TARGET --json"
feature ps "pagewise ps --json"
feature system "pagewise system --json"
feature system-cgroup "pagewise system --cgroup --json"
feature oom "pagewise oom --json"
feature doctor "pagewise doctor --json"
feature fragmentation "pagewise fragmentation --json"
feature thp "pagewise thp TARGET --json"
feature trim "pagewise trim TARGET --max-pause 10s --json"
# Exit status 10: diagnose found trouble.
feature diagnose "pagewise diagnose TARGET --for 1s --json || [ \$? = 10 ]"
feature heap-scan "pagewise heap scan TARGET --max-pause 10s --json"
feature heap-run "pagewise heap run -o run.pwh -- heap_known || [ \$? = 3 ]"
feature heap-attach "pagewise heap attach TARGET --for 1s --max-pause 10s -o attach.pwh"
feature guard "pagewise guard -- heap_known || [ \$? = 3 ]"
feature faults "pagewise faults --json -- heap_known || [ \$? = 3 ]"
feature shootdowns "pagewise shootdowns --json -- heap_known || [ \$? = 3 ]"
feature syscalls "pagewise syscalls --json -- heap_known || [ \$? = 3 ]"
feature stat "pagewise stat --json -- busybox true"
feature watch "pagewise watch TARGET kept 8 --count 1 --for 5s --json"
feature run "pagewise run --thp=never -- busybox true"
feature record "pagewise record --dir here --every 500ms --for 1s"
feature export "pagewise export --once"

# Closes the input of the target, which ends it. Otherwise it would run beside the tests.
kill $opener
exit 0
