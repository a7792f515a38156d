//! Functions, inlined functions and lines by address, from DWARF.
//!
//! An index of address ranges gives the unit of an address. For each unit in use, the ranges of its
//! functions and its line rows are kept; for each function in use, its inlined functions. addr2line
//! works in the same way, with two differences. It reads the line table headers and abbreviations
//! of all units first, which takes gigabytes of memory for a browser. It follows levels of inlined
//! functions by recursion, so a file can overflow the stack. Here each list and each depth has a
//! limit.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use gimli::{
    AttributeValue, DebugAddrBase, DebugInfoOffset, DebugLineOffset, DebugLocListsBase,
    DebugRngListsBase, DebugStrOffsetsBase, DwarfFileType, Error, Reader as _, ReaderOffset as _,
    Result, UnitHeader, UnitOffset, UnitType, constants as dw,
};

use super::FoundCall;
use super::reader::PieceReader;

type Dwarf = gimli::Dwarf<PieceReader>;
type DwarfUnit = gimli::Unit<PieceReader>;
type DwarfValue = AttributeValue<PieceReader>;

/// Maximum number of units of a file. Browsers have about 60,000.
const MAX_UNITS: usize = 1 << 20;
/// Maximum number of address ranges of all units.
const MAX_RANGES: usize = 2 << 20;
/// Maximum number of line rows of a unit. [`MAX_FUNCTIONS`] is the maximum number of ranges of its
/// functions.
const MAX_ROWS: usize = 4 << 20;
const MAX_FUNCTIONS: usize = 1 << 20;
/// Maximum number of ranges of inlined functions of a function. [`MAX_DEPTH`] is the maximum number
/// of levels of functions that are inlined into each other.
const MAX_INLINED: usize = 1 << 17;
const MAX_DEPTH: usize = 256;
/// Maximum number of references that are followed for a name.
const MAX_REFERENCES: usize = 16;

/// A range of addresses, and its value.
#[derive(Clone, Copy, Debug)]
struct DwarfRange<T> {
    begin: u64,
    end: u64,
    /// Largest end of this range and of all ranges before it: ranges may overlap.
    furthest: u64,
    what: T,
}

/// Ranges in order of their begin.
#[derive(Debug)]
struct Ranges<T>(Vec<DwarfRange<T>>);

impl<T: Copy> Ranges<T> {
    fn new(ranges: Vec<(gimli::Range, T)>) -> Ranges<T> {
        let all = ranges.into_iter().map(|(range, what)| {
            let gimli::Range { begin, end } = range;
            DwarfRange { begin, end, furthest: end, what }
        });
        let mut all: Vec<DwarfRange<T>> = all.collect();
        all.sort_by_key(|it| it.begin);
        let mut furthest = 0;
        for range in &mut all {
            furthest = furthest.max(range.end);
            range.furthest = furthest;
        }
        Ranges(all)
    }

    /// Values of the ranges that contain an address, in descending order of their begin.
    fn find(&self, address: u64) -> impl Iterator<Item = T> + '_ {
        let behind = self.0.partition_point(|it| it.begin <= address);
        let before = self.0.get(..behind).unwrap_or_default().iter().rev();
        before
            .take_while(move |it| address < it.furthest)
            .filter(move |it| address < it.end)
            .map(|it| it.what)
    }

    fn bytes(&self) -> u64 {
        (self.0.len() * size_of::<DwarfRange<T>>()) as u64
    }
}

/// A row of a DWARF line table: the source line of the code from an address on.
#[derive(Clone, Copy, Debug)]
struct LineRow {
    address: u64,
    file: u32,
    line: u32,
}

/// The lines of a unit.
#[derive(Debug, Default)]
struct UnitLines {
    header: Option<gimli::LineProgramHeader<PieceReader>>,
    rows: Vec<LineRow>,
    /// Range of the rows of each contiguous piece of code, and its end address; by address.
    sequences: Vec<(std::ops::Range<usize>, u64)>,
    /// Paths of files by number, cached.
    files: HashMap<u64, Option<Rc<str>>>,
}

