//! Types from a variable on: the type of the variable, and breadth first the types that its
//! pointers refer to.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

use gimli::{DebugInfoOffset, DwTag, constants as dw};
use pagewise_model::Name;
use pagewise_model::data_types::{DataForm, DataType, PointerField};

use super::entry::{EntryReader, TypeEntry};
use super::walk::{WalkedUnits, bare_unit};
use super::{Dwarf, EntryRef, Unit, name_hash, name_of};

/// Maximum number of types of a file.
const MAX_TYPES: usize = 1 << 15;
/// Maximum number of pointers of a type. [`MAX_POINTERS_OF_ALL`] is the maximum for all types of a
/// file.
const MAX_POINTERS: usize = 1 << 10;
const MAX_POINTERS_OF_ALL: usize = 1 << 18;
/// Maximum depth of structures inside of each other, and of pointers to pointers.
const MAX_DEPTH: u32 = 16;
/// Maximum number of typedefs and qualifiers of a type.
const MAX_ALIASES: u32 = 32;
/// Maximum number of units whose abbreviations are kept.
const MAX_UNITS_KEPT: usize = 256;
/// Maximum number of elements of an array in an array that are kept separately.
const MAX_NESTED: u64 = 64;
/// Maximum number of definitions of a name that are compared.
const MAX_SAME_NAME: usize = 64;

/// Names of structures at the beginning of objects. Libraries link their nodes by these structures,
/// so a pointer to such a structure does not show the type of the node.
const ONLY_BEGINNINGS: [&[u8]; 6] = [
    b"_Rb_tree_node_base",
    b"_List_node_base",
    b"_Hash_node_base",
    b"_Fwd_list_node_base",
    b"list_head",
    b"hlist_node",
];
/// Names of members that point behind the last element of a vector.
const ENDS: [&[u8]; 4] = [b"_M_finish", b"_M_end_of_storage", b"__end_", b"__end_cap_"];

/// Extensions of source files in languages with one file per compilation unit.
const SOURCES: [&[u8]; 8] = [b".c", b".cc", b".cpp", b".cxx", b".C", b".c++", b".m", b".mm"];

/// A variable of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DescribedVariable {
    pub(super) name: Name,
    /// Source file, if other source files cannot name the variable.
    pub(super) source: Option<Name>,
    pub(super) size: u64,
    pub(super) data_type: u32,
}

/// An entry without its typedefs and qualifiers.
struct PeeledEntry<'a> {
    at: EntryRef,
    entry: TypeEntry<'a>,
    /// The name that a typedef gives to a type without a name.
    alias: Option<&'a [u8]>,
}

/// Finds types.
pub(super) struct Resolver<'a, 'u> {
    dwarf: &'u Dwarf<'a>,
    walked: WalkedUnits,
    deadline: Instant,
    units: HashMap<(bool, usize), Rc<Unit<'a>>>,
    types: Vec<DataType>,
    by_entry: HashMap<EntryRef, Option<u32>>,
    /// Indices of types by name, size, and hash of the members: each source file has its own entry
    /// of a type.
    by_shape: HashMap<(Name, u64, u64), u32>,
    pointers: HashMap<Option<u32>, u32>,
    pending: VecDeque<(u32, EntryRef)>,
    pointers_left: usize,
}

impl<'a, 'u> Resolver<'a, 'u> {
    pub(super) fn new(
        dwarf: &'u Dwarf<'a>,
        walked: WalkedUnits,
        deadline: Instant,
    ) -> Resolver<'a, 'u> {
        Resolver {
            dwarf,
            walked,
            deadline,
            units: HashMap::new(),
            types: Vec::new(),
            by_entry: HashMap::new(),
            by_shape: HashMap::new(),
            pointers: HashMap::new(),
            pending: VecDeque::new(),
            pointers_left: MAX_POINTERS_OF_ALL,
        }
    }

