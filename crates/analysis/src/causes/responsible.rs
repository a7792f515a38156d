//! The function of a call stack that is responsible for an event: not the allocator, the C library
//! or a container that acts for its caller.

use pagewise_model::traced::Frame;

use crate::heap::frames::passes_on;

/// Beginnings of the file names of libraries that act for their callers.
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

/// Beginnings of the names of functions that act for their callers: containers of C++ and Rust,
/// and functions of allocators and of the C library in statically linked programs.
const FUNCTIONS: &[&str] = &[
    "std::",
    "core::",
    "alloc::",
    "hashbrown::",
    "<alloc::",
    "<core::",
    "<std::",
    "__gnu_cxx::",
    "void std::",
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

/// Names that begin as one of [`FUNCTIONS`] and only act for their callers if they are complete.
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

/// True for a function that acts for its caller. It is only responsible if the callers are unknown.
pub(super) fn acts_for_its_caller(frame: &Frame) -> bool {
    let is_function = frame.function.as_deref().is_some_and(|name| {
        let is_plain = |beginning: &str| {
            ["mem", "str", "malloc", "free"].contains(&beginning) && !EXACT.contains(&name)
        };
        // Go wraps the call of a `go` statement in a function of its own.
        name.contains(".gowrap") || FUNCTIONS.iter().any(|it| name.starts_with(it) && !is_plain(it))
    });
    is_of_library(frame) || is_function || passes_on(frame) || is_inlined_helper(frame)
}

fn is_of_library(frame: &Frame) -> bool {
    frame.module.as_ref().is_some_and(|module| {
        LIBRARIES.iter().any(|library| module.base().starts_with(library.as_bytes()))
    })
}

/// Endings of the names of header files.
const HEADERS: &[&str] = &[".h", ".hh", ".hpp", ".hxx", ".inl", ".tcc"];

/// True if a function of a header file was inlined: the caller chose it, and many callers have it.
fn is_inlined_helper(frame: &Frame) -> bool {
    let file = frame.line.as_ref().map(|line| line.file.as_str());
    let is_header = |file: &str| HEADERS.iter().any(|ending| file.ends_with(ending));
    frame.inlined && file.is_some_and(is_header)
}

/// The innermost function of a call stack that does not act for its caller. If all do, as in a
/// stack that was recorded in part, the function by which the innermost library was called.
pub(super) fn responsible<'a>(stack: &[&'a Frame]) -> Option<&'a Frame> {
    let innermost = *stack.first()?;
    let within =
        stack.iter().take_while(|frame| is_of_library(frame) && frame.module == innermost.module);
    let entry = within.filter(|frame| frame.function.is_some()).last();
    stack.iter().find(|frame| !acts_for_its_caller(frame)).or(entry).copied().or(Some(innermost))
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
    fn an_inlined_function_of_a_header_is_not_responsible() {
        let at = |file: &str| Some(SourcePosition { file: file.to_owned(), number: 7 });
        let helper = Frame { inlined: true, line: at("pool.h"), ..frame("map_slab", "/app") };
        let caller = Frame { line: at("tiles.c"), ..frame("load_tile", "/app") };
        let found = responsible(&[&helper, &caller]).unwrap();
        assert_eq!(found.function.as_deref(), Some("load_tile"));
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