/// An inlined function in one of its ranges of addresses, in the order of the file.
#[derive(Clone, Debug)]
struct Inlined {
    begin: u64,
    end: u64,
    depth: usize,
    names: FunctionNames,
    file: Option<u64>,
    line: u32,
}

/// Attributes that give a function's name.
#[derive(Clone, Debug, Default)]
struct FunctionNames {
    linkage: Option<DwarfValue>,
    plain: Option<DwarfValue>,
    /// Other entry that describes the function.
    origin: Option<DwarfValue>,
}

impl FunctionNames {
    fn note(&mut self, name: gimli::DwAt, value: DwarfValue) {
        match name {
            dw::DW_AT_linkage_name | dw::DW_AT_MIPS_linkage_name => self.linkage = Some(value),
            dw::DW_AT_name => self.plain = Some(value),
            dw::DW_AT_abstract_origin | dw::DW_AT_specification => self.origin = Some(value),
            _ => {}
        }
    }
}

/// A function, and what is inlined in it.
#[derive(Debug)]
struct DwarfFunction {
    name: Option<Rc<str>>,
    inlined: Vec<Inlined>,
}

/// A unit in use.
#[derive(Debug)]
struct Loaded {
    unit: DwarfUnit,
    functions: Ranges<UnitOffset<u64>>,
    lines: UnitLines,
    known: HashMap<u64, Rc<DwarfFunction>>,
}

/// The attributes of a unit as a whole.
#[derive(Debug, Default)]
struct UnitRoot {
    extent: CodeExtent,
    lines: Option<DebugLineOffset<u64>>,
}

/// The debugging information of a file.
#[derive(Debug)]
pub(super) struct DebugInfo {
    dwarf: Dwarf,
    ranges: Ranges<DebugInfoOffset<u64>>,
    /// Offsets of the units, in this file and in the supplementary file.
    units: Vec<u64>,
    shared_units: Vec<u64>,
    loaded: HashMap<u64, Loaded>,
    /// Units in which only names were looked up, by offset. The flag is true for units of the
    /// supplementary file.
    referred: HashMap<(bool, u64), Rc<DwarfUnit>>,
    bytes: u64,
}

impl DebugInfo {
    /// Parses the sections.
    pub(super) fn parse(dwarf: Dwarf) -> Result<DebugInfo> {
        let (ranges, units) = code_of_units(&dwarf, &ranges_by_unit(&dwarf)?)?;
        let mut shared_units = Vec::new();
        let mut headers = dwarf.sup().map(gimli::Dwarf::units);
        while let Some(Ok(Some(header))) = headers.as_mut().map(|it| it.next()) {
            shared_units.extend(header.debug_info_offset().map(|it| it.0));
            if shared_units.len() >= MAX_UNITS {
                return Err(Error::Io);
            }
        }
        let bytes = ranges.bytes() + ((units.len() + shared_units.len()) * 8) as u64;
        let (loaded, referred) = (HashMap::new(), HashMap::new());
        Ok(DebugInfo { dwarf, ranges, units, shared_units, loaded, referred, bytes })
    }