    /// The name, size and type of a variable.
    pub(super) fn variable(&mut self, at: EntryRef) -> Option<DescribedVariable> {
        let entry = self.entry(at)?;
        let origin = entry.origin.and_then(|origin| self.entry(origin));
        let is_external =
            entry.is_external || origin.as_ref().is_some_and(|origin| origin.is_external);
        let (name, of) = origin.map_or((None, None), |origin| (origin.name, origin.of));
        let name = entry.name.or(name)?;
        let data_type = self.type_of(entry.of.or(of)?, 0)?;
        let size = self.types.get(data_type as usize)?.size;
        let source = if is_external { None } else { self.source_of(at) };
        Some(DescribedVariable { name: name_of(name), source, size, data_type })
    }

    /// The name of the source file that an entry is from.
    fn source_of(&mut self, at: EntryRef) -> Option<Name> {
        let (start, unit) = self.unit(at)?;
        let entries = unit.header.entries_raw(&unit.abbreviations, None).ok()?;
        let offset = start.checked_add(entries.next_offset().0)?;
        let name = self.entry(EntryRef { offset, ..at })?.name?;
        let base = name.rsplit(|byte| *byte == b'/').next()?;
        SOURCES.iter().any(|end| base.ends_with(end)).then(|| name_of(base))
    }

    /// Returns the type of a class by its name without namespaces, if only one class has the name.
    pub(super) fn class(&mut self, name: &Name) -> Option<u32> {
        let plain = last_part(name.as_bytes());
        let at = self.definition(plain)?;
        self.type_of(at, 0)
    }

    /// Returns all types, with the types that their pointers refer to.
    pub(super) fn finish(mut self) -> Vec<DataType> {
        while let Some((index, at)) = self.pending.pop_front() {
            if Instant::now() > self.deadline {
                break;
            }
            self.complete(index, at);
        }
        self.types
    }

    fn complete(&mut self, index: u32, at: EntryRef) {
        let Some(entry) = self.entry(at) else { return };
        let mut fields = Vec::new();
        self.fields(&entry, 0, &[], None, 0, &mut fields);
        if fields.len() > MAX_POINTERS || fields.len() > self.pointers_left {
            return;
        }
        self.pointers_left -= fields.len();
        // A packed structure can have pointers at unaligned offsets, which are not followed.
        fields.retain(|field| field.offset % 8 == 0 && field.stride % 8 == 0);
        fields.sort_by_key(|field| field.offset);
        let first = entry.members.iter().find(|member| member.offset == 0);
        let first = first.and_then(|member| self.structure(member.of));
        let last = entry.members.iter().max_by_key(|member| member.offset);
        let is_open_ended = last.is_some_and(|member| self.is_open(member.of));
        if let Some(data_type) = self.types.get_mut(index as usize) {
            data_type.pointers = fields;
            data_type.first = first.filter(|&first| first != index);
            data_type.is_open_ended = is_open_ended;
        }
    }

    /// The type of an entry, if it is a structure.
    fn structure(&mut self, at: EntryRef) -> Option<u32> {
        let found = self.type_of(at, 0)?;
        (self.types.get(found as usize)?.form == DataForm::Structure).then_some(found)
    }

    fn is_open(&mut self, at: EntryRef) -> bool {
        let peeled = self.peel(at);
        peeled.is_some_and(|it| {
            it.entry.tag == dw::DW_TAG_array_type && it.entry.count.unwrap_or(0) == 0
        })
    }

    /// The index of the type at an entry. `None` for unions, functions, `void`, types that are only
    /// declared, and beyond the limits.
    fn type_of(&mut self, at: EntryRef, depth: u32) -> Option<u32> {
        if let Some(&known) = self.by_entry.get(&at) {
            return known;
        }
        if depth > MAX_DEPTH || self.types.len() >= MAX_TYPES {
            return None;
        }
        let found = self.make(at, depth);
        self.by_entry.insert(at, found);
        found
    }

