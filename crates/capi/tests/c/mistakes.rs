//! Memory errors in the use of pools, each of which a program of `ctests/mistakes` makes. valgrind
//! and `AddressSanitizer` must report them.

use std::collections::BTreeMap;
use std::process::Command;

use crate::build::{C, CLinkage, SANITIZED, api, compile, environment, has, text, under_valgrind};

/// A memory error: the program, its argument, and the texts that each checker must print.
struct Mistake {
    program: &'static str,
    does: &'static str,
    /// Texts that valgrind prints, in this order.
    valgrind: &'static [&'static str],
    /// Texts that `AddressSanitizer` prints; empty if it cannot detect the error.
    asan: &'static [&'static str],
}

/// Memory errors; the report of a checker contains all texts of an error, in this order.
const MISTAKES: &[Mistake] = &[
    Mistake {
        program: "stack.c",
        does: "past the end",
        valgrind: &[
            "Invalid write of size 1",
            "writes_past_the_end",
            "0 bytes after a block of size 10",
            "t_allocated_here",
        ],
        asan: &["use-after-poison", "writes_past_the_end"],
    },
    Mistake {
        program: "stack.c",
        does: "before the start",
        valgrind: &[
            "Invalid write of size 1",
            "writes_before_the_start",
            "1 bytes before a block of size 10",
            "t_allocated_here",
        ],
        asan: &["use-after-poison", "writes_before_the_start"],
    },
    Mistake {
        program: "stack.c",
        does: "after pop",
        valgrind: &[
            "Invalid write of size 1",
            "uses_what_was_popped",
            "3 bytes inside a block of size 10 free'd",
            "popped_here",
            "Block was alloc'd at",
            "t_allocated_here",
        ],
        asan: &["use-after-poison", "uses_what_was_popped"],
    },
    Mistake {
        program: "stack.c",
        does: "after it moved",
        valgrind: &[
            "Invalid write of size 1",
            "uses_what_was_moved",
            "0 bytes inside a block of size 10 free'd",
            "pw_stack_realloc",
        ],
        asan: &["use-after-poison", "uses_what_was_moved"],
    },
    Mistake {
        program: "stack.c",
        does: "undefined",
        valgrind: &["depends on uninitialised value", "reads_what_was_not_written"],
        asan: &[],
    },
    Mistake {
        program: "fifo.c",
        does: "past the end",
        valgrind: &[
            "Invalid write of size 1",
            "writes_past_the_end",
            "0 bytes after a block of size 10",
            "allocated_here",
        ],
        asan: &["use-after-poison", "writes_past_the_end"],
    },
    Mistake {
        program: "fifo.c",
        does: "before the start",
        valgrind: &[
            "Invalid write of size 1",
            "writes_before_the_start",
            "1 bytes before a block of size 10",
            "allocated_here",
        ],
        asan: &["use-after-poison", "writes_before_the_start"],
    },
    Mistake {
        program: "fifo.c",
        does: "after free",
        valgrind: &[
            "Invalid write of size 1",
            "uses_what_was_freed",
            "3 bytes inside a block of size 10 free'd",
            "freed_here",
            "Block was alloc'd at",
            "allocated_here",
        ],
        asan: &["use-after-poison", "uses_what_was_freed"],
    },
    Mistake {
        program: "fifo.c",
        does: "lost",
        valgrind: &["1,000 bytes in 1 blocks are definitely lost", "allocated_here"],
        asan: &[],
    },
    Mistake {
        program: "fifo.c",
        does: "undefined",
        valgrind: &["depends on uninitialised value", "reads_what_was_not_written"],
        asan: &[],
    },
    Mistake {
        program: "ring.c",
        does: "past the end",
        valgrind: &[
            "Invalid write of size 1",
            "writes_past_the_end",
            "0 bytes after a block of size 10",
            "allocated_here",
        ],
        asan: &["use-after-poison", "writes_past_the_end"],
    },
    Mistake {
        program: "ring.c",
        does: "after release",
        valgrind: &[
            "Invalid write of size 1",
            "uses_what_was_released",
            "3 bytes inside a block of size 10 free'd",
            "released_here",
            "Block was alloc'd at",
            "allocated_here",
        ],
        asan: &["use-after-poison", "uses_what_was_released"],
    },
    Mistake {
        program: "ring.c",
        does: "undefined",
        valgrind: &["depends on uninitialised value", "reads_what_was_not_written"],
        asan: &[],
    },
    Mistake {
        program: "persistent.c",
        does: "overflow",
        valgrind: &[
            "Invalid write of size 1",
            "main (persistent.c:23)",
            "4 bytes after a block of size 100 client-defined",
            "main (persistent.c:19)",
        ],
        asan: &["use-after-poison", "in main", "persistent.c:23"],
    },
    Mistake {
        program: "persistent.c",
        does: "use after free",
        valgrind: &[
            "Invalid write of size 1",
            "main (persistent.c:27)",
            "0 bytes inside a block of size 100",
            "main (persistent.c:26)",
        ],
        asan: &["use-after-poison", "in main", "persistent.c:27"],
    },
    Mistake {
        program: "persistent.c",
        does: "undefined",
        valgrind: &["depends on uninitialised value", "main (persistent.c:22)"],
        asan: &[],
    },
    Mistake {
        program: "tlsf.c",
        does: "past the end",
        valgrind: &[
            "Invalid write of size 1",
            "writes_past_the_end",
            "0 bytes after a block of size 10",
            "allocated_here",
        ],
        asan: &["use-after-poison", "writes_past_the_end"],
    },
    Mistake {
        program: "tlsf.c",
        does: "after free",
        valgrind: &[
            "Invalid write of size 1",
            "uses_what_was_freed",
            "3 bytes inside a block of size 10 free'd",
            "freed_here",
            "Block was alloc'd at",
            "allocated_here",
        ],
        asan: &["use-after-poison", "uses_what_was_freed"],
    },
    Mistake {
        program: "tlsf.c",
        does: "twice",
        valgrind: &["Invalid free()", "frees_twice", "Block was alloc'd at", "allocated_here"],
        asan: &["frees_twice", "was freed before"],
    },
    Mistake {
        program: "tlsf.c",
        does: "undefined",
        valgrind: &["depends on uninitialised value", "reads_what_was_not_written"],
        asan: &[],
    },
    Mistake {
        program: "tlsf.c",
        does: "after it moved",
        valgrind: &[
            "Invalid write of size 1",
            "uses_what_was_moved",
            "0 bytes inside a block of size 1,000 free'd",
            "pagewise::tlsf::reallocate",
            "uses_what_was_moved",
        ],
        asan: &["use-after-poison", "uses_what_was_moved"],
    },
    Mistake {
        program: "tlsf.c",
        does: "free pages",
        valgrind: &["Invalid write of size 1", "uses_free_pages"],
        asan: &["use-after-poison", "uses_free_pages"],
    },
];