    /// Approximate memory, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The functions at an address, the innermost inlined one first. A function has no name if only
    /// its line is known. Empty if neither is known.
    pub(super) fn calls(&mut self, address: u64) -> Result<Vec<FoundCall>> {
        let units: Vec<DebugInfoOffset<u64>> = self.ranges.find(address).take(16).collect();
        for offset in units {
            let found = self.calls_in(offset.0, address)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    fn calls_in(&mut self, offset: u64, address: u64) -> Result<Vec<FoundCall>> {
        let mut loaded = match self.loaded.remove(&offset) {
            Some(loaded) => loaded,
            None => self.load(offset)?,
        };
        let found = self.calls_of(&mut loaded, address);
        self.loaded.insert(offset, loaded);
        found
    }

    fn calls_of(&mut self, loaded: &mut Loaded, address: u64) -> Result<Vec<FoundCall>> {
        let mut line = loaded.lines.find(address).map(|row| (u64::from(row.file), row.line));
        let Some(at) = loaded.functions.find(address).next() else {
            let line = line.and_then(|it| loaded.line(&self.dwarf, it));
            return Ok(line
                .map(|line| FoundCall { name: None, line: Some(line) })
                .into_iter()
                .collect());
        };
        let function = match loaded.known.get(&at.0) {
            Some(known) => Rc::clone(known),
            None => {
                let function = Rc::new(self.function(&loaded.unit, at)?);
                self.bytes += (size_of::<DwarfFunction>()
                    + function.inlined.len() * size_of::<Inlined>())
                    as u64;
                loaded.known.insert(at.0, Rc::clone(&function));
                function
            }
        };
        let mut chain: Vec<&Inlined> = Vec::new();
        for inlined in &function.inlined {
            if inlined.depth == chain.len() && (inlined.begin..inlined.end).contains(&address) {
                chain.push(inlined);
            }
        }
        let mut calls = Vec::with_capacity(chain.len() + 1);
        // The call line of an inlined function is in the function that contains it.
        for inlined in chain.into_iter().rev() {
            let name = self.name(&loaded.unit, &inlined.names)?;
            let place = line.and_then(|it| loaded.line(&self.dwarf, it));
            calls.push(FoundCall { name: name.map(|it| it.to_string()), line: place });
            line = inlined.file.map(|file| (file, inlined.line));
        }
        let place = line.and_then(|it| loaded.line(&self.dwarf, it));
        let name = function.name.as_deref().map(str::to_owned);
        calls.push(FoundCall { name, line: place });
        Ok(calls)
    }

    fn load(&mut self, offset: u64) -> Result<Loaded> {
        let dwarf = &self.dwarf;
        let header = dwarf.debug_info.header_from_offset(DebugInfoOffset(offset))?;
        let abbreviations = dwarf.abbreviations(&header)?;
        let (unit, root) = unit(dwarf, header, abbreviations)?;
        let mut ranges: Vec<(gimli::Range, UnitOffset<u64>)> = Vec::new();
        let mut entries = unit.header.entries_raw(&unit.abbreviations, None)?;
        while !entries.is_empty() {
            let at = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            if abbreviation.tag() != dw::DW_TAG_subprogram {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut extent = CodeExtent::default();
            for spec in abbreviation.attributes() {
                extent.note(&entries.read_attribute(*spec)?);
            }
            if extent.low.is_some() || extent.list.is_some() {
                let its = extent.ranges(dwarf, &unit)?;
                ranges.extend(its.into_iter().map(|range| (range, at)));
                if ranges.len() > MAX_FUNCTIONS {
                    return Err(Error::Io);
                }
            }
        }
        let lines = match root.lines {
            // Without lines the functions are still known.
            Some(offset) => UnitLines::read(dwarf, &unit, offset).unwrap_or_default(),
            None => UnitLines::default(),
        };
        let functions = Ranges::new(ranges);
        let abbreviations = 8 << 10;
        self.bytes +=
            functions.bytes() + (lines.rows.len() * size_of::<LineRow>()) as u64 + abbreviations;
        Ok(Loaded { unit, functions, lines, known: HashMap::new() })
    }

    fn function(&mut self, unit: &DwarfUnit, at: UnitOffset<u64>) -> Result<DwarfFunction> {
        let mut entries = unit.header.entries_raw(&unit.abbreviations, Some(at))?;
        let top = entries.next_depth();
        let mut names = FunctionNames::default();
        let abbreviation = entries.read_abbreviation()?.ok_or(Error::MissingUnitDie)?;
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec)?;
            names.note(attribute.name(), attribute.value());
        }
        let mut inlined: Vec<Inlined> = Vec::new();
        // Depths of the inlined functions that contain this entry, and of a nested function, which
        // is skipped.
        let mut within: Vec<isize> = Vec::new();
        let mut passed: Option<isize> = None;
        while !entries.is_empty() && entries.next_depth() > top {
            let depth = entries.next_depth();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while within.last().is_some_and(|it| *it >= depth) {
                within.pop();
            }
            passed = passed.filter(|it| depth > *it);
            let tag = abbreviation.tag();
            if passed.is_none() && tag == dw::DW_TAG_subprogram {
                passed = Some(depth);
            }
            if passed.is_some() || tag != dw::DW_TAG_inlined_subroutine {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut extent = CodeExtent::default();
            let (mut names, mut file, mut line) = (FunctionNames::default(), None, 0);
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec)?;
                extent.note(&attribute);
                match attribute.name() {
                    dw::DW_AT_call_file => {
                        if let AttributeValue::FileIndex(number) = attribute.value() {
                            // Before DWARF 5 files are numbered from 1.
                            file = Some(number)
                                .filter(|number| *number > 0 || unit.header.version() >= 5);
                        }
                    }
                    dw::DW_AT_call_line => {
                        let number = attribute.udata_value().and_then(|it| u32::try_from(it).ok());
                        line = number.unwrap_or(0);
                    }
                    name => names.note(name, attribute.value()),
                }
            }
            let level = within.len();
            if level >= MAX_DEPTH || inlined.len() >= MAX_INLINED {
                return Err(Error::Io);
            }
            for range in extent.ranges(&self.dwarf, unit)? {
                inlined.push(Inlined {
                    begin: range.begin,
                    end: range.end,
                    depth: level,
                    names: names.clone(),
                    file,
                    line,
                });
            }
            within.push(depth);
        }
        let name = self.name(unit, &names)?;
        Ok(DwarfFunction { name, inlined })
    }

