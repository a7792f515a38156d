//! Types of the variables of a file, and of the objects that they point to. The variables are
//! global, static or thread-local, or they are local variables in the frames of functions that
//! threads are in.
//!
//! The file may be hostile. Its sections are copied once, up to [`MAX_SECTIONS`], so nothing
//! changes while they are read. Entries, members, types and time have limits; a variable beyond a
//! limit has no type. An entry is a debugging information entry of DWARF, and a unit is a DWARF
//! unit, usually of one source file.
//!
//! ```text
//!  sections   copies of the sections of a file, and of the file that several debug files share
//!  walk       one pass over all entries, with several threads: variables, definitions by name
//!  scopes     functions and blocks whose code contains instructions of frames
//!  entry      one entry and its members
//!  resolve    types from a variable on, breadth first
//!  frames     local variables of frames
//!  thread_storage  location of thread-local storage
//! ```

mod entry;
mod frames;
mod resolve;
mod scopes;
mod sections;
mod thread_storage;
mod walk;

use std::time::{Duration, Instant};

use gimli::{EndianSlice, RunTimeEndian};
use pagewise_model::data_types::{
    DataType, DataTypes, ThreadStorage, TypedThreadLocal, TypedVariable,
};
use pagewise_model::{AddrRange, Name};

use crate::symbolizer::SymbolModule;
pub(crate) use frames::{CodeFrame, code_frames};
use resolve::{DescribedVariable, Resolver};
use sections::DebugSections;
pub(crate) use thread_storage::thread_storage;
use walk::WalkedUnits;

/// Maximum number of bytes of the sections of one file that are read.
const MAX_SECTIONS: u64 = 1 << 30;
/// Maximum time for all files of a process. A file of 100 MB takes a part of a second.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(10);
/// Maximum number of bytes of a name that are kept.
const MAX_NAME: usize = 200;
/// Maximum number of thread-local variables of a file that have types. [`MAX_LOCALS`] is the
/// maximum number of local variables of all frames.
const MAX_THREAD_LOCALS: usize = 5000;
const MAX_LOCALS: usize = 1 << 16;

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;
type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
type Unit<'a> = gimli::Unit<Slice<'a>>;
type Value<'a> = gimli::AttributeValue<Slice<'a>>;

/// Reference to an entry: its offset in `.debug_info` of the file itself or of the shared file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct EntryRef {
    is_shared: bool,
    offset: usize,
}

/// The types to look for in a file that is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypeRequest<'a> {
    /// Path of the file.
    pub(crate) module: &'a Name,
    /// Difference between addresses in the process and addresses in the file.
    pub(crate) bias: u64,
    /// Addresses in variables whose types are wanted, in order.
    pub(crate) addresses: &'a [u64],
    /// Names of classes whose types are wanted.
    pub(crate) classes: &'a [Name],
    /// Location of the thread-local storage of the file, if it is wanted and known.
    pub(crate) storage: Option<ThreadStorage>,
    /// Frames of threads, in order of their instruction addresses.
    pub(crate) frames: &'a [CodeFrame],
    /// Time at which the search ends.
    pub(crate) deadline: Instant,
}

