//! One entry of debug information with its members.

use gimli::{AttributeValue, DwAt, DwTag, EntriesRaw, Error, Result, UnitOffset, constants as dw};

use super::{Dwarf, EntryRef, Slice, Unit, Value};

/// Maximum number of members of a structure.
const MAX_MEMBERS: usize = 5000;
/// Maximum number of entries that are read below an entry. A class with thousands of functions has
/// more entries for functions than for members.
const MAX_BELOW: usize = 1 << 18;

/// An entry.
#[derive(Clone, Debug)]
pub(super) struct TypeEntry<'a> {
    pub(super) tag: DwTag,
    pub(super) name: Option<&'a [u8]>,
    /// Type of a variable, target of a pointer, elements of an array.
    pub(super) of: Option<EntryRef>,
    pub(super) size: Option<u64>,
    pub(super) is_declaration: bool,
    /// True if other source files can name the entry.
    pub(super) is_external: bool,
    /// Signature of a type that has a unit of its own.
    pub(super) signature: Option<u64>,
    /// Declaration or abstract entry that this entry completes.
    pub(super) origin: Option<EntryRef>,
    pub(super) members: Vec<MemberEntry<'a>>,
    /// Number of elements of an array; `None` if the array does not state it.
    pub(super) count: Option<u64>,
    /// Type parameter `T` of a Rust type.
    pub(super) parameter: Option<EntryRef>,
}

impl TypeEntry<'_> {
    const fn of_tag(tag: DwTag) -> Self {
        TypeEntry {
            tag,
            name: None,
            of: None,
            size: None,
            is_declaration: false,
            is_external: false,
            signature: None,
            origin: None,
            members: Vec::new(),
            count: None,
            parameter: None,
        }
    }
}

/// A member or a base class.
#[derive(Clone, Debug)]
pub(super) struct MemberEntry<'a> {
    pub(super) name: &'a [u8],
    pub(super) of: EntryRef,
    pub(super) offset: u64,
}

/// An enumeration whose variants have data, as in Rust.
#[derive(Debug, Default)]
struct VariantPart<'a> {
    depth: isize,
    /// Offset of the number that distinguishes the variants.
    selector: Option<u64>,
    variants: Vec<MemberEntry<'a>>,
}

/// The attributes of an entry below another.
#[derive(Default)]
struct BelowEntry<'a> {
    name: Option<&'a [u8]>,
    of: Option<EntryRef>,
    offset: Option<u64>,
    count: Option<u64>,
    is_static: bool,
}

/// The unit that attributes refer to.
pub(super) struct EntryReader<'a, 'u> {
    pub(super) dwarf: &'u Dwarf<'a>,
    pub(super) unit: &'u Unit<'a>,
    /// Offset of the unit.
    pub(super) start: usize,
    pub(super) is_shared: bool,
}

