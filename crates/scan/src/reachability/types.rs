//! Types of blocks: classes from virtual tables, and other types from debug information.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Instant;

use pagewise_model::data_types::{DataTypes, TypedVariable};
use pagewise_model::heap_graph::{TypeEvidence, TypeGroup, TypedBlocks};
use pagewise_model::heap_scan::LiveAmount;
use pagewise_model::units::nanoseconds;
use pagewise_model::{AddrRange, Name};
use pagewise_proc::data_symbols::NamedVariables;

use super::names::thread_stacks;
use super::thread_storage::thread_local_variables;
use super::{GraphRequest, MAX_ROWS, WantedTypes, variable_at};
use crate::blocks::BlockTable;
use crate::graph::{BlockRounding, BlockTyping, HeapPointers, RootSpan, TypingInput, member_of};
use crate::memory::Memory;

/// Types of the blocks of a heap.
#[derive(Default)]
pub(super) struct HeapTypes {
    /// Name of each type, at the index type number - 1: first the types found by first words, then
    /// the types found by debug information.
    names: Vec<Option<Name>>,
    /// Number of types that were found by first words.
    words: usize,
    found: Option<FoundTypes>,
}

/// Input for the types of blocks.
pub(super) struct TypingMemory<'a> {
    pub(super) memory: &'a dyn Memory,
    pub(super) blocks: &'a BlockTable,
    pub(super) rounding: BlockRounding,
    pub(super) spans: &'a [RootSpan],
    /// Addresses of pointers in variables, in ascending order.
    pub(super) addresses: &'a [u64],
}

struct FoundTypes {
    data: DataTypes,
    typing: BlockTyping,
    rounding: BlockRounding,
    took_ns: u64,
}

impl HeapTypes {
    /// Determines the types of blocks from their first words, by the symbols to which these point.
    pub(super) fn of_classes(
        pointers: &HeapPointers,
        found: &NamedVariables,
        request: &GraphRequest<'_>,
    ) -> HeapTypes {
        let words = pointers.types.words();
        let type_of = |word: &u64| {
            let variable = variable_at(&found.variables, *word)?;
            let name = variable.name.as_bytes();
            if !name.starts_with(b"_ZTV") {
                return None;
            }
            let name = (request.demangle)(&String::from_utf8_lossy(name));
            // Example of a name: `{vtable(shop::Book)}`.
            let class = name.strip_prefix("{vtable(").and_then(|rest| rest.strip_suffix(")}"));
            Some(Name::from(class.unwrap_or(&name)))
        };
        HeapTypes { names: words.iter().map(type_of).collect(), words: words.len(), found: None }
    }

    /// Adds the types from debug information if they were requested.
    pub(super) fn add_data_types(
        &mut self,
        of: &TypingMemory<'_>,
        pointers: &mut HeapPointers,
        request: &GraphRequest<'_>,
    ) {
        let Some(types) = request.types else { return };
        let began = Instant::now();
        let mut classes: Vec<Name> = self.names.iter().flatten().cloned().collect();
        classes.sort();
        classes.dedup();
        let TypingMemory { memory, blocks, rounding, addresses, spans } = *of;
        let stacks = thread_stacks(spans);
        let wanted = WantedTypes { addresses, classes: &classes, memory, stacks: &stacks };
        let mut data = types(&wanted);
        add_thread_locals(&mut data, memory);
        let by_class: HashMap<&Name, u32> =
            data.classes.iter().map(|(name, data_type)| (name, *data_type)).collect();
        let class_of = |block: u32| {
            let number = pointers.types.number(block) as usize;
            let name = self.names.get(number.checked_sub(1)?)?.as_ref()?;
            Some((block, by_class.get(name).copied()))
        };
        let seeds: Vec<(u32, Option<u32>)> =
            pointers.types.firsts().filter_map(|(block, _)| class_of(block)).collect();
        let input = TypingInput { memory, blocks, data: &data, rounding };
        let typing = BlockTyping::new(&input, &seeds);
        self.number(&input, &typing, pointers);
        let took_ns = nanoseconds(began.elapsed());
        self.found = Some(FoundTypes { data, typing, rounding, took_ns });
    }

