//! Addresses of the thread-local variables of each thread. The storage of each ELF file is found
//! through words that the dynamic linker has written.

use pagewise_model::data_types::{ThreadStorage, TypedThreadLocal, TypedVariable};
use pagewise_model::{AddrRange, Mapping};

use crate::memory::Memory;
use crate::musl;

/// Maximum number of thread-local variables in all threads together.
const MAX_VARIABLES: usize = 1 << 18;
/// Maximum number of files with thread-local storage.
const MAX_FILES: u64 = 1 << 20;

/// Returns the thread-local variables of all threads that have storage for them.
pub(super) fn thread_local_variables(
    memory: &dyn Memory,
    described: &[TypedThreadLocal],
) -> Vec<TypedVariable> {
    let tables = StorageTables::of(memory.mappings());
    let of_thread = |pointer: u64| {
        let files = described.chunk_by(|one, next| one.storage == next.storage);
        let files = files.filter_map(move |file| {
            let start = tables.start(memory, pointer, file.first()?.storage)?;
            Some(file.iter().filter_map(move |it| moved(&it.variable, start)))
        });
        files.flatten()
    };
    let pointers = memory.threads().iter().map(|thread| thread.thread_pointer);
    pointers.flat_map(of_thread).take(MAX_VARIABLES).collect()
}

/// Returns a variable at its address in a storage that begins at `start`.
fn moved(variable: &TypedVariable, start: u64) -> Option<TypedVariable> {
    let AddrRange { start: from, end } = variable.range;
    let range = AddrRange { start: start.checked_add(from)?, end: start.checked_add(end)? };
    Some(TypedVariable { range, ..variable.clone() })
}

/// Layout of the dynamic thread vector: each thread's table of storage addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorageTables {
    /// Each entry has two words. The second word before the table is the highest index.
    Glibc,
    /// Each entry has one word. The first word of the table is the highest index.
    Musl,
}

impl StorageTables {
    fn of(mappings: &[Mapping]) -> StorageTables {
        let is_musl = mappings.iter().any(musl::is_library);
        if is_musl { StorageTables::Musl } else { StorageTables::Glibc }
    }

    /// Start address of a thread's storage. `None` if the thread has no storage: for a library that
    /// was loaded later, a thread gets storage at its first use.
    fn start(self, memory: &dyn Memory, pointer: u64, storage: ThreadStorage) -> Option<u64> {
        match storage {
            ThreadStorage::BelowThreadPointer(bytes) => pointer.checked_sub(bytes),
            ThreadStorage::OfVariable { word, offset } => {
                let distance = memory.word(word)?.wrapping_sub(offset);
                Some(pointer.wrapping_add(distance))
            }
            ThreadStorage::Numbered { word } => {
                let number = memory.word(word).filter(|number| (1..MAX_FILES).contains(number))?;
                // Unused entries are 0 or -1, and no mapping contains such an address.
                self.entry(memory, memory.word(pointer.checked_add(8)?)?, number)
            }
        }
    }

    fn entry(self, memory: &dyn Memory, table: u64, number: u64) -> Option<u64> {
        let (size, count) = match self {
            StorageTables::Glibc => (16, table.checked_sub(16)?),
            StorageTables::Musl => (8, table),
        };
        let is_in = memory.word(count)? >= number;
        let address = table.checked_add(number * size).filter(|_| is_in)?;
        let start = memory.word(address)?;
        memory.mappings().iter().any(|it| it.range.contains(start)).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use pagewise_model::Name;

    use super::*;
    use crate::made::{MadeProcess, mapping};

    /// Thread pointers of two threads, and the addresses of their dynamic thread vectors.
    const THREADS: [(u64, u64); 2] = [(0x7800, 0x8020), (0x9800, 0x8220)];
    /// Address of the word that the dynamic linker has written.
    const WORD: u64 = 0x8400;

    /// Creates a process whose second thread has no storage for file 3 yet.
    fn process(library: &str, entry: u64, count: impl Fn(u64) -> u64) -> MadeProcess {
        let mappings = vec![mapping(0x7000, 0x3000, "", 0), mapping(0x10_0000, 0x1000, library, 1)];
        let mut process = MadeProcess::new(mappings, &THREADS.map(|(pointer, _)| pointer));
        for (pointer, table) in THREADS {
            process.put(pointer + 8, table);
            process.put(count(table), 3);
            process.put(table + 3 * entry, u64::MAX);
        }
        process.put(THREADS[0].1 + 3 * entry, 0x8600);
        process
    }

    fn starts(process: &MadeProcess, storage: ThreadStorage) -> Vec<u64> {
        let variable = TypedVariable {
            range: AddrRange { start: 16, end: 24 },
            name: Name::from("own"),
            module: Name::from("/lib.so"),
            source: None,
            data_type: 0,
        };
        let described = [TypedThreadLocal { storage, variable }];
        let found = thread_local_variables(process, &described);
        found.iter().map(|it| it.range.start).collect()
    }

    #[test]
    fn the_storage_of_a_library_is_found_in_the_table_of_each_thread() {
        let numbered = ThreadStorage::Numbered { word: WORD };
        let mut glibc = process("/lib/libc.so.6", 16, |table| table - 16);
        let mut musl = process("/lib/ld-musl-x86_64.so.1", 8, |table| table);
        for process in [&mut glibc, &mut musl] {
            process.put(WORD, 3);
            assert_eq!(starts(process, numbered), [0x8610], "the second thread has none");
            for damaged in [0, 4, u64::MAX] {
                process.put(WORD, damaged);
                assert!(starts(process, numbered).is_empty());
            }
        }
    }

    #[test]
    fn storage_at_a_fixed_distance_is_below_each_thread_pointer() {
        let mut process = process("/lib/libc.so.6", 16, |table| table - 16);
        let below = starts(&process, ThreadStorage::BelowThreadPointer(0x40));
        assert_eq!(below, [0x77d0, 0x97d0]);
        // The word contains the distance from the thread pointer to a variable with offset 8.
        process.put(WORD, 0_u64.wrapping_sub(0x100 - 8));
        let known = ThreadStorage::OfVariable { word: WORD, offset: 8 };
        assert_eq!(starts(&process, known), [0x7710, 0x9710]);
    }
}