    /// The name of a function: the linkage name, if there is one.
    fn name(&mut self, unit: &DwarfUnit, names: &FunctionNames) -> Result<Option<Rc<str>>> {
        let mut names = names.clone();
        let mut referred: Option<Rc<DwarfUnit>> = None;
        let mut is_shared = false;
        for _ in 0..MAX_REFERENCES {
            let from = referred.as_deref().unwrap_or(unit);
            let dwarf = if is_shared { self.dwarf.sup() } else { Some(&self.dwarf) };
            let Some(dwarf) = dwarf else { return Ok(None) };
            if let Some(value) = names.linkage.or(names.plain) {
                let Ok(text) = dwarf.attr_string(from, value) else { return Ok(None) };
                return Ok(Some(text.to_string_lossy()?.into()));
            }
            let at = match names.origin {
                Some(AttributeValue::UnitRef(at)) => at,
                Some(AttributeValue::DebugInfoRef(at)) => {
                    let (unit, at) = self.refer(is_shared, at)?;
                    referred = Some(unit);
                    at
                }
                Some(AttributeValue::DebugInfoRefSup(at)) => {
                    let (unit, at) = self.refer(true, at)?;
                    (referred, is_shared) = (Some(unit), true);
                    at
                }
                _ => return Ok(None),
            };
            let unit = referred.as_deref().unwrap_or(unit);
            let mut entries = unit.header.entries_raw(&unit.abbreviations, Some(at))?;
            let abbreviation = entries.read_abbreviation()?.ok_or(Error::MissingUnitDie)?;
            names = FunctionNames::default();
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec)?;
                names.note(attribute.name(), attribute.value());
            }
        }
        Ok(None)
    }

    /// The unit that contains an entry, and the offset of the entry in the unit.
    fn refer(
        &mut self,
        is_shared: bool,
        at: DebugInfoOffset<u64>,
    ) -> Result<(Rc<DwarfUnit>, UnitOffset<u64>)> {
        let nowhere = || Error::NoEntryAtGivenOffset(at.0);
        let (units, dwarf) = match is_shared {
            true => (&self.shared_units, self.dwarf.sup().ok_or_else(nowhere)?),
            false => (&self.units, &self.dwarf),
        };
        let behind = units.partition_point(|it| *it <= at.0);
        let offset = *behind.checked_sub(1).and_then(|it| units.get(it)).ok_or_else(nowhere)?;
        let unit = match self.referred.get(&(is_shared, offset)) {
            Some(unit) => Rc::clone(unit),
            None => {
                let header = dwarf.debug_info.header_from_offset(DebugInfoOffset(offset))?;
                let abbreviations = dwarf.abbreviations(&header)?;
                let unit = Rc::new(unit(dwarf, header, abbreviations)?.0);
                self.bytes += 8 << 10;
                self.referred.insert((is_shared, offset), Rc::clone(&unit));
                unit
            }
        };
        let at = at.to_unit_offset(&unit.header).ok_or_else(nowhere)?;
        Ok((unit, at))
    }
}

