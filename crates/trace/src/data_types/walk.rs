//! One pass over all entries of a file: locations of variables, and definitions of structures by
//! name.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use gimli::{AttributeValue, Error, Expression, Result, UnitHeader, UnitType, constants as dw};

use super::scopes::{OpenScopes, ScopeCode, ScopeEntry};
use super::{Dwarf, EntryRef, Slice, Unit, Value, name_hash};
use crate::symbolizer::empty_unit;

/// Units of a file; browsers have some 60,000.
const MAX_UNITS: usize = 1 << 20;
/// Variables, and definitions, of a file.
const MAX_SEEN: usize = 4 << 20;
/// Units that a thread takes at a time.
const AT_ONCE: usize = 16;
/// Maximum number of threads: more of them only wait for memory.
const MAX_THREADS: usize = 8;

/// A variable with an address of its own, or an offset in thread-local storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SeenVariable {
    /// Address in the file, or offset in thread-local storage.
    pub(super) address: u64,
    pub(super) entry: EntryRef,
}

/// A variable in the frame of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SeenLocal {
    /// The code in which it exists.
    pub(super) code: ScopeCode,
    /// Distance from the base of the frame.
    pub(super) offset: i64,
    pub(super) entry: EntryRef,
}

/// Location of a variable.
enum SeenLocation {
    Address(u64),
    ThreadLocal(u64),
    Frame(i64),
}

/// The units of a file, and what is in them.
#[derive(Debug, Default)]
pub(super) struct WalkedUnits {
    /// Offsets of the units of the file, and of the shared file.
    pub(super) starts: [Vec<usize>; 2],
    /// In order of address.
    variables: Vec<SeenVariable>,
    /// In order of offset.
    pub(super) thread_locals: Vec<SeenVariable>,
    /// Variables of the code that contains wanted instructions.
    pub(super) locals: Vec<SeenLocal>,
    /// Hash of a name and the definition, in order.
    pub(super) definitions: Vec<(u64, EntryRef)>,
    /// Entries of types that have units of their own.
    pub(super) signatures: HashMap<u64, EntryRef>,
}

/// Entries that a thread found.
#[derive(Debug, Default)]
struct SeenEntries {
    variables: Vec<SeenVariable>,
    thread_locals: Vec<SeenVariable>,
    locals: Vec<SeenLocal>,
    definitions: Vec<(u64, EntryRef)>,
}

impl SeenEntries {
    fn is_full(&self) -> bool {
        let variables = self.variables.len() + self.thread_locals.len() + self.locals.len();
        variables.max(self.definitions.len()) >= MAX_SEEN
    }

    fn add(&mut self, location: SeenLocation, code: Option<ScopeCode>, entry: EntryRef) {
        match (location, code) {
            (SeenLocation::Address(address), _) => {
                self.variables.push(SeenVariable { address, entry });
            }
            (SeenLocation::ThreadLocal(address), _) => {
                self.thread_locals.push(SeenVariable { address, entry });
            }
            (SeenLocation::Frame(offset), Some(code)) => {
                self.locals.push(SeenLocal { code, offset, entry });
            }
            (SeenLocation::Frame(_), None) => {}
        }
    }
}

struct HeaderOf<'a> {
    is_shared: bool,
    offset: usize,
    header: UnitHeader<Slice<'a>>,
}

