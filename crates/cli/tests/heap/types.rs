//! `heap scan --types`: blocks of known types in C, C++ and Rust programs, and functions of stack
//! frames, compared with gdb.

use crate::fixture;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use fixture::{json, number, pagewise, program, tool};
use pagewise_skip::{Lack, skip};
use serde_json::Value;

/// A program that waits for the end of its input, and the output that it printed before.
struct Waiting {
    child: Child,
    input: Option<ChildStdin>,
    printed: Vec<String>,
}

impl Waiting {
    fn start(command: &mut Command) -> Waiting {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "ready" {
                break;
            }
            printed.push(line);
        }
        let waits = |child: &Child| {
            let call = fs::read_to_string(format!("/proc/{}/syscall", child.id()));
            call.is_ok_and(|call| call.starts_with("0 "))
        };
        while !waits(&child) {
            std::thread::yield_now();
        }
        let input = child.stdin.take();
        Waiting { child, input, printed }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn scan(&self, more: &[&str]) -> Value {
        let pid = self.pid();
        let usual = ["heap", "scan", &pid, "--json", "--top", "all", "--max-pause", "1min"];
        json(&[&usual, more].concat())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of blocks by type.
fn types(report: &Value) -> BTreeMap<String, u64> {
    let rows = report["types"].as_array().unwrap().iter();
    rows.map(|row| (row["type"].as_str().unwrap().to_owned(), number(row, "blocks"))).collect()
}

/// Blocks of `typed.c` by type.
const TYPED: [(&str, u64); 6] = [
    // The list and the table.
    ("item", 150),
    // The slots of the table.
    ("item *[]", 1),
    ("name[]", 1),
    // The text of each item.
    ("char[]", 150),
    ("message", 1),
    ("packet", 10),
];

fn typed() -> BTreeMap<String, u64> {
    TYPED.iter().map(|&(name, blocks)| (name.to_owned(), blocks)).collect()
}

#[test]
fn blocks_have_the_types_that_pointers_of_variables_and_members_lead_to() {
    let target = Waiting::start(&mut Command::new(program("typed")));
    let report = target.scan(&["--types"]);
    assert_eq!(types(&report), typed(), "{:#}", report["types"]);
    // Neither the union, nor `void *`, nor the block with two contradicting pointers gives a type.
    assert_eq!(number(&report, "typed.contradicted"), 1);
    assert_eq!(number(&report, "typed.blocks"), TYPED.iter().map(|it| it.1).sum::<u64>());
}

#[test]
fn paths_name_types_and_members() {
    let target = Waiting::start(&mut Command::new(program("typed")));
    let report = target.scan(&["--types", "--why", &target.printed[0]]);
    let paths = report["why"]["paths"].as_array().unwrap();
    let path = paths.iter().find(|path| path["root"] == "typed.c: list (typed)");
    let path = path.unwrap_or_else(|| panic!("{paths:#?}"));
    let steps = path["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 3);
    assert!(steps.iter().all(|step| step["type"] == "item"), "{path:#}");
    assert_eq!(steps[0]["member"], Value::Null, "the variable is a pointer itself");
    assert_eq!(steps[1]["member"], "next");
    let report = target.scan(&["--types", "--retained"]);
    let rows = report["retained"].as_array().unwrap();
    let table = rows.iter().find(|row| row["root"] == "typed.c: table (typed)").unwrap();
    assert_eq!(table["path"][0]["member"], "slots", "{table:#}");
    assert_eq!(table["path"][0]["type"], "item *[]");
    assert_eq!(table["path"][1]["type"], "item");
}

#[test]
fn blocks_that_stacks_keep_are_under_their_function() {
    let target = Waiting::start(&mut Command::new(program("typed")));
    let report = target.scan(&["--retained"]);
    let rows = report["retained"].as_array().unwrap();
    let of = |function: &str| {
        let mut of = rows
            .iter()
            .filter(|row| row["kind"] == "stack" && row["frame"]["function"] == function);
        let row = of.next().unwrap_or_else(|| panic!("no {function} in {rows:#?}"));
        assert!(of.next().is_none(), "one frame is one root: {rows:#?}");
        (number(row, "blocks"), number(row, "bytes"), row["root"].as_str().unwrap().to_owned())
    };
    let (blocks, bytes, root) = of("inner");
    assert_eq!((blocks, bytes), (2, 2 * 1000));
    assert!(root.contains("inner at typed.c:"), "{root}");
    let (blocks, bytes, _) = of("outer");
    assert_eq!((blocks, bytes), (1, 2008));
}

/// Runs commands of gdb on a process, and returns the output.
fn gdb(pid: &str, commands: &[&str]) -> Option<String> {
    let mut args = vec!["-p", pid, "-batch", "-nx"];
    for command in commands {
        args.extend(["-ex", command]);
    }
    tool("gdb", &args)
}

#[test]
fn types_and_frames_are_those_of_gdb() {
    let target = Waiting::start(&mut Command::new(program("typed")));
    let report = target.scan(&["--types", "--retained"]);
    let row = |name: &str| {
        let rows = report["types"].as_array().unwrap();
        rows.iter().find(|row| row["type"] == name).unwrap().clone()
    };
    let sizes = ["item", "message", "name"].map(|it| format!("print sizeof(struct {it})"));
    let mut commands: Vec<&str> = sizes.iter().map(String::as_str).collect();
    commands.extend(["whatis *list", "whatis *table.slots", "bt"]);
    let Some(text) = gdb(&target.pid(), &commands) else { return };
    let sizes: Vec<u64> =
        text.lines().filter_map(|line| line.split_once(" = ")?.1.trim().parse().ok()).collect();
    let per_block = |name: &str| number(&row(name), "bytes") / number(&row(name), "blocks");
    for (name, size) in [("item", sizes[0]), ("message", sizes[1]), ("name[]", 30 * sizes[2])] {
        // The usable size of a block is 8 more than a multiple of 16.
        assert!((size..size + 16).contains(&per_block(name)), "{name}: {text}");
    }
    assert!(text.contains("type = struct item\n"), "{text}");
    // #2  0x... in outer () at .../typed.c:107
    for function in ["inner", "outer"] {
        let line = text.lines().find(|line| line.contains(&format!(" {function} ("))).unwrap();
        let depth = line.trim_start_matches('#').split(' ').next().unwrap();
        let place = line.rsplit('/').next().unwrap();
        let rows = report["retained"].as_array().unwrap();
        let frame = rows.iter().find(|row| row["frame"]["function"] == function).unwrap();
        assert_eq!(frame["frame"]["depth"].to_string(), depth, "{text}");
        let root = frame["root"].as_str().unwrap();
        assert!(root.ends_with(&format!("{function} at {place}")), "{root}: {line}");
    }
}

/// Compiles a source, or skips the test.
fn compiled(compiler: &'static str, flags: &[&str], source: &Path, to: &Path) -> bool {
    let output = Command::new(compiler).args(flags).arg(source).arg("-o").arg(to).output();
    let Ok(output) = output else {
        skip(&Lack::Tool(compiler));
        return false;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}

const CLASSES: &str = r#"
#include <cstdio>
#include <memory>
#include <unistd.h>
#include <vector>

namespace shop {
struct Price { long cents; long *history; };
class Product {
public:
    virtual ~Product() = default;
    Price *price = new Price();
};
class Book : public Product {
public:
    ~Book() override = default;
    char pages[200] = {};
};
struct Shelf { std::vector<Price> prices; std::unique_ptr<Price> best; Product *sample = nullptr; };
}

static shop::Shelf *shelf;

int main() {
    shelf = new shop::Shelf();
    shelf->prices.reserve(100);
    for (int at = 0; at < 100; at++) shelf->prices.push_back({at, nullptr});
    shelf->best = std::make_unique<shop::Price>();
    shelf->sample = new shop::Book();
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
"#;

#[test]
fn classes_and_templates_of_cpp_lead_to_types() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("shop.cpp"), folder.path().join("shop"));
    fs::write(&source, CLASSES).unwrap();
    if !compiled("c++", &["-O1", "-g"], &source, &program) {
        return;
    }
    let target = Waiting::start(&mut Command::new(&program));
    let report = target.scan(&["--types"]);
    let types = types(&report);
    let of = |name: &str| types.get(name).copied();
    assert_eq!(of("Shelf"), Some(1), "{types:?}");
    assert_eq!(of("Price[]"), Some(1), "the vector: {types:?}");
    assert_eq!(of("Price"), Some(2), "of the unique_ptr and of the book: {types:?}");
    // A pointer to the base class does not change the class that the object has.
    assert_eq!(of("shop::Book"), Some(1), "{types:?}");
    let rows = report["types"].as_array().unwrap();
    let book = rows.iter().find(|row| row["type"] == "shop::Book").unwrap();
    assert_eq!(book["evidence"], "class_table");
}

/// Lists in thread-local variables, of the program and of a library.
const THREAD_LOCAL: &str = r#"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct NAME { struct NAME *next; long value[SIZE]; };
static long first = 1;
static __thread long before[5] = {1};
static __thread struct NAME *own;

void FUNCTION(int count) {
    before[0] += first;
    for (int at = 0; at < count; at++) {
        struct NAME *made = calloc(1, sizeof *made);
        made->next = own;
        own = made;
    }
}

#ifdef PROGRAM
/* Without `free`, a static program has another malloc of musl. */
static void *volatile freed;
static pthread_barrier_t made;
#ifndef ALONE
void keep_started(int count);
void keep_near(int count);
static void (*keep_opened)(int count);
#endif

static void keep_all(int count) {
    FUNCTION(count);
#ifndef ALONE
    keep_started(count);
    keep_near(count);
    keep_opened(count);
#endif
}

static void *thread(void *unused) {
    keep_all(20);
    pthread_barrier_wait(&made);
    for (;;)
        pause();
    return unused;
}

static void *idle_thread(void *unused) {
    for (;;)
        pause();
    return unused;
}

int main(int count, char **arguments) {
#ifndef ALONE
    void *library = dlopen(arguments[count - 1], RTLD_NOW);
    if (!library) {
        puts(dlerror());
        return 1;
    }
    keep_opened = (void (*)(int))dlsym(library, "keep_opened");
#endif
    pthread_t other, idle;
    freed = malloc(10);
    free(freed);
    pthread_barrier_init(&made, NULL, 2);
    pthread_create(&idle, NULL, idle_thread, NULL);
    pthread_create(&other, NULL, thread, NULL);
    keep_all(10);
    pthread_barrier_wait(&made);
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
#endif
"#;

/// The program with three libraries: one that the program is linked with, one whose variables are
/// at fixed distances from the thread pointer, and one that the program loads.
struct ThreadLocalProgram {
    folder: tempfile::TempDir,
}

impl ThreadLocalProgram {
    const NAMES: [&str; 4] = ["item", "started", "near", "opened"];

    fn build(compiler: &'static str) -> Option<ThreadLocalProgram> {
        let folder = tempfile::tempdir().unwrap();
        let program = ThreadLocalProgram { folder };
        fs::write(program.file("source.c"), THREAD_LOCAL).unwrap();
        for (name, size) in ThreadLocalProgram::NAMES.iter().zip(["3", "7", "11", "15"]).skip(1) {
            let model = if *name == "near" { "initial-exec" } else { "global-dynamic" };
            let flags = ["-shared", "-fPIC", &format!("-ftls-model={model}")];
            program.compile(compiler, name, size, &flags, &format!("lib{name}.so"))?;
        }
        let search = format!("-L{}", program.folder.path().display());
        let run = format!("-Wl,-rpath,{}", program.folder.path().display());
        let libraries = ["-Wl,--no-as-needed", "-lstarted", "-lnear", "-ldl"];
        let flags = [&["-DPROGRAM", "-pthread", &search, &run][..], &libraries].concat();
        program.compile(compiler, "item", "3", &flags, "program")?;
        Some(program)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn compile(
        &self,
        compiler: &'static str,
        name: &str,
        size: &str,
        flags: &[&str],
        to: &str,
    ) -> Option<()> {
        let defined =
            [format!("-DNAME={name}"), format!("-DSIZE={size}"), format!("-DFUNCTION=keep_{name}")];
        let defined = defined.iter().map(String::as_str);
        let flags: Vec<&str> = ["-O1", "-g", "-Wl,--build-id"]
            .into_iter()
            .chain(defined)
            .chain(flags.iter().copied())
            .collect();
        compiled(compiler, &flags, &self.file("source.c"), &self.file(to)).then_some(())
    }

    fn start(&self) -> Waiting {
        Waiting::start(Command::new(self.file("program")).arg(self.file("libopened.so")))
    }

    /// Asserts that each list of both threads has types.
    fn assert_types(report: &Value) {
        let types = types(report);
        for name in ThreadLocalProgram::NAMES {
            assert_eq!(types.get(name), Some(&30), "{name}: {types:?} {}", report["types_lack"]);
        }
    }
}

#[test]
fn thread_local_variables_of_programs_and_libraries_lead_to_types() {
    for compiler in ["cc", "clang", "musl-gcc"] {
        let Some(program) = ThreadLocalProgram::build(compiler) else { continue };
        let target = program.start();
        ThreadLocalProgram::assert_types(&target.scan(&["--types"]));
        let report = target.scan(&["--types", "--retained"]);
        ThreadLocalProgram::assert_types(&report);
        let rows = report["retained"].as_array().unwrap();
        let own = rows.iter().filter(|row| row["root"].as_str().unwrap().contains("own"));
        assert!(own.count() >= 2, "{compiler}: {rows:#?}");
    }
}

#[test]
fn thread_local_variables_in_a_core_file_lead_to_types() {
    let Some(program) = ThreadLocalProgram::build("cc") else { return };
    let target = program.start();
    let core = program.file("core");
    let pid = target.pid();
    if tool("gcore", &["-o", core.to_str().unwrap(), &pid]).is_none() {
        return;
    }
    let core = format!("{}.{pid}", core.display());
    let report = json(&["heap", "scan", "--core", &core, "--types", "--json", "--top", "all"]);
    ThreadLocalProgram::assert_types(&report);
}

#[test]
fn thread_local_variables_of_a_static_program_lead_to_types() {
    for (compiler, link) in [("cc", "-static"), ("cc", "-static-pie"), ("musl-gcc", "-static")] {
        let folder = tempfile::tempdir().unwrap();
        let program = ThreadLocalProgram { folder };
        fs::write(program.file("source.c"), THREAD_LOCAL).unwrap();
        let flags = ["-DPROGRAM", "-DALONE", "-pthread", link];
        if program.compile(compiler, "item", "3", &flags, "program").is_none() {
            continue;
        }
        let target = Waiting::start(&mut Command::new(program.file("program")));
        let types = types(&target.scan(&["--types"]));
        assert_eq!(types.get("item"), Some(&30), "{compiler} {link}: {types:?}");
    }
}

/// Lists that only local variables and parameters lead to.
const LOCAL: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct item { struct item *next; long value[3]; };
struct other { struct other *left, *right; long value[6]; };
struct message { struct message *answer; char text[200]; };
struct known { struct known *next; long value[12]; };

static struct known *known;
static pthread_barrier_t made;

static void wait_for_end(int is_first) {
    char byte;
    if (!is_first)
        pthread_barrier_wait(&made);
    for (; !is_first;)
        pause();
    pthread_barrier_wait(&made);
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
}

static struct other *tree(int depth) {
    struct other *made = calloc(1, sizeof *made);
    if (depth > 0) {
        made->left = tree(depth - 1);
        made->right = tree(depth - 1);
    }
    return made;
}

static void inner(struct other *given, int is_first) {
    struct { struct message *messages[2]; int count; } kept = {{0}, 0};
    /* As a variable that is not set yet would have it. */
    struct item *wrong = (struct item *)known;
    for (int at = 0; at < 2; at++) {
        kept.messages[at] = calloc(1, sizeof(struct message));
        kept.messages[at]->answer = calloc(1, sizeof(struct message));
    }
    wait_for_end(is_first);
    given->left = (void *)(kept.messages[0] ? wrong : NULL);
}

static void outer(int is_first) {
    for (int at = 0; at < 1; at++) {
        struct item *list = NULL;
        for (int count = 0; count < 5; count++) {
            struct item *made = calloc(1, sizeof *made);
            made->next = list;
            list = made;
        }
        inner(tree(2), is_first);
        list->value[0] = 1;
    }
}

static void *thread(void *unused) {
    outer(0);
    return unused;
}

int main(void) {
    pthread_t other;
    known = calloc(1, sizeof *known);
    known->next = calloc(1, sizeof *known);
    pthread_barrier_init(&made, NULL, 2);
    pthread_create(&other, NULL, thread, NULL);
    outer(1);
    return 0;
}
"#;

#[test]
fn local_variables_of_stopped_threads_lead_to_types() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("local.c"), folder.path().join("local"));
    fs::write(&source, LOCAL).unwrap();
    for compiler in ["cc", "clang"] {
        if !compiled(compiler, &["-O0", "-g", "-pthread"], &source, &program) {
            continue;
        }
        let target = Waiting::start(&mut Command::new(&program));
        let report = target.scan(&["--types"]);
        let types = types(&report);
        let of = |name: &str| types.get(name).copied();
        assert_eq!(of("item"), Some(10), "{compiler}: {types:?}");
        assert_eq!(of("other"), Some(14), "{compiler}, a parameter: {types:?}");
        assert_eq!(of("message"), Some(8), "{compiler}, a structure on the stack: {types:?}");
        // A local variable of another type contradicts no global one.
        assert_eq!(of("known"), Some(2), "{compiler}: {types:?}");
        assert_eq!(number(&report, "typed.contradicted"), 0, "{compiler}");
    }
}

const CRATES: &str = r#"
use std::io::Read;
use std::sync::{Arc, OnceLock};

pub struct Entry { pub key: u64, pub value: u64, pub flag: u16 }
pub struct Node { pub next: Option<Box<Node>>, pub value: [u64; 8] }
pub struct State { pub entries: Vec<Entry>, pub list: Box<Node>, pub own: Arc<Shared> }
pub struct Shared { pub words: [u64; 40] }

static mut STATE: *const State = std::ptr::null();

fn main() {
    let node = |next| Box::new(Node { next, value: [0; 8] });
    let list = (0..19).fold(node(None), |list, _| node(Some(list)));
    let entries: Vec<Entry> = (0..1000).map(|key| Entry { key, value: 0, flag: 0 }).collect();
    let own = Arc::new(Shared { words: [0; 40] });
    let state = Box::new(State { entries, list, own });
    unsafe { STATE = Box::into_raw(state) };
    println!("ready");
    let mut all = Vec::new();
    std::io::stdin().read_to_end(&mut all).unwrap();
    let state = unsafe { &*STATE };
    std::process::exit(state.entries.len() as i32 + state.own.words[0] as i32);
}
"#;

#[test]
fn boxes_vectors_and_counted_pointers_of_rust_lead_to_types() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("owner.rs"), folder.path().join("owner"));
    fs::write(&source, CRATES).unwrap();
    if !compiled("rustc", &["-g", "--edition", "2021"], &source, &program) {
        return;
    }
    let target = Waiting::start(&mut Command::new(&program));
    let report = target.scan(&["--types"]);
    let types = types(&report);
    let of = |name: &str| types.get(name).copied();
    assert_eq!(of("State"), Some(1), "{types:?}");
    assert_eq!(of("Node"), Some(20), "{types:?}");
    assert_eq!(of("Entry[]"), Some(1), "{types:?}");
    let shared = types.keys().filter(|name| name.starts_with("ArcInner<"));
    assert_eq!(shared.count(), 1, "{types:?}");
}

/// Returns `typed` without its debug information, which goes to a separate file.
fn stripped(folder: &Path) -> Option<PathBuf> {
    let (whole, debug) = (program("typed"), folder.join("typed.debug"));
    let path = folder.join("typed");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    tool("objcopy", &["--only-keep-debug", &text(&whole), &text(&debug)])?;
    tool("objcopy", &["--strip-all", &text(&whole), &text(&path)])?;
    Some(path)
}

#[test]
fn a_stripped_program_has_no_types_and_the_report_says_why() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let Some(path) = stripped(folder.path()) else { return };
    fs::remove_file(folder.path().join("typed.debug")).unwrap();
    let target = Waiting::start(&mut Command::new(&path));
    let report = target.scan(&["--types"]);
    assert_eq!(types(&report), BTreeMap::new());
    let lacks = report["types_lack"].as_array().unwrap();
    let own = lacks.iter().find(|row| row["file"] == path.to_str().unwrap()).unwrap();
    assert_eq!(own["why"], "no debug information: install it, or build with -g");
    let text = pagewise(&["heap", "scan", &target.pid(), "--types", "--max-pause", "1min"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("no debug information: install it, or build with -g"), "{text}");
}

#[test]
fn a_separate_debug_file_gives_types_and_names() {
    let folder = tempfile::tempdir_in(fixture::disk()).unwrap();
    let Some(path) = stripped(folder.path()) else { return };
    let debug = folder.path().join("typed.debug");
    let link = format!("--add-gnu-debuglink={}", debug.to_str().unwrap());
    if tool("objcopy", &[&link, path.to_str().unwrap()]).is_none() {
        return;
    }
    let target = Waiting::start(&mut Command::new(&path));
    let report = target.scan(&["--types", "--retained"]);
    assert_eq!(types(&report), typed());
    let rows = report["retained"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["root"] == "typed.c: list (typed)"), "{rows:#?}");
}

#[test]
fn a_core_file_has_types_and_functions() {
    let Some((core, _folder)) = fixture::core_file("typed", "abort") else { return };
    let core = core.to_str().unwrap();
    let report = json(&["heap", "scan", "--core", core, "--types", "--retained", "--json"]);
    assert_eq!(types(&report), typed(), "{:#}", report["types_lack"]);
    let rows = report["retained"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["root"] == "typed.c: list (typed)"), "{rows:#?}");
}
