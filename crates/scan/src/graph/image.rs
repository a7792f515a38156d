//! Synthetic processes for tests: mappings with bytes, and threads.

use pagewise_model::{Absent, AddrRange, Device, Mapping, Name, Prot, Sharing};

use crate::blocks::{BlockTable, LiveBlock};
use crate::memory::{Memory, ScannedThread};

/// A synthetic process.
#[derive(Debug, Default)]
pub(crate) struct TestImage {
    mappings: Vec<Mapping>,
    contents: Vec<Vec<u8>>,
    threads: Vec<ScannedThread>,
}

impl TestImage {
    /// Adds a zero-filled readable and writable mapping above all other mappings. If `name` is not
    /// empty, the mapping is of the file with this name.
    pub(crate) fn map(&mut self, start: u64, len: u64, name: &str) -> &mut Mapping {
        let absent = || Absent::NotCollected("".into());
        self.mappings.push(Mapping {
            range: AddrRange { start, end: start + len },
            prot: Prot { read: true, write: true, exec: false },
            sharing: Sharing::Private,
            offset: 0,
            device: Device::default(),
            inode: u64::from(name.starts_with('/')),
            name: Name::from(name),
            on_tmpfs: false,
            smaps: Err(absent()),
            pages: Err(absent()),
        });
        self.contents.push(vec![0; usize::try_from(len).unwrap()]);
        self.mappings.last_mut().unwrap()
    }

    pub(crate) fn thread(&mut self, stack_pointer: u64, thread_pointer: u64, registers: &[u64]) {
        let tid = u32::try_from(self.threads.len()).unwrap() + 1;
        let registers = registers.to_vec();
        let name = Vec::new();
        self.threads.push(ScannedThread { tid, name, stack_pointer, thread_pointer, registers });
    }

    pub(crate) fn store(&mut self, address: u64, word: u64) {
        let at = self.mappings.iter().position(|it| it.range.contains(address)).unwrap();
        let offset = usize::try_from(address - self.mappings[at].range.start).unwrap();
        self.contents[at][offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, mapping: usize) -> &mut [u8] {
        &mut self.contents[mapping]
    }
}

impl Memory for TestImage {
    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn threads(&self) -> &[ScannedThread] {
        &self.threads
    }

    fn visit(&self, range: AddrRange, each: &mut dyn FnMut(u64, &[u8])) {
        for (mapping, bytes) in self.mappings.iter().zip(&self.contents) {
            let Some(part) = mapping.range.intersection(range) else { continue };
            // The pieces have uneven sizes, so that blocks extend across piece boundaries.
            let mut at = part.start.next_multiple_of(8);
            while at < part.end {
                let end = (at + 8 * 37).min(part.end);
                let offset = |address| usize::try_from(address - mapping.range.start).unwrap();
                each(at, &bytes[offset(at)..offset(end)]);
                at = end;
            }
        }
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let at = self.mappings.iter().position(|it| it.range.contains(address));
        let Some(at) = at else { return false };
        let offset = usize::try_from(address - self.mappings[at].range.start).unwrap();
        let Some(bytes) = self.contents[at].get(offset..offset + into.len()) else { return false };
        into.copy_from_slice(bytes);
        true
    }
}

/// Creates a table of `blocks`, each given by address and size.
pub(crate) fn table(blocks: impl IntoIterator<Item = (u64, u64)>) -> BlockTable {
    let mut table = BlockTable::default();
    for (start, size) in blocks {
        assert!(table.push(LiveBlock { start, size }));
    }
    table
}