impl WalkedUnits {
    /// Walks all units. `instructions` are addresses in the file, in order.
    pub(super) fn walk(
        dwarf: &Dwarf<'_>,
        instructions: &[u64],
        deadline: Instant,
    ) -> std::result::Result<WalkedUnits, &'static str> {
        let mut walked = WalkedUnits::default();
        let mut headers = walked.headers(dwarf, false);
        if let Some(shared) = dwarf.sup() {
            headers.extend(walked.headers(shared, true));
        }
        let next = AtomicUsize::new(0);
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let work = || {
            let mut seen = SeenEntries::default();
            loop {
                let first = next.fetch_add(AT_ONCE, Ordering::Relaxed);
                let Some(rest) = headers.get(first..).filter(|rest| !rest.is_empty()) else {
                    return Some(seen);
                };
                for of in rest.iter().take(AT_ONCE) {
                    if Instant::now() > deadline || seen.is_full() {
                        return None;
                    }
                    let dwarf = if of.is_shared { dwarf.sup() } else { Some(dwarf) };
                    // An invalid unit does not hide the others.
                    let _ = dwarf.map(|dwarf| of.walk(dwarf, instructions, &mut seen));
                }
            }
        };
        let threads = threads.min(headers.len().div_ceil(AT_ONCE)).max(1);
        let found: Vec<Option<SeenEntries>> = thread::scope(|scope| {
            let start = || thread::Builder::new().spawn_scoped(scope, work);
            let others: Vec<_> = (1..threads).filter_map(|_| start().ok()).collect();
            let own = work();
            let joined = others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            std::iter::once(own).chain(joined).collect()
        });
        for seen in found {
            walked.extend(seen.ok_or("its debug information is too large")?);
        }
        walked.sort();
        Ok(walked)
    }

    fn extend(&mut self, seen: SeenEntries) {
        self.variables.extend(seen.variables);
        self.thread_locals.extend(seen.thread_locals);
        self.locals.extend(seen.locals);
        self.definitions.extend(seen.definitions);
    }

    fn sort(&mut self) {
        self.variables.sort_unstable();
        self.thread_locals.sort_unstable();
        self.locals.sort_unstable();
        self.definitions.sort_unstable();
    }

    fn headers<'a>(&mut self, dwarf: &Dwarf<'a>, is_shared: bool) -> Vec<HeaderOf<'a>> {
        let mut found = Vec::new();
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            let Some(offset) = header.debug_info_offset().map(|it| it.0) else { continue };
            if found.len() >= MAX_UNITS {
                break;
            }
            if let UnitType::Type { type_signature, type_offset } = header.type_() {
                let offset = offset.saturating_add(type_offset.0);
                self.signatures.insert(type_signature.0, EntryRef { is_shared, offset });
            }
            self.starts[usize::from(is_shared)].push(offset);
            found.push(HeaderOf { is_shared, offset, header });
        }
        found
    }

    /// For each of `addresses`, which are in order, the last variable that begins at or before it.
    pub(super) fn variables_at(&self, addresses: &[u64], bias: u64) -> Vec<SeenVariable> {
        let mut found: Vec<SeenVariable> = Vec::new();
        for address in addresses {
            let address = address.wrapping_sub(bias);
            let after = self.variables.partition_point(|it| it.address <= address);
            let Some(last) = after.checked_sub(1).map(|at| self.variables[at]) else { continue };
            if found.last() != Some(&last) {
                found.push(last);
            }
        }
        found
    }
}