/// The address ranges in `.debug_aranges`, by the offset of their unit.
fn ranges_by_unit(dwarf: &Dwarf) -> Result<HashMap<u64, Vec<gimli::Range>>> {
    let mut by_unit: HashMap<u64, Vec<gimli::Range>> = HashMap::new();
    let mut headers = dwarf.debug_aranges.headers();
    let mut count = 0;
    while let Ok(Some(header)) = headers.next() {
        let ranges = by_unit.entry(header.debug_info_offset().0).or_default();
        let mut entries = header.entries();
        while let Some(entry) = entries.next().transpose() {
            count += 1;
            if count > MAX_RANGES {
                return Err(Error::Io);
            }
            ranges.extend(entry.ok().filter(|it| it.length() != 0).map(|it| it.range()));
        }
    }
    Ok(by_unit)
}

/// The address ranges of all units that contain code, and the offsets of all units. The ranges are
/// those of `known`, otherwise those of the unit itself.
fn code_of_units(
    dwarf: &Dwarf,
    known: &HashMap<u64, Vec<gimli::Range>>,
) -> Result<(Ranges<DebugInfoOffset<u64>>, Vec<u64>)> {
    let (mut ranges, mut units) = (Vec::new(), Vec::new());
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let Some(offset) = header.debug_info_offset() else { continue };
        if units.len() >= MAX_UNITS {
            return Err(Error::Io);
        }
        units.push(offset.0);
        let is_code = !matches!(
            header.type_(),
            UnitType::Type { .. } | UnitType::SplitType { .. } | UnitType::Partial
        );
        if !is_code {
            continue;
        }
        if let Some(known) = known.get(&offset.0) {
            ranges.extend(known.iter().map(|range| (*range, offset)));
            continue;
        }
        // A unit that cannot be parsed does not hide the others.
        let of_unit = dwarf
            .abbreviations(&header)
            .and_then(|abbreviations| unit(dwarf, header, abbreviations))
            .and_then(|(unit, root)| root.extent.ranges(dwarf, &unit));
        ranges.extend(of_unit.unwrap_or_default().into_iter().map(|range| (range, offset)));
        if ranges.len() > MAX_RANGES {
            return Err(Error::Io);
        }
    }
    Ok((Ranges::new(ranges), units))
}

impl Loaded {
    /// The path of a file and a line.
    fn line(&mut self, dwarf: &Dwarf, (file, line): (u64, u32)) -> Option<(String, u32)> {
        let UnitLines { header, files, .. } = &mut self.lines;
        let header = header.as_ref()?;
        let unit = &self.unit;
        let path = files
            .entry(file)
            .or_insert_with(|| Some(path(dwarf, unit, header, header.file(file)?).ok()?.into()));
        Some((path.as_deref()?.to_owned(), line))
    }
}

