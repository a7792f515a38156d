//! Cost of recording a heap: pagewise's recorder with every call and with sampling, heaptrack, and
//! massif, against the program alone. The programs are sqlite3, which sorts a table in memory;
//! python3, perl and node, which build data structures and parse texts; cc1plus, which compiles
//! templates; and two threads that replace blocks at random, with call stacks of 18 calls.
//!
//! `cargo bench -p pagewise --bench heap [WORKLOAD...]`; with `PAGEWISE_BENCH_SLOW=1` valgrind's
//! tools take part

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

#[allow(dead_code, reason = "targets that wait are other benchmarks'")]
mod race;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use race::{RaceCommand, compile, goal, race};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");
const ROUNDS: usize = 5;

const SQL: &str = "\
PRAGMA journal_mode=OFF;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, name TEXT, v REAL);
WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<1000000)
INSERT INTO t SELECT x, (x*7919)%1000003, 'name-'||((x*104729)%999983), x*0.5 FROM c;
CREATE INDEX tk ON t(k);
CREATE INDEX tn ON t(name);
SELECT count(*), sum(v) FROM (SELECT * FROM t ORDER BY name, k);
SELECT k%100, count(*), avg(v) FROM t GROUP BY 1 ORDER BY 2 LIMIT 3;
";

const PYTHON: &str = "\
import json, re
class Node:
    def __init__(self, k, left=None, right=None):
        self.k, self.left, self.right = k, left, right
def tree(d):
    return Node(d) if d == 0 else Node(d, tree(d-1), tree(d-1))
def count(n):
    return 1 + (count(n.left) + count(n.right) if n.left else 0)
total = 0
for r in range(3):
    total += count(tree(15))
    d = {f'key{i}': [i, str(i), {'x': i*1.5}] for i in range(40000)}
    s = json.dumps(d)
    e = json.loads(s)
    words = re.findall(r'key\\d+', s)
    total += len(set(words)) + sum(len(x) for x in (w.upper() for w in words)) + len(e)
    total += len(sorted((v[1], k) for k, v in d.items()))
print(total)
";

const PERL: &str = r#"
use strict;
sub tree { my $d = shift; return $d == 0 ? {k => 0} : {k => $d, l => tree($d - 1), r => tree($d - 1)} }
sub count { my $n = shift; return 1 + ($n->{l} ? count($n->{l}) + count($n->{r}) : 0) }
my $total = 0;
for my $r (1 .. 3) {
    $total += count(tree(14));
    my %h = map { ("key$_" => [$_, "x$_", {x => $_ * 1.5}]) } 0 .. 40000;
    my $s = join(",", map { "$_:$h{$_}[1]" } sort keys %h);
    my %c;
    $c{uc $_}++ for split /[,:]/, $s;
    $total += keys %c;
}
print "$total\n";
"#;

const NODE: &str = r#"
class Node { constructor(k, left, right) { this.k = k; this.left = left; this.right = right } }
const tree = d => d === 0 ? new Node(0) : new Node(d, tree(d - 1), tree(d - 1));
const count = n => 1 + (n.left ? count(n.left) + count(n.right) : 0);
let total = 0;
for (let r = 0; r < 6; r++) {
    total += count(tree(16));
    const d = {};
    for (let i = 0; i < 80000; i++) d['key' + i] = [i, '' + i, {x: i * 1.5}];
    const s = JSON.stringify(d);
    total += Object.keys(JSON.parse(s)).length + new Set(s.match(/key\d+/g)).size;
    const buffers = [];
    for (let i = 0; i < 20000; i++) buffers.push(Buffer.alloc(5000 + i % 100));
    total += buffers.length + require('zlib').gzipSync(s).length;
}
console.log(total);
"#;

const TEMPLATES: &str = r#"
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>
template<int N> struct F { static constexpr long v = F<N-1>::v + F<N-2>::v; };
template<> struct F<0> { static constexpr long v = 0; };
template<> struct F<1> { static constexpr long v = 1; };
template<std::size_t... I> auto seq(std::index_sequence<I...>) { return std::make_tuple(std::to_string(I)...); }
template<class T, int N> struct M {
    std::map<T, std::vector<M<T, N-1>>> m;
    void f() { for (auto& [k, v] : m) for (auto& x : v) x.f(); }
};
template<class T> struct M<T, 0> { void f() {} };
int main() {
    std::regex r("a(b|c)*d");
    std::smatch m;
    std::string s = "abcbcd";
    std::cout << std::regex_match(s, m, r) << F<80>::v << '\n';
    auto t = seq(std::make_index_sequence<60>{});
    std::cout << std::get<3>(t);
    M<int, 12> a; a.f();
    M<std::string, 12> b; b.f();
    M<long, 10> c; c.f();
    std::variant<int, std::string, double, std::vector<int>> v;
    v = "x";
    std::visit([](auto&& x) { std::cout << sizeof(x); }, v);
    std::unordered_map<std::string, std::function<int(int)>> u;
    u["a"] = [](int x) { return x + 1; };
    std::cout << u["a"](3);
    std::vector<std::pair<std::string, int>> w(10);
    std::sort(w.begin(), w.end(), [](auto& a, auto& b) { return a.second < b.second; });
}
"#;