impl HeaderOf<'_> {
    fn walk(&self, dwarf: &Dwarf<'_>, instructions: &[u64], seen: &mut SeenEntries) -> Result<()> {
        let abbreviations = dwarf.abbreviations(&self.header)?;
        let unit = bare_unit(self.header, abbreviations)?;
        let mut entries = unit.header.entries_raw(&unit.abbreviations, None)?;
        let mut scopes = OpenScopes::new(instructions);
        while !entries.is_empty() {
            let depth = entries.next_depth();
            let offset = self.offset.saturating_add(entries.next_offset().0);
            let entry = EntryRef { is_shared: self.is_shared, offset };
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            let attributes = abbreviation.attributes();
            scopes.leave(depth);
            match abbreviation.tag() {
                dw::DW_TAG_subprogram
                | dw::DW_TAG_inlined_subroutine
                | dw::DW_TAG_lexical_block
                    if scopes.are_wanted() && abbreviation.has_children() =>
                {
                    let code = ScopeEntry::read(dwarf, &unit, &mut entries, attributes)?;
                    scopes.enter(depth, &code);
                }
                tag if tag == dw::DW_TAG_variable
                    || tag == dw::DW_TAG_formal_parameter && scopes.code().is_some() =>
                {
                    for spec in attributes {
                        let attribute = entries.read_attribute(*spec)?;
                        if attribute.name() == dw::DW_AT_location
                            && let AttributeValue::Exprloc(location) = attribute.value()
                            && let Some(location) = location_of(dwarf, &unit, location)
                        {
                            seen.add(location, scopes.code(), entry);
                        }
                    }
                }
                dw::DW_TAG_structure_type | dw::DW_TAG_class_type => {
                    let (mut name, mut is_declaration) = (None, false);
                    for spec in attributes {
                        let attribute = entries.read_attribute(*spec)?;
                        match attribute.name() {
                            dw::DW_AT_name => name = Some(attribute.value()),
                            dw::DW_AT_declaration => is_declaration = true,
                            _ => {}
                        }
                    }
                    let name = name.filter(|_| !is_declaration);
                    let name = name.and_then(|name: Value<'_>| dwarf.attr_string(&unit, name).ok());
                    if let Some(name) = name {
                        seen.definitions.push((name_hash(name.slice()), entry));
                    }
                }
                _ => entries.skip_attributes(attributes)?,
            }
            if seen.is_full() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// A location that is an address, an offset in thread-local storage, or one in a frame.
fn location_of(
    dwarf: &Dwarf<'_>,
    unit: &Unit<'_>,
    location: Expression<Slice<'_>>,
) -> Option<SeenLocation> {
    const ADDR: u8 = 0x03;
    const CONST8U: u8 = 0x0e;
    const FBREG: u8 = 0x91;
    const FORM_TLS_ADDRESS: u8 = 0x9b;
    const ADDRX: u8 = 0xa1;
    const GNU_PUSH_TLS_ADDRESS: u8 = 0xe0;
    let bytes = location.0.slice();
    let mut rest = location.0;
    gimli::Reader::skip(&mut rest, 1).ok()?;
    match *bytes {
        [ADDR, ref address @ ..] => {
            Some(SeenLocation::Address(u64::from_le_bytes(address.try_into().ok()?)))
        }
        [CONST8U, ref offset @ .., FORM_TLS_ADDRESS | GNU_PUSH_TLS_ADDRESS] => {
            Some(SeenLocation::ThreadLocal(u64::from_le_bytes(offset.try_into().ok()?)))
        }
        [ADDRX, ..] => {
            let index = gimli::Reader::read_uleb128(&mut rest).ok()?;
            let index = gimli::DebugAddrIndex(usize::try_from(index).ok()?);
            let address = rest.is_empty().then(|| dwarf.address(unit, index).ok()).flatten()?;
            Some(SeenLocation::Address(address))
        }
        [FBREG, ..] => {
            let offset = gimli::Reader::read_sleb128(&mut rest).ok()?;
            rest.is_empty().then_some(SeenLocation::Frame(offset))
        }
        _ => None,
    }
}

/// A unit without its lines: the tables of lines are as large as the rest.
pub(super) fn bare_unit<'a>(
    header: UnitHeader<Slice<'a>>,
    abbreviations: Arc<gimli::Abbreviations>,
) -> Result<Unit<'a>> {
    let mut unit = empty_unit(header, abbreviations);
    let (mut strings, mut addresses) = (unit.str_offsets_base, unit.addr_base);
    let mut entries = unit.header.entries_raw(&unit.abbreviations, None)?;
    let abbreviation = entries.read_abbreviation()?.ok_or(Error::MissingUnitDie)?;
    for spec in abbreviation.attributes() {
        match entries.read_attribute(*spec)?.value() {
            AttributeValue::DebugStrOffsetsBase(base) => strings = base,
            AttributeValue::DebugAddrBase(base) => addresses = base,
            _ => {}
        }
    }
    (unit.str_offsets_base, unit.addr_base) = (strings, addresses);
    Ok(unit)
}