impl UnitLines {
    fn read(dwarf: &Dwarf, unit: &DwarfUnit, offset: DebugLineOffset<u64>) -> Result<UnitLines> {
        let size = unit.header.address_size();
        let program = dwarf.debug_line.program(offset, size, unit.comp_dir.clone(), None)?;
        let mut lines = UnitLines::default();
        let mut rows = program.rows();
        let mut first = 0;
        while let Some((_, row)) = rows.next_row()? {
            let address = row.address();
            if row.end_sequence() {
                if lines.rows.len() > first {
                    lines.sequences.push((first..lines.rows.len(), address));
                }
                first = lines.rows.len();
                continue;
            }
            let file = u32::try_from(row.file_index()).unwrap_or(u32::MAX);
            let line = row.line().map_or(0, |line| u32::try_from(line.get()).unwrap_or(0));
            let row = LineRow { address, file, line };
            // Among rows of one address the last is valid.
            match lines.rows.get_mut(first..).and_then(<[LineRow]>::last_mut) {
                Some(last) if last.address == address => *last = row,
                _ => lines.rows.push(row),
            }
            if lines.rows.len() > MAX_ROWS {
                return Err(Error::Io);
            }
        }
        // A sequence without an end may have a wrong range.
        lines.rows.truncate(first);
        lines.rows.shrink_to_fit();
        let UnitLines { rows: all, sequences, .. } = &mut lines;
        sequences.sort_by_key(|(rows, _)| all.get(rows.start).map_or(0, |row| row.address));
        lines.header = Some(rows.header().clone());
        Ok(lines)
    }

    fn find(&self, address: u64) -> Option<LineRow> {
        let begin = |rows: &std::ops::Range<usize>| self.rows.get(rows.start).map(|it| it.address);
        let behind = self.sequences.partition_point(|(rows, _)| begin(rows) <= Some(address));
        let (rows, end) = self.sequences.get(behind.checked_sub(1)?)?;
        let rows = self.rows.get(rows.clone()).filter(|_| address < *end)?;
        let behind = rows.partition_point(|row| row.address <= address);
        rows.get(behind.checked_sub(1)?).copied()
    }
}

/// Returns a unit before any of its attributes is read. [`gimli::Unit::new`] also reads the header
/// of the line table, and line tables are as large as all other information together.
pub(crate) fn empty_unit<R: gimli::Reader>(
    header: UnitHeader<R>,
    abbreviations: Arc<gimli::Abbreviations>,
) -> gimli::Unit<R> {
    let (encoding, main) = (header.encoding(), DwarfFileType::Main);
    gimli::Unit {
        abbreviations,
        name: None,
        comp_dir: None,
        low_pc: 0,
        str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(encoding, main),
        addr_base: DebugAddrBase(R::Offset::from_u8(0)),
        loclists_base: DebugLocListsBase::default_for_encoding_and_file(encoding, main),
        rnglists_base: DebugRngListsBase::default_for_encoding_and_file(encoding, main),
        line_program: None,
        dwo_id: None,
        header,
    }
}