/// A program, and the goals of pagewise: the maximum ratio of the program's time with every call
/// recorded, and with sampling, to the program's time alone.
struct Workload {
    name: &'static str,
    title: &'static str,
    line: String,
    every: f64,
    sampled: f64,
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let folder = std::env::temp_dir().join(format!("pagewise-bench-heap.{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the folder of temporary files takes one");
    let slow = std::env::var_os("PAGEWISE_BENCH_SLOW").is_some_and(|value| value == "1");
    for workload in workloads(&folder) {
        if wanted.is_empty() || wanted.iter().any(|name| name == workload.name) {
            run(&workload, &folder, slow);
        }
    }
    // If this fails, the files stay in the folder for temporary files.
    let _ = fs::remove_dir_all(&folder);
}

fn run(workload: &Workload, folder: &Path, slow: bool) {
    let at = |name: &str| folder.join(name).display().to_string();
    // Each runner is a shell command, since some commands redirect their streams.
    let with = |before: &str| format!("exec {}", workload.line.replace("{}", before));
    let (every, sampled) = (at("every.pwh"), at("sampled.pwh"));
    let mut runners = vec![
        RaceCommand::shell("alone", &with("")),
        RaceCommand::shell(
            "pagewise heap run",
            &with(&format!("{PAGEWISE} heap run -o {every} --")),
        ),
        RaceCommand::shell(
            "pagewise heap run --sample 512k",
            &with(&format!("{PAGEWISE} heap run --sample 512k -o {sampled} --")),
        ),
    ];
    // Other tools may fail at a workload: their exit status is ignored, and their time counts.
    let others = |before: &str| format!("{}; true", workload.line.replace("{}", before));
    let is_there = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    if is_there("heaptrack") {
        let heaptrack = format!("heaptrack -o {} ", at("heaptrack"));
        // heaptrack's analysis can use all memory, so that the page cache loses files of the
        // program. This unmeasured run reads the files again.
        let then = RaceCommand::shell("afterwards", &with(""));
        runners.push(RaceCommand::shell("heaptrack", &others(&heaptrack)).followed_by(then));
    }
    if slow && is_there("valgrind") {
        let massif = format!("valgrind --tool=massif --massif-out-file={}", at("massif"));
        runners.push(RaceCommand::shell("massif", &others(&massif)));
        runners.push(RaceCommand::shell("memcheck", &others("valgrind --leak-check=no")));
    }
    let rounds = if slow { 1 } else { ROUNDS };
    let results = race(workload.title, rounds, &runners);
    goal(&results, "pagewise heap run", workload.every, None);
    goal(&results, "pagewise heap run --sample 512k", workload.sampled, None);
    let size = |path: &str| fs::metadata(path).map_or(0, |file| file.len());
    println!("recordings: {} bytes, of samples {} bytes", size(&every), size(&sampled));
}

/// Returns the workloads whose programs are installed.
fn workloads(folder: &Path) -> Vec<Workload> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).expect("the folder takes files");
        path.display().to_string()
    };
    let (sql, python) = (write("race.sql", SQL), write("race.py", PYTHON));
    let slots = compile("slots").display().to_string();
    let mut all = Vec::new();
    if is_installed("sqlite3") {
        all.push(Workload {
            name: "sqlite",
            title: "sqlite3: insert, index and sort a million rows in memory",
            line: format!("{{}} sqlite3 :memory: < {sql}"),
            every: 1.15,
            sampled: 1.05,
        });
    }
    if let Some(program) = python3() {
        all.push(Workload {
            name: "python",
            title: "python3 with PYTHONMALLOC=malloc: trees, JSON, regular expressions",
            line: format!("env PYTHONMALLOC=malloc {{}} {program} {python}"),
            every: 1.3,
            sampled: 1.05,
        });
    }
    if let Some((compiler, source)) = templates(folder) {
        all.push(Workload {
            name: "cc1plus",
            title: "cc1plus -O1: templates",
            line: format!(
                "{{}} {compiler} -quiet -O1 -std=c++20 -fpreprocessed {source} -o /dev/null"
            ),
            every: 1.3,
            sampled: 1.05,
        });
    }
    let scripts = [
        ("perl", "perl: trees, hashes, strings", "race.pl", PERL),
        ("node", "node: trees, JSON, buffers", "race.js", NODE),
    ];
    for (name, title, file, text) in scripts.into_iter().filter(|(name, ..)| is_installed(name)) {
        let line = format!("{{}} {name} {}", write(file, text));
        all.push(Workload { name, title, line, every: 1.3, sampled: 1.05 });
    }
    all.push(Workload {
        name: "threads",
        title: "2 threads, 10M blocks each, 4,096 live, replaced at random, 64 stacks of 18 calls",
        line: format!("{{}} {slots} 10000000"),
        every: 2.5,
        sampled: 1.15,
    });
    all.push(Workload {
        name: "stacks",
        title: "the same from 32,768 stacks",
        line: format!("{{}} {slots} 10000000 32768"),
        every: 4.0,
        sampled: 1.15,
    });
    all
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Returns the path of the interpreter itself, not of a script that starts it.
fn python3() -> Option<String> {
    let told =
        Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().ok()?;
    let path = String::from_utf8(told.stdout).ok()?.trim().to_owned();
    (!path.is_empty() && !path.contains(' ')).then_some(path)
}

/// Returns the path of the compiler proper (cc1plus), and of a source that contains all its
/// headers.
fn templates(folder: &Path) -> Option<(String, String)> {
    let source = folder.join("race.cpp");
    fs::write(&source, TEMPLATES).ok()?;
    let told = Command::new("g++").arg("-print-prog-name=cc1plus").output().ok()?;
    let compiler = String::from_utf8(told.stdout).ok()?.trim().to_owned();
    let whole: PathBuf = folder.join("race.ii");
    let mut expand = Command::new("g++");
    expand.args(["-std=c++20", "-O1", "-E", "-o"]).arg(&whole).arg(&source);
    (Path::new(&compiler).is_file() && expand.status().ok()?.success())
        .then(|| (compiler, whole.display().to_string()))
}