impl<'a> EntryReader<'a, '_> {
    /// Reads the entry at an offset of the unit, and its members.
    pub(super) fn read(&self, at: UnitOffset) -> Result<TypeEntry<'a>> {
        let mut entries = self.unit.header.entries_raw(&self.unit.abbreviations, Some(at))?;
        let top = entries.next_depth();
        let abbreviation = entries.read_abbreviation()?.ok_or(Error::MissingUnitDie)?;
        let mut entry = TypeEntry::of_tag(abbreviation.tag());
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec)?;
            let value = attribute.value();
            match attribute.name() {
                dw::DW_AT_name => entry.name = self.text(value),
                dw::DW_AT_type => entry.of = self.refer(&value),
                dw::DW_AT_byte_size => entry.size = attribute.udata_value(),
                dw::DW_AT_declaration => entry.is_declaration = true,
                dw::DW_AT_external => entry.is_external = true,
                dw::DW_AT_specification | dw::DW_AT_abstract_origin => {
                    entry.origin = self.refer(&value);
                }
                dw::DW_AT_signature => {
                    if let AttributeValue::DebugTypesRef(signature) = value {
                        entry.signature = Some(signature.0);
                    }
                }
                _ => {}
            }
        }
        let has_members = [dw::DW_TAG_structure_type, dw::DW_TAG_class_type, dw::DW_TAG_array_type];
        if abbreviation.has_children() && has_members.contains(&entry.tag) {
            self.members(&mut entries, top, &mut entry)?;
        }
        Ok(entry)
    }

    fn members(
        &self,
        entries: &mut EntriesRaw<'_, Slice<'a>>,
        top: isize,
        entry: &mut TypeEntry<'a>,
    ) -> Result<()> {
        let mut part: Option<VariantPart<'a>> = None;
        let mut left = MAX_BELOW;
        let mut lengths: Vec<Option<u64>> = Vec::new();
        while !entries.is_empty() && entries.next_depth() > top && left > 0 {
            left -= 1;
            let depth = entries.next_depth();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            let tag = abbreviation.tag();
            if part.as_ref().is_some_and(|part| depth <= part.depth) {
                entry.members.extend(part.take().and_then(VariantPart::only_variant));
            }
            let is_direct = depth == top + 1;
            let in_part = part.as_ref().map(|part| depth - part.depth);
            let is_wanted = match tag {
                dw::DW_TAG_member => is_direct || matches!(in_part, Some(1 | 2)),
                dw::DW_TAG_inheritance
                | dw::DW_TAG_subrange_type
                | dw::DW_TAG_template_type_parameter => is_direct,
                _ => false,
            };
            if tag == dw::DW_TAG_variant_part && is_direct {
                part = Some(VariantPart { depth, ..VariantPart::default() });
            }
            if !is_wanted {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut below = BelowEntry::default();
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec)?;
                self.note(&mut below, attribute.name(), &attribute);
            }
            match (tag, &mut part) {
                (dw::DW_TAG_subrange_type, _) => lengths.push(below.count),
                (dw::DW_TAG_template_type_parameter, _) => {
                    if below.name == Some(b"T") {
                        entry.parameter = below.of;
                    }
                }
                (_, Some(part)) if in_part == Some(1) => part.selector = below.offset,
                (_, Some(part)) if in_part == Some(2) => part.variants.extend(below.member()),
                _ => entry.members.extend(below.member()),
            }
            if entry.members.len() > MAX_MEMBERS {
                return Err(Error::Io);
            }
        }
        entry.members.extend(part.and_then(VariantPart::only_variant));
        entry.count = lengths.iter().try_fold(1_u64, |all, length| all.checked_mul((*length)?));
        Ok(())
    }

    fn note(
        &self,
        below: &mut BelowEntry<'a>,
        name: DwAt,
        attribute: &gimli::Attribute<Slice<'a>>,
    ) {
        match (name, attribute.value()) {
            (dw::DW_AT_name, value) => below.name = self.text(value),
            (dw::DW_AT_type, value) => below.of = self.refer(&value),
            (dw::DW_AT_data_member_location, AttributeValue::Exprloc(location)) => {
                below.offset = constant_of(location.0);
            }
            (dw::DW_AT_data_member_location, _) => below.offset = attribute.udata_value(),
            (dw::DW_AT_count, _) => below.count = attribute.udata_value(),
            (dw::DW_AT_upper_bound, value) => {
                // -1 stands for an array without elements.
                let last = attribute.sdata_value().filter(|last| *last >= -1);
                let wide = attribute.udata_value();
                below.count = match (last, value) {
                    (Some(last), _) => u64::try_from(last + 1).ok(),
                    (None, AttributeValue::Udata(_)) => wide.and_then(|it| it.checked_add(1)),
                    (None, _) => None,
                };
            }
            // Bit fields are not pointers, and static members are not in the object.
            (dw::DW_AT_bit_size | dw::DW_AT_external | dw::DW_AT_declaration, _) => {
                below.is_static = true;
            }
            _ => {}
        }
    }

    fn text(&self, value: Value<'a>) -> Option<&'a [u8]> {
        self.dwarf.attr_string(self.unit, value).ok().map(|text| text.slice())
    }

    fn refer(&self, value: &Value<'a>) -> Option<EntryRef> {
        let is_shared = self.is_shared;
        match value {
            AttributeValue::UnitRef(at) => {
                Some(EntryRef { is_shared, offset: self.start.checked_add(at.0)? })
            }
            AttributeValue::DebugInfoRef(at) => Some(EntryRef { is_shared, offset: at.0 }),
            AttributeValue::DebugInfoRefSup(at) => Some(EntryRef { is_shared: true, offset: at.0 }),
            _ => None,
        }
    }
}

impl<'a> BelowEntry<'a> {
    fn member(self) -> Option<MemberEntry<'a>> {
        let of = self.of.filter(|_| !self.is_static)?;
        Some(MemberEntry {
            name: self.name.unwrap_or_default(),
            of,
            // DWARF 4 and older omit the offset of a member if it is 0.
            offset: self.offset.unwrap_or(0),
        })
    }
}

impl<'a> VariantPart<'a> {
    /// Returns the variant whose data is a pointer that is null in the other variant, as in
    /// `Option<Box<T>>`. This pointer is then also the word that distinguishes the variants.
    fn only_variant(self) -> Option<MemberEntry<'a>> {
        let VariantPart { selector, variants, .. } = self;
        let mut some = variants.into_iter().filter(|it| it.name == b"Some");
        let only = some.next().filter(|it| selector == Some(it.offset));
        only.filter(|_| some.next().is_none())
    }
}

/// The offset of a member that is given as `DW_OP_plus_uconst`.
fn constant_of(mut location: Slice<'_>) -> Option<u64> {
    const PLUS_UCONST: u8 = 0x23;
    let is_plus = gimli::Reader::read_u8(&mut location).ok()? == PLUS_UCONST;
    let constant = gimli::Reader::read_uleb128(&mut location).ok()?;
    (is_plus && location.is_empty()).then_some(constant)
}