    fn make(&mut self, at: EntryRef, depth: u32) -> Option<u32> {
        let PeeledEntry { at, entry, alias } = self.peel(at)?;
        if let Some(Some(known)) = self.by_entry.get(&at) {
            return Some(*known);
        }
        let name = entry.name.or(alias).unwrap_or(b"(anonymous)");
        match entry.tag {
            dw::DW_TAG_base_type | dw::DW_TAG_enumeration_type => {
                self.shaped(name_of(name), entry.size?, 0, DataForm::Scalar)
            }
            dw::DW_TAG_pointer_type
            | dw::DW_TAG_reference_type
            | dw::DW_TAG_rvalue_reference_type => {
                let target = entry.of.and_then(|of| self.type_of(of, depth + 1));
                self.pointer(target)
            }
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type if !entry.is_declaration => {
                if ONLY_BEGINNINGS.contains(&name) {
                    return None;
                }
                let size = entry.size.filter(|size| *size > 0)?;
                let before = self.types.len();
                let shape = self.shape(&entry);
                let made = self.shaped(name_of(name), size, shape, DataForm::Structure)?;
                if self.types.len() > before {
                    self.pending.push_back((made, at));
                }
                self.by_entry.insert(at, Some(made));
                Some(made)
            }
            dw::DW_TAG_array_type => {
                let of = self.type_of(entry.of?, depth + 1)?;
                let element = self.types.get(of as usize)?;
                let count = entry.count.filter(|count| *count > 0)?;
                let size = element.size.checked_mul(count)?;
                let name = format!("{}[{count}]", String::from_utf8_lossy(element.name.as_bytes()));
                let pointers = repeated(&element.pointers, count, element.size);
                let is_complete = element.form == DataForm::Pointer;
                let made = self.shaped(Name::from(name.as_str()), size, 1, DataForm::Array)?;
                if is_complete {
                    self.types[made as usize].pointers = pointers;
                } else {
                    self.pending.push_back((made, at));
                }
                Some(made)
            }
            _ => None,
        }
    }

    /// Hash of the names, offsets and types of members.
    fn shape(&mut self, entry: &TypeEntry<'a>) -> u64 {
        let mut all = entry.members.len() as u64;
        for member in &entry.members {
            all = all.rotate_left(7) ^ name_hash(member.name) ^ member.offset;
            if let Some(of) = self.entry(member.of) {
                let tag_and_size = u64::from(of.tag.0) << 32 ^ of.size.unwrap_or(0);
                let name = of.name.unwrap_or_default();
                all = all.rotate_left(7) ^ name_hash(name) ^ tag_and_size;
            }
        }
        all
    }

    fn shaped(&mut self, name: Name, size: u64, shape: u64, form: DataForm) -> Option<u32> {
        let key = (name, size, shape);
        if let Some(&known) = self.by_shape.get(&key) {
            return Some(known);
        }
        let name = key.0.clone();
        let made = self.push(DataType { name, size, form, ..DataType::default() })?;
        self.by_shape.insert(key, made);
        Some(made)
    }

    fn pointer(&mut self, target: Option<u32>) -> Option<u32> {
        if let Some(&known) = self.pointers.get(&target) {
            return Some(known);
        }
        let name = target.and_then(|it| self.types.get(it as usize)).map(|it| &it.name);
        let name = name.map_or("void".into(), |it| String::from_utf8_lossy(it.as_bytes()));
        let space = if name.ends_with('*') { "" } else { " " };
        let name = Name::from(format!("{name}{space}*").as_str());
        let member = Name::default();
        let pointers = vec![PointerField { offset: 0, count: 1, stride: 8, member, target }];
        let form = DataForm::Pointer;
        let made = self.push(DataType { name, size: 8, form, pointers, ..DataType::default() })?;
        self.pointers.insert(target, made);
        Some(made)
    }

    fn push(&mut self, data_type: DataType) -> Option<u32> {
        let index =
            u32::try_from(self.types.len()).ok().filter(|_| self.types.len() < MAX_TYPES)?;
        self.types.push(data_type);
        Some(index)
    }