/// Adds the types of a file, whose debug information is in one of `modules`.
///
/// # Errors
/// The reason why types are unknown.
pub(crate) fn add_types(
    found: &mut DataTypes,
    modules: &[SymbolModule],
    request: &TypeRequest<'_>,
) -> Result<(), &'static str> {
    let module = modules.iter().find(|module| module.layout.has_dwarf());
    let module = module.ok_or("no debug information: install it, or build with -g")?;
    let sections = DebugSections::read(module)?;
    let dwarf = sections.dwarf();
    let instructions = frames::instructions(request.frames, request.bias);
    let walked = WalkedUnits::walk(&dwarf, &instructions, request.deadline)?;
    let wanted = walked.variables_at(request.addresses, request.bias);
    let (thread_locals, locals) = (walked.thread_locals.clone(), walked.locals.clone());
    let mut resolver = Resolver::new(&dwarf, walked, request.deadline);
    let base = u32::try_from(found.types.len()).unwrap_or(u32::MAX);
    let typed = |start: u64, described: &DescribedVariable| TypedVariable {
        range: AddrRange { start, end: start.saturating_add(described.size) },
        name: described.name.clone(),
        module: request.module.clone(),
        source: described.source.clone(),
        data_type: base.saturating_add(described.data_type),
    };
    for variable in wanted {
        let Some(described) = resolver.variable(variable.entry) else { continue };
        let variable = typed(variable.address.wrapping_add(request.bias), &described);
        let range = variable.range;
        let next = request.addresses.partition_point(|&address| address < range.start);
        if request.addresses.get(next).is_some_and(|&address| range.contains(address)) {
            found.variables.push(variable);
        }
    }
    if let Some(storage) = request.storage {
        for seen in thread_locals.iter().take(MAX_THREAD_LOCALS) {
            let Some(described) = resolver.variable(seen.entry) else { continue };
            let variable = typed(seen.address, &described);
            found.thread_locals.push(TypedThreadLocal { storage, variable });
        }
    }
    for local in locals {
        let starts = frames::starts(request.frames, request.bias, &local);
        let left = MAX_LOCALS.saturating_sub(found.locals.len());
        let described = resolver.variable(local.entry).filter(|_| left > 0);
        let Some(described) = described else { continue };
        found.locals.extend(starts.take(left).map(|start| typed(start, &described)));
    }
    for class in request.classes {
        if let Some(data_type) = resolver.class(class) {
            found.classes.push((class.clone(), base.saturating_add(data_type)));
        }
    }
    found.types.extend(resolver.finish().into_iter().map(|data_type| renumbered(data_type, base)));
    Ok(())
}

/// A type whose references to other types count from `base`.
fn renumbered(mut data_type: DataType, base: u32) -> DataType {
    let moved = |index: u32| base.saturating_add(index);
    data_type.first = data_type.first.map(moved);
    for field in &mut data_type.pointers {
        field.target = field.target.map(moved);
    }
    data_type
}

/// Returns a name of at most [`MAX_NAME`] bytes.
fn name_of(bytes: &[u8]) -> Name {
    Name::new(&bytes[..bytes.len().min(MAX_NAME)])
}

