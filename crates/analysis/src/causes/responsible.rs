//! The function of a call stack that is responsible for an event. Functions that act for their
//! callers, such as those of the allocator, the C library and containers, are not responsible.

use pagewise_model::traced::Frame;

use crate::heap::frames::passes_on;

/// Prefixes of the file names of libraries that act for their callers.
const LIBRARIES: &[&str] = &[
    "libc.so",
    "libc-",
    "libc.musl",
    "ld-linux",
    "ld-musl",
    "libpthread",
    "libstdc++",
    "libc++",
    "libgcc_s",
    "libm.so",
    "libm-",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
    "libpagewise",
    "[vdso]",
];

/// Prefixes of the file names of libraries that call C functions for an interpreter, as ctypes of
/// Python does. The callers are functions of the interpreter, so that the called C function
/// identifies the event better.
const FORWARDERS: &[&str] = &["libffi"];

/// Parts of the paths of source files of standard libraries. A path is where a package installs the
/// file, or where the file was when the library was built, according to its debug information.
const LIBRARY_SOURCES: &[&str] = &[
    "/usr/include/c++/",
    "/include/c++/v1/",
    "/libstdc++-v3/",
    "/rustlib/src/rust/library/",
    "/rust/deps/",
    "/usr/local/go/src/",
    "/usr/lib/go/src/",
    "/usr/lib/go-1.",
    "/usr/share/go-1.",
];

/// Prefixes of the names of functions that act for their callers: containers of C++ and Rust, and
/// functions of allocators and of the C library in statically linked programs.
const FUNCTIONS: &[&str] = &[
    "std::",
    "core::",
    "alloc::",
    "hashbrown::",
    "<alloc::",
    "<core::",
    "<std::",
    "__gnu_cxx::",
    "mem",
    "__mem",
    "str",
    "__str",
    "_int_malloc",
    "_int_free",
    "_int_realloc",
    "sysmalloc",
    "systrim",
    "malloc",
    "free",
    "__libc_",
    "_je_",
    "je_",
    "mi_",
    "_mi_",
    "tc_",
    // Go.
    "runtime.",
    "runtime/",
    "internal/",
    "syscall.",
    "os.(",
    "golang.org/x/sys/",
];

/// Exact names of functions that act for their callers. They begin with a short prefix of
/// [`FUNCTIONS`], such as `mem`, which names of the program's functions can also begin with.
const EXACT: &[&str] = &[
    "memcpy",
    "memmove",
    "memset",
    "mempcpy",
    "memccpy",
    "strcpy",
    "strncpy",
    "strcat",
    "strdup",
    "strndup",
    "stpcpy",
    "malloc",
    "free",
    "malloc_consolidate",
    "malloc_trim",
];

/// True for a function that acts for its caller. Such a function is responsible only if its callers
/// are unknown.
pub(super) fn acts_for_its_caller(frame: &Frame) -> bool {
    let is_function = frame.function.as_deref().is_some_and(|name| {
        let is_plain = |beginning: &str| {
            ["mem", "str", "malloc", "free"].contains(&beginning) && !EXACT.contains(&name)
        };
        let own_name = without_result_type(name);
        // Go wraps the call of a `go` statement in a generated function.
        name.contains(".gowrap")
            || FUNCTIONS.iter().any(|it| own_name.starts_with(it) && !is_plain(it))
    });
    is_of_library(frame)
        || is_function
        || passes_on(frame)
        || is_inlined_helper(frame)
        || is_of_library_source(frame)
}

/// True for a function whose source file belongs to a standard library. Only the source file
/// identifies an instance of a generic function of a library: its code is in the program's file,
/// and its name contains types of the program.
fn is_of_library_source(frame: &Frame) -> bool {
    frame.line.as_ref().is_some_and(|line| {
        LIBRARY_SOURCES.iter().any(|part| line.file.contains(part))
            || line.file.starts_with("/rustc/") && line.file.contains("/library/")
    })
}