    /// Collects the pointers of an object at `base`. `elements` is the element type of a Rust
    /// vector, and replaces the byte type to which the vector's pointer refers.
    fn fields(
        &mut self,
        entry: &TypeEntry<'a>,
        base: u64,
        path: &[u8],
        elements: Option<EntryRef>,
        depth: u32,
        into: &mut Vec<PointerField>,
    ) {
        if depth > MAX_DEPTH || into.len() > MAX_POINTERS {
            return;
        }
        match entry.tag {
            dw::DW_TAG_pointer_type
            | dw::DW_TAG_reference_type
            | dw::DW_TAG_rvalue_reference_type => {
                let target = entry.of.and_then(|of| self.type_of(of, 0));
                let is_bytes = |it: &DataType| it.form == DataForm::Scalar && it.size == 1;
                let is_bytes =
                    target.and_then(|it| self.types.get(it as usize)).is_some_and(is_bytes);
                let target = match elements.filter(|_| is_bytes) {
                    Some(elements) => self.type_of(elements, 0),
                    None => target,
                };
                let member = name_of(path);
                into.push(PointerField { offset: base, count: 1, stride: 8, member, target });
            }
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type => {
                let is_vector = entry.name.is_some_and(|name| name.starts_with(b"RawVec<"));
                let elements = entry.parameter.filter(|_| is_vector).or(elements);
                for member in &entry.members {
                    if ENDS.contains(&member.name) {
                        continue;
                    }
                    let Some(offset) = base.checked_add(member.offset) else { continue };
                    let Some(peeled) = self.peel(member.of) else { continue };
                    let path = joined(path, member.name);
                    self.fields(&peeled.entry, offset, &path, elements, depth + 1, into);
                }
            }
            dw::DW_TAG_array_type => {
                let Some(count) = entry.count.filter(|count| *count > 0) else { return };
                let Some(peeled) = entry.of.and_then(|of| self.peel(of)) else { return };
                let Some(size) = self.size_of(&peeled.entry, 0) else { return };
                let mut of_one = Vec::new();
                self.fields(&peeled.entry, 0, path, elements, depth + 1, &mut of_one);
                for mut field in repeated(&of_one, count, size) {
                    if let Some(offset) = field.offset.checked_add(base) {
                        field.offset = offset;
                        into.push(field);
                    }
                }
            }
            _ => {}
        }
    }

    fn size_of(&mut self, entry: &TypeEntry<'a>, depth: u32) -> Option<u64> {
        match entry.tag {
            dw::DW_TAG_pointer_type
            | dw::DW_TAG_reference_type
            | dw::DW_TAG_rvalue_reference_type => Some(entry.size.unwrap_or(8)),
            dw::DW_TAG_array_type if depth < MAX_DEPTH => {
                let of = self.peel(entry.of?)?;
                self.size_of(&of.entry, depth + 1)?.checked_mul(entry.count?)
            }
            _ => entry.size,
        }
        .filter(|size| *size > 0)
    }