    /// Assigns type numbers to the types of blocks.
    fn number(
        &mut self,
        input: &TypingInput<'_>,
        typing: &BlockTyping,
        pointers: &mut HeapPointers,
    ) {
        let mut numbers: HashMap<Name, u32> = HashMap::new();
        for block in 0..u32::try_from(input.blocks.len()).unwrap_or(u32::MAX) {
            let Some(found) = typing.get(input, block) else { continue };
            let known = (pointers.types.number(block) as usize).checked_sub(1);
            if known.and_then(|at| self.names.get(at)).is_some_and(Option::is_some) {
                continue;
            }
            let Some(described) = input.data.types.get(found.data_type as usize) else { continue };
            let mut name = described.name.clone();
            if found.is_array {
                name = Name::new(&[name.as_bytes(), b"[]"].concat());
            }
            let number = *numbers.entry(name).or_insert_with_key(|name| {
                self.names.push(Some(name.clone()));
                u32::try_from(self.names.len()).unwrap_or(u32::MAX)
            });
            pointers.types.set(input.blocks.len(), block, number);
        }
    }

    /// Variables that debug information describes.
    pub(super) fn variables(&self) -> &[TypedVariable] {
        self.found.as_ref().map_or(&[], |found| &found.data.variables)
    }

    /// Name of a type; `None` if the number is 0 or the type has no name.
    pub(super) fn name(&self, number: u32) -> Option<Name> {
        self.names.get((number as usize).checked_sub(1)?).cloned().flatten()
    }

    /// Live blocks by type, if types were requested.
    pub(super) fn summary(
        &self,
        blocks: &BlockTable,
        number_of: impl Fn(u32) -> u32,
    ) -> Option<TypedBlocks> {
        let found = self.found.as_ref()?;
        let mut groups: HashMap<u32, TypeGroup> = HashMap::new();
        let mut typed = LiveAmount::default();
        for (block, at) in (0..).zip(0..blocks.len()) {
            let number = number_of(block);
            let (Some(name), Some(live)) = (self.name(number), blocks.get(at)) else { continue };
            let amount = LiveAmount { blocks: 1, bytes: live.size };
            let is_class = number as usize <= self.words;
            let evidence = match is_class {
                true => TypeEvidence::ClassTable,
                false => TypeEvidence::DebugInformation,
            };
            let new =
                TypeGroup { name, evidence, live: LiveAmount::default(), address: live.start };
            groups.entry(number).or_insert(new).live.add(amount);
            typed.add(amount);
        }
        let mut groups: Vec<TypeGroup> = groups.into_values().collect();
        groups.sort_by(|a, b| {
            (Reverse(a.live.bytes), &a.name).cmp(&(Reverse(b.live.bytes), &b.name))
        });
        groups.truncate(MAX_ROWS);
        Some(TypedBlocks {
            groups,
            typed,
            contradicted: found.typing.contradicted,
            lacks: found.data.lacks.clone(),
            took_ns: found.took_ns,
        })
    }

    /// Name of the member of a block that points to another block.
    pub(super) fn member(
        &self,
        memory: &dyn Memory,
        blocks: &BlockTable,
        block: u32,
        to: u32,
    ) -> Option<Name> {
        let FoundTypes { data, typing, rounding, .. } = self.found.as_ref()?;
        let input = TypingInput { memory, blocks, data, rounding: *rounding };
        let field = typing.member(&input, block, range_of(blocks, to)?)?;
        Some(field.member.clone()).filter(|name| !name.is_empty())
    }

    /// Name of the member of the variable at an address that points to a block.
    pub(super) fn variable_member(
        &self,
        memory: &dyn Memory,
        blocks: &BlockTable,
        address: u64,
        to: u32,
    ) -> Option<Name> {
        let data = &self.found.as_ref()?.data;
        let after = data.variables.partition_point(|it| it.range.start <= address);
        let variable = data.variables[..after].last().filter(|it| it.range.contains(address))?;
        let data_type = data.types.get(variable.data_type as usize)?;
        let field = member_of(memory, data_type, variable.range.start, range_of(blocks, to)?)?;
        Some(field.member.clone()).filter(|name| !name.is_empty())
    }
}

/// Adds the thread-local variables of each thread to `data`.
fn add_thread_locals(data: &mut DataTypes, memory: &dyn Memory) {
    data.variables.extend(thread_local_variables(memory, &data.thread_locals));
    data.variables.sort_by_key(|it| (it.range.start, Reverse(it.range.end)));
    let mut end = 0;
    data.variables.retain(|it| {
        let is_behind = it.range.start >= end;
        end = if is_behind { it.range.end } else { end };
        is_behind
    });
}

fn range_of(blocks: &BlockTable, block: u32) -> Option<AddrRange> {
    let block = blocks.get(block as usize)?;
    Some(AddrRange { start: block.start, end: block.start.saturating_add(block.size.max(1)) })
}