/// Returns the name of a function without the type of its result. The names of instances of C++
/// function templates begin with this type: `void std::fill<int*>(int*, int*)`.
fn without_result_type(name: &str) -> &str {
    if name.starts_with('<') {
        return name;
    }
    let (mut depth, mut begin) = (0_u32, 0);
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'(' if depth == 0 && !is_type_part(&name[begin..at]) => break,
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' | b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b' ' if depth == 0 && !name[begin..at].ends_with("operator") => begin = at + 1,
            _ => {}
        }
    }
    let own = &name[begin..];
    if own.is_empty() { name } else { own }
}

/// True for a word before a parenthesis that is part of a type, not the name of a function.
fn is_type_part(word: &str) -> bool {
    ["decltype", "", "auto", "noexcept"].contains(&word)
}

fn is_of_library(frame: &Frame) -> bool {
    is_of(frame, LIBRARIES)
}

fn is_of(frame: &Frame, libraries: &[&str]) -> bool {
    frame.module.as_ref().is_some_and(|module| {
        libraries.iter().any(|library| module.base().starts_with(library.as_bytes()))
    })
}

/// Suffixes of the names of header files.
const HEADERS: &[&str] = &[".h", ".hh", ".hpp", ".hxx", ".inl", ".tcc"];

/// True if a function of a header file was inlined: such a helper has many callers, so the caller
/// is responsible.
fn is_inlined_helper(frame: &Frame) -> bool {
    let file = frame.line.as_ref().map(|line| line.file.as_str());
    let is_header = |file: &str| HEADERS.iter().any(|ending| file.ends_with(ending));
    frame.inlined && file.is_some_and(is_header)
}

/// Returns the innermost function of a call stack that does not act for its caller. If all
/// functions act for their callers, as in an incomplete stack, returns the function through which
/// the innermost library was called.
pub(super) fn responsible<'a>(stack: &[&'a Frame]) -> Option<&'a Frame> {
    let innermost = *stack.first()?;
    let within =
        stack.iter().take_while(|frame| is_of_library(frame) && frame.module == innermost.module);
    let entry = within.filter(|frame| frame.function.is_some()).last();
    let own = stack.iter().position(|frame| !acts_for_its_caller(frame));
    let called = own.filter(|at| is_of(stack[*at], FORWARDERS)).and(entry);
    called.or(own.map(|at| &stack[at])).or(entry).copied().or(Some(innermost))
}

#[cfg(test)]
mod tests {
    use pagewise_model::traced::SourcePosition;

    use super::*;

    fn frame(function: &str, module: &str) -> Frame {
        Frame {
            function: Some(function.to_owned()),
            module: Some(module.into()),
            offset: 0,
            line: None,
            inlined: false,
        }
    }

    #[test]
    fn allocators_and_containers_are_not_responsible() {
        let frames = [
            frame("__memset_avx2_unaligned_erms", "/lib/libc.so.6"),
            frame("std::vector<int>::push_back(int const&)", "/app"),
            frame("remember", "/app"),
            frame("main", "/app"),
        ];
        let stack: Vec<&Frame> = frames.iter().collect();
        assert_eq!(responsible(&stack).unwrap().function.as_deref(), Some("remember"));
    }

    #[test]
    fn the_called_function_of_a_library_is_responsible_if_its_caller_is_unknown() {
        let libc = "/lib/libc.so.6";
        let unknown = Frame { function: None, ..frame("", libc) };
        let names = ["sysmalloc", "_int_malloc", "malloc", "gaih_inet", "getaddrinfo"];
        let frames: Vec<Frame> = names.iter().map(|name| frame(name, libc)).collect();
        let stack: Vec<&Frame> = frames.iter().chain([&unknown]).collect();
        assert_eq!(responsible(&stack).unwrap().function.as_deref(), Some("getaddrinfo"));
        assert_eq!(responsible(&[&unknown]), Some(&unknown));
        assert_eq!(responsible(&[]), None);
    }

