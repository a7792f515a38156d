//! Reader of `profile.proto` of pprof, independent of the writer's code. It follows the wire format
//! of Protocol Buffers, and the names and numbers of
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>.

use std::collections::BTreeMap;

/// The encoded value of a field.
enum WireValue<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// Fields of a message by number. The values of a field are in the order of their encoding.
struct WireMessage<'m>(BTreeMap<u64, Vec<WireValue<'m>>>);

impl<'m> WireMessage<'m> {
    /// Parses a message; `None` if the bytes are not a message, or contain a type that profiles do
    /// not use.
    fn parse(mut bytes: &'m [u8]) -> Option<WireMessage<'m>> {
        let mut fields: BTreeMap<u64, Vec<WireValue<'m>>> = BTreeMap::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes)?;
            let value = match key & 7 {
                0 => WireValue::Number(varint(&mut bytes)?),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)?).ok()?;
                    let (value, rest) = bytes.split_at_checked(length)?;
                    bytes = rest;
                    WireValue::Bytes(value)
                }
                _ => return None,
            };
            fields.entry(key >> 3).or_default().push(value);
        }
        Some(WireMessage(fields))
    }

    fn values(&self, field: u64) -> &[WireValue<'m>] {
        self.0.get(&field).map_or(&[], Vec::as_slice)
    }

    /// Value of a numeric field: 0 if it is not encoded, the last value if it is repeated.
    fn number(&self, field: u64) -> i64 {
        self.unsigned(field).cast_signed()
    }

    fn unsigned(&self, field: u64) -> u64 {
        self.unsigned_list(field).last().copied().unwrap_or(0)
    }

    /// Values of a repeated numeric field, encoded separately or packed.
    fn unsigned_list(&self, field: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for value in self.values(field) {
            match *value {
                WireValue::Number(number) => numbers.push(number),
                WireValue::Bytes(mut packed) => {
                    while !packed.is_empty() {
                        numbers.push(varint(&mut packed).unwrap());
                    }
                }
            }
        }
        numbers
    }

    fn bytes(&self, field: u64) -> impl Iterator<Item = &'m [u8]> {
        self.values(field).iter().map(move |value| match *value {
            WireValue::Bytes(bytes) => bytes,
            WireValue::Number(number) => panic!("field {field} is the number {number}"),
        })
    }

    fn messages<T>(&self, field: u64, read: fn(&WireMessage<'_>) -> T) -> Vec<T> {
        self.bytes(field).map(|bytes| read(&WireMessage::parse(bytes).unwrap())).collect()
    }
}

/// Reads a number: seven bits in each byte, the lowest first. All bytes except the last have bit 7
/// set.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

pub(crate) struct ProtoProfile {
    pub(crate) sample_type: Vec<ValueType>,
    pub(crate) sample: Vec<ProtoSample>,
    pub(crate) mapping: Vec<ProtoMapping>,
    pub(crate) location: Vec<ProtoLocation>,
    pub(crate) function: Vec<ProtoFunction>,
    pub(crate) string_table: Vec<String>,
    pub(crate) time_nanos: i64,
    pub(crate) duration_nanos: i64,
    pub(crate) default_sample_type: i64,
}

impl ProtoProfile {
    /// Decodes a profile; `None` if the bytes are not a message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ProtoProfile> {
        let message = WireMessage::parse(bytes)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Some(ProtoProfile {
            sample_type: message.messages(1, ValueType::read),
            sample: message.messages(2, ProtoSample::read),
            mapping: message.messages(3, ProtoMapping::read),
            location: message.messages(4, ProtoLocation::read),
            function: message.messages(5, ProtoFunction::read),
            string_table: message.bytes(6).map(text).collect(),
            time_nanos: message.number(9),
            duration_nanos: message.number(10),
            default_sample_type: message.number(14),
        })
    }
}

pub(crate) struct ValueType {
    pub(crate) r#type: i64,
    pub(crate) unit: i64,
}

impl ValueType {
    fn read(message: &WireMessage<'_>) -> ValueType {
        ValueType { r#type: message.number(1), unit: message.number(2) }
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct ProtoSample {
    pub(crate) location_id: Vec<u64>,
    pub(crate) value: Vec<i64>,
    pub(crate) label: Vec<ProtoLabel>,
}

impl ProtoSample {
    fn read(message: &WireMessage<'_>) -> ProtoSample {
        ProtoSample {
            location_id: message.unsigned_list(1),
            value: message.unsigned_list(2).into_iter().map(u64::cast_signed).collect(),
            label: message.messages(3, ProtoLabel::read),
        }
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct ProtoLabel {
    pub(crate) key: i64,
    pub(crate) str: i64,
    pub(crate) num: i64,
}

impl ProtoLabel {
    fn read(message: &WireMessage<'_>) -> ProtoLabel {
        ProtoLabel { key: message.number(1), str: message.number(2), num: message.number(3) }
    }
}

pub(crate) struct ProtoMapping {
    pub(crate) id: u64,
    pub(crate) memory_limit: u64,
    pub(crate) filename: i64,
}

impl ProtoMapping {
    fn read(message: &WireMessage<'_>) -> ProtoMapping {
        let [id, memory_limit] = [1, 3].map(|field| message.unsigned(field));
        ProtoMapping { id, memory_limit, filename: message.number(5) }
    }
}

pub(crate) struct ProtoLocation {
    pub(crate) id: u64,
    pub(crate) mapping_id: u64,
    pub(crate) address: u64,
    pub(crate) line: Vec<ProtoLine>,
}

impl ProtoLocation {
    fn read(message: &WireMessage<'_>) -> ProtoLocation {
        let [id, mapping_id, address] = [1, 2, 3].map(|field| message.unsigned(field));
        ProtoLocation { id, mapping_id, address, line: message.messages(4, ProtoLine::read) }
    }
}

pub(crate) struct ProtoLine {
    pub(crate) function_id: u64,
    pub(crate) line: i64,
}

impl ProtoLine {
    fn read(message: &WireMessage<'_>) -> ProtoLine {
        ProtoLine { function_id: message.unsigned(1), line: message.number(2) }
    }
}

pub(crate) struct ProtoFunction {
    pub(crate) id: u64,
    pub(crate) name: i64,
    pub(crate) filename: i64,
}

impl ProtoFunction {
    fn read(message: &WireMessage<'_>) -> ProtoFunction {
        ProtoFunction {
            id: message.unsigned(1),
            name: message.number(2),
            filename: message.number(4),
        }
    }
}