    /// Returns the entry without typedefs and qualifiers, and the definition in place of a
    /// declaration.
    fn peel(&mut self, at: EntryRef) -> Option<PeeledEntry<'a>> {
        const TRANSPARENT: [DwTag; 6] = [
            dw::DW_TAG_typedef,
            dw::DW_TAG_const_type,
            dw::DW_TAG_volatile_type,
            dw::DW_TAG_restrict_type,
            dw::DW_TAG_atomic_type,
            dw::DW_TAG_immutable_type,
        ];
        let (mut at, mut alias) = (at, None);
        for _ in 0..MAX_ALIASES {
            let entry = self.entry(at)?;
            if TRANSPARENT.contains(&entry.tag) {
                if entry.tag == dw::DW_TAG_typedef {
                    alias = entry.name;
                }
                at = entry.of?;
                continue;
            }
            if !entry.is_declaration {
                return Some(PeeledEntry { at, entry, alias });
            }
            let by_signature = entry.signature.and_then(|it| self.walked.signatures.get(&it));
            at = match by_signature {
                Some(&at) => at,
                None => self.definition(entry.name?)?,
            };
        }
        None
    }

    /// The definition of a structure by its name. `None` if structures of different sizes or
    /// members have the name.
    fn definition(&mut self, name: &[u8]) -> Option<EntryRef> {
        let hash = name_hash(name);
        let first = self.walked.definitions.partition_point(|it| it.0 < hash);
        let same = self.walked.definitions[first..].iter().take_while(|it| it.0 == hash);
        let same: Vec<EntryRef> = same.take(MAX_SAME_NAME).map(|it| it.1).collect();
        let mut found: Option<(EntryRef, u64, u64)> = None;
        for at in same {
            let Some(entry) = self.entry(at).filter(|it| it.name == Some(name)) else { continue };
            let (size, shape) = (entry.size.unwrap_or(0), self.shape(&entry));
            match found {
                None => found = Some((at, size, shape)),
                Some((_, known_size, known_shape))
                    if (known_size, known_shape) == (size, shape) => {}
                Some(_) => return None,
            }
        }
        found.map(|it| it.0)
    }

    /// Returns the entry at an offset. Returns `None` after the deadline, because nested structures
    /// can be numerous.
    fn entry(&mut self, at: EntryRef) -> Option<TypeEntry<'a>> {
        if Instant::now() > self.deadline {
            return None;
        }
        let (start, unit) = self.unit(at)?;
        let offset = DebugInfoOffset(at.offset).to_unit_offset(&unit.header)?;
        let dwarf = self.dwarf_of(at)?;
        let reader = EntryReader { dwarf, unit: &unit, start, is_shared: at.is_shared };
        reader.read(offset).ok()
    }

    fn dwarf_of(&self, at: EntryRef) -> Option<&'u Dwarf<'a>> {
        if at.is_shared { self.dwarf.sup() } else { Some(self.dwarf) }
    }

    /// The unit that an entry is in, and its offset.
    fn unit(&mut self, at: EntryRef) -> Option<(usize, Rc<Unit<'a>>)> {
        let starts = &self.walked.starts[usize::from(at.is_shared)];
        let after = starts.partition_point(|start| *start <= at.offset);
        let start = *starts.get(after.checked_sub(1)?)?;
        let key = (at.is_shared, start);
        if let Some(unit) = self.units.get(&key) {
            return Some((start, Rc::clone(unit)));
        }
        let dwarf = self.dwarf_of(at)?;
        let header = dwarf.debug_info.header_from_offset(DebugInfoOffset(start)).ok()?;
        let abbreviations = dwarf.abbreviations(&header).ok()?;
        let unit = Rc::new(bare_unit(header, abbreviations).ok()?);
        if self.units.len() >= MAX_UNITS_KEPT {
            self.units.clear();
        }
        self.units.insert(key, Rc::clone(&unit));
        Some((start, unit))
    }
}

fn joined(path: &[u8], member: &[u8]) -> Vec<u8> {
    match (path, member) {
        (_, []) => path.to_vec(),
        ([], _) => member.to_vec(),
        _ => [path, b".", member].concat(),
    }
}

/// The pointers of `count` elements.
fn repeated(of_one: &[PointerField], count: u64, size: u64) -> Vec<PointerField> {
    let mut all = Vec::new();
    for field in of_one {
        if field.count == 1 {
            all.push(PointerField { count, stride: size, ..field.clone() });
            continue;
        }
        for element in 0..count.min(MAX_NESTED) {
            let at = element.checked_mul(size).and_then(|at| at.checked_add(field.offset));
            if let Some(offset) = at
                && all.len() <= MAX_POINTERS
            {
                all.push(PointerField { offset, ..field.clone() });
            }
        }
    }
    all
}

/// The name without namespaces: `b<c::d>` of `a::b<c::d>`.
fn last_part(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|byte| *byte == b'<').unwrap_or(name.len());
    let start = name[..end].windows(2).rposition(|pair| pair == b"::").map_or(0, |at| at + 2);
    &name[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_of_elements_are_one_run() {
        let field = |offset, count, stride| PointerField {
            offset,
            count,
            stride,
            member: "next".into(),
            target: Some(0),
        };
        assert_eq!(repeated(&[field(8, 1, 8)], 3, 24), [field(8, 3, 24)]);
        assert_eq!(repeated(&[field(0, 2, 8)], 2, 16), [field(0, 2, 8), field(16, 2, 8)]);
    }

    #[test]
    fn namespaces_are_left_out() {
        assert_eq!(last_part(b"a::b<c::d>"), b"b<c::d>");
        assert_eq!(last_part(b"plain"), b"plain");
    }
}