/// Hash of a name (FNV-1a): definitions are found by it.
fn name_hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().take(MAX_NAME).fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::rc::Rc;

    use pagewise_skip::{Lack, skip};
    use proptest::prelude::*;

    use super::*;
    use crate::elf::{FileLayout, FileSource};

    const SOURCE: &str = "
        struct other;
        union either { struct other *other; int *number; };
        typedef struct node { struct node *next; const char *name; void *any; int count; } node_t;
        struct holder { node_t nodes[3]; node_t *const *table; union either either; int more[]; };
        struct other { struct other *own; };
        static struct holder holder;
        struct other *visible;
        void *use(void) { return &holder; }
    ";

    /// A library that is built from the source. `None` without a compiler.
    fn library() -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("types.c"), folder.path().join("types.so"));
        std::fs::write(&source, SOURCE).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-g", "-fPIC", "-shared", "-o"]).arg(&library).arg(&source);
        let Ok(output) = cc.output() else {
            skip(&Lack::Tool("cc"));
            return None;
        };
        assert!(output.status.success(), "{output:?}");
        Some(std::fs::read(library).unwrap())
    }

    fn module(bytes: Vec<u8>) -> Option<SymbolModule> {
        let source = Rc::new(FileSource::Memory(bytes));
        let layout = FileLayout::parse(&source)?;
        Some(SymbolModule::new(source, layout, None))
    }

    /// The types of all variables.
    fn all(bytes: Vec<u8>) -> Option<DataTypes> {
        let modules = [module(bytes)?];
        let mut found = DataTypes::default();
        // Every eighth byte of data.
        let addresses: Vec<u64> = (0..0x8000).step_by(8).collect();
        let module = Name::from("/types.so");
        let classes = [Name::from("node")];
        let deadline = Instant::now() + MAX_TIME;
        let (addresses, classes) = (&addresses, &classes);
        let storage = Some(ThreadStorage::BelowThreadPointer(64));
        let frames = &CodeFrame::at(0x1000..0x3000);
        let request =
            TypeRequest { module: &module, bias: 0, addresses, classes, storage, frames, deadline };
        add_types(&mut found, &modules, &request).ok().map(|()| found)
    }

    #[test]
    fn members_are_pointers_at_their_offsets() {
        let Some(bytes) = library() else { return };
        let found = all(bytes).unwrap();
        let variable =
            |name: &str| found.variables.iter().find(|it| it.name == name.into()).unwrap();
        let holder = variable("holder");
        assert_eq!(holder.source, Some("types.c".into()));
        assert_eq!(variable("visible").source, None);
        let described = &found.types[holder.data_type as usize];
        assert_eq!((described.size, described.is_open_ended), (3 * 32 + 16, true));
        let fields: Vec<_> = described
            .pointers
            .iter()
            .map(|it| {
                let target =
                    it.target.map(|it| found.types[it as usize].name.escaped().into_owned());
                (it.member.escaped().into_owned(), it.offset, it.count, it.stride, target)
            })
            .collect();
        let field = |member: &str, offset, count, stride, target: Option<&str>| {
            (member.to_owned(), offset, count, stride, target.map(str::to_owned))
        };
        let expected = [
            field("nodes.next", 0, 3, 32, Some("node")),
            field("nodes.name", 8, 3, 32, Some("char")),
            field("nodes.any", 16, 3, 32, None),
            field("table", 96, 1, 8, Some("node *")),
        ];
        assert_eq!(fields, expected);
        assert_eq!(found.types[found.classes[0].1 as usize].size, 32);
    }

    #[test]
    fn a_file_without_debug_information_says_so() {
        let own = std::fs::read("/bin/sh").unwrap();
        let modules = [module(own).unwrap()];
        let request = TypeRequest {
            module: &Name::from("/bin/sh"),
            bias: 0,
            addresses: &[],
            classes: &[],
            storage: None,
            frames: &[],
            deadline: Instant::now() + MAX_TIME,
        };
        let error = add_types(&mut DataTypes::default(), &modules, &request).unwrap_err();
        assert_eq!(error, "no debug information: install it, or build with -g");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Changes bytes in the sections, so that entries can also refer to themselves.
        #[test]
        fn any_debug_information_is_read_or_refused(
            changes in prop::collection::vec(
                (0_usize..3, any::<prop::sample::Index>(), any::<u8>()), 1..30),
        ) {
            static LIBRARY: std::sync::OnceLock<Option<Vec<u8>>> = std::sync::OnceLock::new();
            let Some(bytes) = LIBRARY.get_or_init(library) else { return Ok(()) };
            let mut bytes = bytes.clone();
            let layout = module(bytes.clone()).unwrap().layout;
            for (section, at, byte) in changes {
                let name: &[u8] = [&b".debug_info"[..], b".debug_abbrev", b".debug_str"][section];
                let section = layout.find(name).unwrap();
                let length = usize::try_from(section.size).unwrap();
                bytes[usize::try_from(section.offset).unwrap() + at.index(length)] = byte;
            }
            if let Some(found) = all(bytes) {
                let count = u32::try_from(found.types.len()).unwrap();
                let fields = found.types.iter().flat_map(|it| &it.pointers);
                prop_assert!(fields.filter_map(|it| it.target).all(|target| target < count));
                prop_assert!(found.types.iter().filter_map(|it| it.first).all(|it| it < count));
            }
        }
    }
}