/// A unit, without its lines.
fn unit(
    dwarf: &Dwarf,
    header: UnitHeader<PieceReader>,
    abbreviations: Arc<gimli::Abbreviations>,
) -> Result<(DwarfUnit, UnitRoot)> {
    let mut unit = empty_unit(header, abbreviations);
    let (mut root, mut folder) = (UnitRoot::default(), None);
    let mut entries = unit.header.entries_raw(&unit.abbreviations, None)?;
    let abbreviation = entries.read_abbreviation()?.ok_or(Error::MissingUnitDie)?;
    for spec in abbreviation.attributes() {
        let attribute = entries.read_attribute(*spec)?;
        root.extent.note(&attribute);
        match (attribute.name(), attribute.value()) {
            (dw::DW_AT_comp_dir, value) => folder = Some(value),
            (dw::DW_AT_stmt_list, AttributeValue::DebugLineRef(at)) => root.lines = Some(at),
            (dw::DW_AT_str_offsets_base, AttributeValue::DebugStrOffsetsBase(base)) => {
                unit.str_offsets_base = base;
            }
            (
                dw::DW_AT_addr_base | dw::DW_AT_GNU_addr_base,
                AttributeValue::DebugAddrBase(base),
            ) => unit.addr_base = base,
            (
                dw::DW_AT_rnglists_base | dw::DW_AT_GNU_ranges_base,
                AttributeValue::DebugRngListsBase(base),
            ) => unit.rnglists_base = base,
            _ => {}
        }
    }
    drop(entries);
    // `DW_AT_comp_dir` and `DW_AT_low_pc` may need the base offsets that were set above.
    unit.comp_dir = folder.and_then(|value| dwarf.attr_string(&unit, value).ok());
    if let Some(low) = root.extent.low.clone().map(|value| dwarf.attr_address(&unit, value)) {
        unit.low_pc = low?.unwrap_or(0);
    }
    Ok((unit, root))
}

/// The attributes of an entry that give the addresses of its code.
#[derive(Debug, Default)]
struct CodeExtent {
    low: Option<DwarfValue>,
    high: Option<DwarfValue>,
    list: Option<DwarfValue>,
}

impl CodeExtent {
    fn note(&mut self, attribute: &gimli::Attribute<PieceReader>) {
        match attribute.name() {
            dw::DW_AT_low_pc => self.low = Some(attribute.value()),
            dw::DW_AT_high_pc => self.high = Some(attribute.value()),
            dw::DW_AT_ranges => self.list = Some(attribute.value()),
            _ => {}
        }
    }

    fn ranges(self, dwarf: &Dwarf, unit: &DwarfUnit) -> Result<Vec<gimli::Range>> {
        let CodeExtent { low, high, list } = self;
        let mut ranges = Vec::new();
        let mut add = |begin: u64, end: u64| {
            if begin < end {
                ranges.push(gimli::Range { begin, end });
            }
            ranges.len() <= MAX_RANGES
        };
        let list = list.map(|value| dwarf.attr_ranges_offset(unit, value)).transpose()?.flatten();
        if let Some(list) = list {
            let mut entries = dwarf.ranges(unit, list)?;
            while let Some(range) = entries.next()? {
                if !add(range.begin, range.end) {
                    return Err(Error::Io);
                }
            }
            return Ok(ranges);
        }
        let address = |value: Option<DwarfValue>| {
            value.map(|value| dwarf.attr_address(unit, value)).transpose().map(Option::flatten)
        };
        let length = high.as_ref().and_then(AttributeValue::udata_value);
        if let Some(low) = address(low)? {
            let end = match address(high)? {
                Some(end) => end,
                // `DW_AT_high_pc` is a length.
                None => low.wrapping_add(length.unwrap_or(0)),
            };
            add(low, end);
        }
        Ok(ranges)
    }
}

/// The path of a source file: the folder that the compiler ran in, a folder of the table, and a
/// name.
fn path(
    dwarf: &Dwarf,
    unit: &DwarfUnit,
    header: &gimli::LineProgramHeader<PieceReader>,
    file: &gimli::FileEntry<PieceReader>,
) -> Result<String> {
    let mut path = match &unit.comp_dir {
        Some(folder) => folder.to_string_lossy()?.into_owned(),
        None => String::new(),
    };
    let mut push = |part: DwarfValue| -> Result<()> {
        let part = dwarf.attr_string(unit, part)?;
        let part = part.to_string_lossy()?;
        if part.starts_with('/') {
            path.clear();
        } else if !path.is_empty() && !path.ends_with('/') {
            path.push('/');
        }
        path.push_str(&part);
        Ok(())
    };
    // Folder 0 is the one that the compiler ran in.
    if let Some(folder) = file.directory(header).filter(|_| file.directory_index() != 0) {
        push(folder)?;
    }
    push(file.path_name())?;
    Ok(path)
}
