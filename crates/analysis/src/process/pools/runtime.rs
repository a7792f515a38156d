//! Language runtimes: programs that request memory for the objects of a language directly from the
//! kernel, so that malloc does not manage this memory.

use pagewise_model::{Name, Snapshot};

/// A language runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LanguageRuntime {
    /// CPython.
    Python,
    /// A Java virtual machine.
    Java,
    /// Go.
    Go,
    /// Node.js, Chromium, and other programs with V8.
    V8,
    /// .NET and Mono.
    DotNet,
    /// Ruby.
    Ruby,
    /// PHP.
    Php,
    /// The virtual machine of Erlang and Elixir.
    Erlang,
    /// The JavaScript engines of Firefox and WebKit.
    OtherScript,
}

/// Prefixes of the file names of libraries and programs that contain a runtime.
const LIBRARIES: &[(&str, LanguageRuntime)] = &[
    ("libpython", LanguageRuntime::Python),
    ("libjvm.so", LanguageRuntime::Java),
    ("libnode.so", LanguageRuntime::V8),
    ("libv8", LanguageRuntime::V8),
    ("libcoreclr.so", LanguageRuntime::DotNet),
    ("libmonosgen", LanguageRuntime::DotNet),
    ("libruby", LanguageRuntime::Ruby),
    ("libphp", LanguageRuntime::Php),
    ("libmozjs", LanguageRuntime::OtherScript),
    ("libxul.so", LanguageRuntime::OtherScript),
    ("libjavascriptcore", LanguageRuntime::OtherScript),
];

/// Prefixes of the file names of programs; the digits and dots of a version may follow.
const PROGRAMS: &[(&str, LanguageRuntime)] = &[
    ("python", LanguageRuntime::Python),
    ("node", LanguageRuntime::V8),
    ("nodejs", LanguageRuntime::V8),
    ("deno", LanguageRuntime::V8),
    ("bun", LanguageRuntime::OtherScript),
    ("chrome", LanguageRuntime::V8),
    ("chromium", LanguageRuntime::V8),
    ("electron", LanguageRuntime::V8),
    ("ruby", LanguageRuntime::Ruby),
    ("php", LanguageRuntime::Php),
    ("php-fpm", LanguageRuntime::Php),
    ("beam.smp", LanguageRuntime::Erlang),
];

impl LanguageRuntime {
    /// Returns the runtime of a process, by its program and its libraries.
    pub(crate) fn of_process(snapshot: &Snapshot) -> Option<LanguageRuntime> {
        let objects = || snapshot.objects.iter();
        let program = snapshot.process.exe.as_ref().ok().and_then(by_program);
        let go = objects().any(|object| {
            let sections = object.elf.iter().flat_map(|elf| &elf.sections);
            sections.into_iter().any(|section| section.name.as_bytes() == b".gopclntab")
        });
        program
            .or_else(|| objects().find_map(|object| by_library(&object.name)))
            .or(go.then_some(LanguageRuntime::Go))
    }

    /// True if a program or library contains the runtime.
    pub(crate) fn contains(self, module: &Name) -> bool {
        by_library(module).or_else(|| by_program(module)) == Some(self)
    }

    /// Name of the runtime.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            LanguageRuntime::Python => "CPython (pymalloc)",
            LanguageRuntime::Java => "Java virtual machine (JVM)",
            LanguageRuntime::Go => "Go runtime",
            LanguageRuntime::V8 => "V8 (JavaScript)",
            LanguageRuntime::DotNet => ".NET runtime",
            LanguageRuntime::Ruby => "Ruby",
            LanguageRuntime::Php => "PHP",
            LanguageRuntime::Erlang => "Erlang virtual machine (BEAM)",
            LanguageRuntime::OtherScript => "JavaScript engine",
        }
    }

    /// Pool name of memory that is either from the runtime or from plain mmap.
    pub(super) const fn memory(self) -> &'static str {
        match self {
            LanguageRuntime::Python => "CPython, and mmap",
            LanguageRuntime::Java => "Java virtual machine, and mmap",
            LanguageRuntime::Go => "Go runtime, and mmap",
            LanguageRuntime::V8 => "V8, and mmap",
            LanguageRuntime::DotNet => ".NET runtime, and mmap",
            LanguageRuntime::Ruby => "Ruby, and mmap",
            LanguageRuntime::Php => "PHP, and mmap",
            LanguageRuntime::Erlang => "Erlang virtual machine, and mmap",
            LanguageRuntime::OtherScript => "JavaScript engine, and mmap",
        }
    }

    /// True if dead objects stay in memory until a garbage collection, so that the growth of a heap
    /// may consist of garbage only.
    pub(crate) const fn collects_garbage(self) -> bool {
        // CPython and PHP free an object when its last reference is removed.
        !matches!(self, LanguageRuntime::Python | LanguageRuntime::Php)
    }
}

fn by_library(path: &Name) -> Option<LanguageRuntime> {
    let base = path.base();
    LIBRARIES.iter().find(|(name, _)| base.starts_with(name.as_bytes())).map(|row| row.1)
}

fn by_program(path: &Name) -> Option<LanguageRuntime> {
    let base = path.base();
    let base = base.strip_suffix(b" (deleted)").unwrap_or(base);
    let is_version = |rest: &[u8]| rest.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    let fits = |name: &str| base.strip_prefix(name.as_bytes()).is_some_and(is_version);
    PROGRAMS.iter().find(|(name, _)| fits(name)).map(|row| row.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_the_name_of_a_runtime_and_a_version_contains_it() {
        let of = |path: &str| by_program(&Name::from(path));
        assert_eq!(of("/usr/bin/python3.11"), Some(LanguageRuntime::Python));
        assert_eq!(of("/usr/bin/node (deleted)"), Some(LanguageRuntime::V8));
        assert_eq!(of("/usr/bin/node_exporter"), None);
        assert_eq!(of("/usr/bin/pythonista"), None);
    }

    #[test]
    fn a_library_contains_the_runtime_of_its_name() {
        let java = LanguageRuntime::Java;
        assert!(java.contains(&Name::from("/usr/lib/jvm/lib/server/libjvm.so")));
        assert!(!java.contains(&Name::from("/usr/lib/libjvmti_agent.so")));
    }
}