    #[test]
    fn a_function_that_an_interpreter_calls_by_a_library_is_responsible() {
        let libc = "/lib/libc.so.6";
        let frames = [
            frame("_int_malloc", libc),
            frame("malloc", libc),
            frame("strndup", libc),
            frame("ffi_call_unix64", "/lib/libffi.so.8.1.2"),
            frame("_PyEval_EvalFrameDefault", "/usr/bin/python3.11"),
        ];
        let stack: Vec<&Frame> = frames.iter().collect();
        assert_eq!(responsible(&stack).unwrap().function.as_deref(), Some("strndup"));
        let own = [frame("convert", "/app/convert.so")];
        let stack: Vec<&Frame> = own.iter().chain(&frames[3..]).collect();
        assert_eq!(responsible(&stack).unwrap().function.as_deref(), Some("convert"));
    }

    #[test]
    fn an_inlined_function_of_a_header_is_not_responsible() {
        let at = |file: &str| Some(SourcePosition { file: file.to_owned(), number: 7 });
        let helper = Frame { inlined: true, line: at("pool.h"), ..frame("map_slab", "/app") };
        let caller = Frame { line: at("tiles.c"), ..frame("load_tile", "/app") };
        let found = responsible(&[&helper, &caller]).unwrap();
        assert_eq!(found.function.as_deref(), Some("load_tile"));
    }

    #[test]
    fn instances_of_templates_of_a_standard_library_are_not_responsible() {
        for name in [
            "decltype(auto) std::apply<short* f<a (b)>(int)::{lambda(auto:1&&)#1}>(std::tuple<int>&&)",
            "decltype (::new ((void*)(0)) short(((declval<short const&>)())...)) std::construct_at<short>(short*)",
            "short* std::__uninitialized_fill_n_a<short*, unsigned long>(short*, unsigned long)",
            "void std::pmr::polymorphic_allocator<app::Cell>::construct<app::Cell>(app::Cell*)",
        ] {
            assert!(acts_for_its_caller(&frame(name, "/app")), "{name}");
        }
        for name in [
            "void app::fill<std::vector<int> >(std::vector<int>&)",
            "std_like(std::string)",
            "operator new_row(std::string)",
            "app::Table::operator std::string() const",
            "<app::Store as std::io::Write>::write",
        ] {
            assert!(!acts_for_its_caller(&frame(name, "/app")), "{name}");
        }
    }

    #[test]
    fn instances_of_generic_functions_are_those_of_the_file_that_defines_them() {
        let at = |file: &str| Some(SourcePosition { file: file.to_owned(), number: 7 });
        let name = "<T as alloc::vec::spec_from_elem::SpecFromElem>::from_elem";
        let library = "/rustc/59807616e1/library/alloc/src/vec/spec_from_elem.rs";
        let frames = [
            Frame { line: at(library), ..frame(name, "/app") },
            Frame { line: at("src/poll.rs"), ..frame("sensors::poll_sensor", "/app") },
        ];
        let stack: Vec<&Frame> = frames.iter().collect();
        let found = responsible(&stack).unwrap();
        assert_eq!(found.function.as_deref(), Some("sensors::poll_sensor"));
        let own = Frame { line: at("/srv/rustc/library/poll.rs"), ..frame("poll", "/app") };
        assert!(!acts_for_its_caller(&own));
    }

    #[test]
    fn a_name_that_only_begins_as_a_library_function_is_responsible() {
        for name in ["memory_pool_grow", "free_list_push", "stretch", "malloc_wrapper_of_app"] {
            let frames = [frame(name, "/app"), frame("main", "/app")];
            let stack: Vec<&Frame> = frames.iter().collect();
            assert_eq!(responsible(&stack).unwrap().function.as_deref(), Some(name));
        }
    }
}