/// Compiles each program once, and returns it with the errors that it can make. If no compiler is
/// installed, records that a test is skipped and returns `None`.
fn programs(options: &[&str]) -> Option<Vec<(Command, Vec<&'static Mistake>)>> {
    let mut mistakes: BTreeMap<&str, Vec<&Mistake>> = BTreeMap::new();
    for mistake in MISTAKES {
        mistakes.entry(mistake.program).or_default().push(mistake);
    }
    let compiled = mistakes.into_iter().map(|(name, mistakes)| {
        let source = api().join("ctests/mistakes").join(name);
        Some((compile("cc", &[C, options].concat(), &source, CLinkage::Shared)?, mistakes))
    });
    compiled.collect()
}

/// True if a text contains all parts in this order.
fn holds(mut text: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| match text.split_once(part) {
        Some((_, rest)) => {
            text = rest;
            true
        }
        None => false,
    })
}

#[test]
fn valgrind_names_every_mistake_and_where_it_was_made() {
    let Some(programs) = programs(&["-O1"]).filter(|_| has("valgrind")) else { return };
    for (program, mistakes) in programs {
        for mistake in mistakes {
            let output = under_valgrind(&program, &[mistake.does]).output().unwrap();
            let said = text(&output.stderr);
            let name = (mistake.program, mistake.does);
            assert!(holds(&said, mistake.valgrind), "{name:?}: {said}");
        }
    }
}

#[test]
fn address_sanitizer_names_every_mistake_that_it_can_know() {
    let Some(programs) = programs(SANITIZED) else { return };
    for (program, mistakes) in programs {
        for mistake in mistakes.iter().filter(|mistake| !mistake.asan.is_empty()) {
            let mut sanitized = Command::new(program.get_program());
            sanitized.envs(environment(&program)).arg(mistake.does);
            let output = sanitized.output().unwrap();
            let said = text(&output.stderr);
            let name = (mistake.program, mistake.does);
            assert!(!output.status.success() && holds(&said, mistake.asan), "{name:?}: {said}");
        }
    }
}
