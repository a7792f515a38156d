//! Programs have the same output with this library as without it.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers too")]
#![cfg(all(target_os = "linux", target_pointer_width = "64", target_endian = "little"))]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use pagewise_skip::{Lack, skip};

/// The library, as it was built for these tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libpagewise_malloc.so");
    assert!(library.is_file(), "{} was not built", library.display());
    library
}

/// Runs a program with some input, with the library or without.
fn run(command: &[&str], input: &str, with_library: bool) -> Output {
    let mut program = Command::new(command[0]);
    program.args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Python's own allocator would hide the library.
    program.env("PYTHONMALLOC", "malloc");
    if with_library {
        program.env("LD_PRELOAD", library());
    }
    let mut child = program.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Compares a program's output with the library to that without.
fn assert_same(command: &[&str], input: &str) {
    if Command::new(command[0]).arg("--version").output().is_err() {
        return skip(&Lack::Tool(command[0]));
    }
    let [plain, ours] = [false, true].map(|with| run(command, input, with));
    let said = String::from_utf8_lossy(&ours.stderr);
    assert!(ours.status.success(), "{command:?}: {} {said}", ours.status);
    assert!(ours.stdout == plain.stdout && !ours.stdout.is_empty(), "{command:?}: {said}");
}

#[test]
fn python_builds_sorts_and_frees_objects_in_threads_and_children() {
    let program = "
import threading, json, os, subprocess
def work(n):
    rows = [{'id': i, 'text': 'x' * (i % 3000), 'list': list(range(i % 50))} for i in range(n)]
    rows.sort(key=lambda row: row['text'], reverse=True)
    text = json.dumps(rows)
    return len(json.loads(text)), hash(len(text))
threads = [threading.Thread(target=work, args=(2000,)) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
pid = os.fork()
if pid == 0:
    work(500); os._exit(7)
print(os.waitpid(pid, 0)[1] >> 8, work(3000), len(bytearray(50_000_000)))
print(subprocess.run(['echo', 'child'], capture_output=True).stdout)
";
    assert_same(&["python3", "-"], program);
}

#[test]
fn sqlite_joins_and_sorts() {
    let mut script = String::from("create table t(a integer, b text); begin;\n");
    for row in 0..5000 {
        script += &format!("insert into t values({row}, hex(zeroblob({})));\n", row % 700);
    }
    script += "commit; create index i on t(b);
        select count(*), sum(length(x.b)) from t x join t y on x.a = y.a + 1 order by x.b;
        select a, length(b) from t order by b desc, a limit 20; vacuum; select sum(a) from t;\n";
    assert_same(&["sqlite3"], &script);
}

#[test]
fn git_commits_packs_and_shows_a_history() {
    let script = "
set -e
dir=$(mktemp -d); cd $dir; trap 'rm -rf $dir' EXIT
export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
git init -q -b main; git config user.email a@b; git config user.name c
for n in 1 2 3 4 5 6 7 8; do seq $((n * 1000)) > file$((n % 3)); git add .; git commit -qm $n; done
git gc -q; git fsck; git log --stat --format=%H; git diff HEAD~3 | tail -5
";
    if Command::new("git").arg("--version").output().is_err() {
        return skip(&Lack::Tool("git"));
    }
    assert_same(&["bash"], script);
}

#[test]
fn every_function_of_the_family_returns_usable_memory() {
    let program = "
import ctypes, errno
c = ctypes.CDLL(None, use_errno=True)
for name in ['malloc', 'calloc', 'realloc', 'memalign', 'aligned_alloc', 'valloc', 'pvalloc', 'reallocarray']:
    getattr(c, name).restype = ctypes.c_void_p
c.malloc_usable_size.restype = ctypes.c_size_t
P, S = ctypes.c_void_p, ctypes.c_size_t
def fill(p, n):
    assert p and p % 16 == 0, p
    assert c.malloc_usable_size(P(p)) >= n
    ctypes.memset(p, 7, n)
for n in [0, 1, 24, 25, 1016, 1017, 5000, 65536, 65537, 300000, 5000000]:
    p = c.malloc(S(n)); fill(p, n)
    q = c.realloc(P(p), S(n * 2 + 1)); fill(q, n * 2 + 1)
    q = c.realloc(P(q), S(n // 2 + 1)); fill(q, n // 2 + 1)
    assert n < 2 or ctypes.string_at(q, n // 2) == b'\\x07' * (n // 2)
    c.free(P(q))
    z = c.calloc(S(n), S(3)); assert ctypes.string_at(z, n * 3) == b'\\0' * (n * 3); fill(z, n * 3); c.free(P(z))
    for align in [16, 64, 4096, 65536, 1 << 21]:
        a = c.memalign(S(align), S(n)); assert a % align == 0; fill(a, n)
        b = P(); assert c.posix_memalign(ctypes.byref(b), S(align), S(n)) == 0 and b.value % align == 0
        fill(b.value, n); c.free(b)
        d = c.realloc(P(a), S(n + 1000)); fill(d, n + 1000); c.free(P(d))
    v = c.valloc(S(n)); assert v % 4096 == 0; fill(v, n); c.free(P(v))
    r = c.reallocarray(P(0), S(n), S(2)); fill(r, n * 2); c.free(P(r))
b = P()
assert c.posix_memalign(ctypes.byref(b), S(3), S(10)) == errno.EINVAL
assert not c.malloc(S(2**64 - 100)) and ctypes.get_errno() == errno.ENOMEM
assert not c.calloc(S(2**63), S(4)) and not c.reallocarray(P(0), S(2**63), S(4))
c.malloc_trim(S(0)); c.free(P(0))
print('whole')
";
    assert_same(&["python3", "-"], program);
}
