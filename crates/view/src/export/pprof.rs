//! `profile.proto` of pprof, compressed with gzip: the format of `go tool pprof` and many other
//! tools.
//!
//! The six messages are small, so they are encoded here instead of by a code generator.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io::{self, Write};

use pagewise_model::Name;
use pagewise_model::heap::{AllocationKind, HeapRecording};
use pagewise_model::traced::{Frame, StackProfile};

use super::{addable, frames, packed, plain};

/// Writes a profile. The values of a sample are its count and, if any sample has a duration, its
/// duration in nanoseconds. A sample without a duration then has the label `time: unknown`, because
/// the format has no missing values.
///
/// An address is the offset in the file. A location is an address with all functions that are
/// inlined at it. Process and thread are the labels `pid` and `tid`.
///
/// # Errors
/// Returns the error of `out`; `InvalidData` for counts whose sum reaches 2^63.
pub fn write(profile: &StackProfile, out: &mut dyn Write) -> io::Result<()> {
    Sheet::of_profile(profile).write(out)
}

/// Writes the heap of a process with the values of Go's heap profiles: `alloc_objects` and
/// `alloc_space` for all allocations, `inuse_objects` and `inuse_space` for the allocations that
/// are live at the end. `peak_objects` and `peak_space` are additional: allocations that are live
/// at the peak of the process. Readers show `inuse_space` first.
///
/// # Errors
/// Returns the error of `out`; `InvalidData` for numbers whose sum reaches 2^63.
pub fn write_heap(recording: &HeapRecording, out: &mut dyn Write) -> io::Result<()> {
    Sheet::of_heap(recording).write(out)
}

/// Content of the file: sample values by call stack.
#[derive(Debug)]
struct Sheet<'p> {
    /// Names and units of the values of a sample.
    types: Vec<(String, &'static str)>,
    /// Index in `types` of the value that readers show first.
    first: usize,
    rows: Vec<PprofRow<'p>>,
    /// Program whose name readers show for the profile.
    program: Option<&'p Name>,
    began_ns: u64,
    took_ns: u64,
    /// Sampling period: type, unit and value; `None` if every event was recorded.
    period: Option<(&'static str, &'static str, u64)>,
}

/// Values of one call stack.
#[derive(Debug)]
struct PprofRow<'p> {
    frames: Vec<&'p Frame>,
    values: Vec<u64>,
    thread: Option<(u32, u32)>,
    labels: Vec<(&'p str, &'p str)>,
}

impl<'p> Sheet<'p> {
    fn of_profile(profile: &'p StackProfile) -> Sheet<'p> {
        let timed = profile.samples.iter().any(|counted| counted.took_ns.is_some());
        let what = if profile.what.is_empty() { "samples" } else { &profile.what };
        let mut types = vec![(what.replace(' ', "_"), "count")];
        types.extend(timed.then(|| ("time".to_owned(), "nanoseconds")));
        let counted = profile.samples.iter().filter(|counted| counted.count > 0);
        let rows: Vec<PprofRow<'p>> = counted
            .map(|counted| {
                let time = timed.then(|| counted.took_ns.unwrap_or(0));
                let labels = counted.labels.iter().map(|(key, value)| (&**key, &**value));
                let unknown = timed && counted.took_ns.is_none();
                PprofRow {
                    frames: frames(profile, counted).iter().collect(),
                    values: std::iter::once(counted.count).chain(time).collect(),
                    thread: counted.thread,
                    labels: labels.chain(unknown.then_some(("time", "unknown"))).collect(),
                }
            })
            .collect();
        let program = program(&rows);
        let (began_ns, took_ns) = (profile.began_ns.unwrap_or(0), profile.took_ns);
        Sheet { types, first: 0, rows, program, began_ns, took_ns, period: None }
    }

    fn of_heap(recording: &'p HeapRecording) -> Sheet<'p> {
        let types = ["alloc", "inuse", "peak"]
            .iter()
            .flat_map(|of| [(format!("{of}_objects"), "count"), (format!("{of}_space"), "bytes")]);
        let rows = recording.sites.iter().map(|site| {
            let amounts = [site.allocated, site.leaked(), site.at_peak];
            let kind = site.kind.word();
            PprofRow {
                frames: recording.frames_of(site).collect(),
                values: amounts.iter().flat_map(|it| [it.blocks, it.bytes]).collect(),
                thread: None,
                labels: (site.kind != AllocationKind::Heap)
                    .then_some(("kind", kind))
                    .into_iter()
                    .collect(),
            }
        });
        Sheet {
            types: types.collect(),
            first: 3,
            rows: rows.filter(|row| row.values.iter().any(|value| *value > 0)).collect(),
            program: Some(&recording.program).filter(|name| !name.is_empty()),
            began_ns: recording.began_ns,
            took_ns: recording.took_ns,
            period: Some(("space", "bytes", recording.every_bytes.unwrap_or(1))),
        }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for at in 0..self.types.len() {
            addable(self.rows.iter().filter_map(|row| row.values.get(at).copied()))?;
        }
        packed(out, |out| out.write_all(&self.encoded()))
    }

    fn encoded(&self) -> Vec<u8> {
        let mut tables = PprofTables {
            strings: NumberedItems::from(0),
            modules: NumberedItems::from(1),
            functions: NumberedItems::from(1),
            locations: NumberedItems::from(1),
        };
        tables.string(b"");
        // Readers treat the first file as the program.
        self.program.map(|name| tables.modules.number_of(name));
        let mut whole = ProtoMessage::default();
        for (kind, unit) in &self.types {
            whole = whole.message(1, &tables.unit(kind, unit));
        }
        for row in &self.rows {
            whole = whole.message(2, &row.encoded(&mut tables));
        }
        whole = with_tables(whole, &mut tables).number(9, self.began_ns).number(10, self.took_ns);
        if let Some((kind, unit, every)) = self.period {
            whole = whole.message(11, &tables.unit(kind, unit)).number(12, every);
        }
        let first = self.types.get(self.first).map_or("", |(kind, _)| kind);
        whole = whole.number(14, tables.string(first.as_bytes()));
        for (text, _) in tables.strings.all() {
            whole.bytes(6, text.as_bytes());
        }
        whole.0
    }
}

/// File of the outermost frame; if the call stacks have several such files, the file with the
/// highest sum of counts.
fn program<'p>(rows: &[PprofRow<'p>]) -> Option<&'p Name> {
    let mut counts: BTreeMap<&Name, u64> = BTreeMap::new();
    for row in rows {
        let outermost = row.frames.last().and_then(|frame| frame.module.as_ref());
        let count = row.values.first().copied().unwrap_or(0);
        if let Some(name) = outermost {
            let sum = counts.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name)
}

impl PprofRow<'_> {
    fn encoded(&self, tables: &mut PprofTables) -> ProtoMessage {
        let locations = tables.locations(&self.frames);
        let values = self.values.iter().copied();
        let mut sample = ProtoMessage::default().numbers(1, locations).numbers(2, values);
        if let Some((pid, tid)) = self.thread {
            for (key, number) in [("pid", pid), ("tid", tid)] {
                let key = tables.string(key.as_bytes());
                let label = ProtoMessage::default().number(1, key).number(3, number.into());
                sample = sample.message(3, &label);
            }
        }
        for (key, value) in &self.labels {
            let [key, value] = [key, value].map(|text| tables.string(text.as_bytes()));
            sample = sample.message(3, &ProtoMessage::default().number(1, key).number(2, value));
        }
        sample
    }
}

/// Encoded fields of a Protocol Buffers message.
#[derive(Debug, Default)]
struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    fn varint(&mut self, mut value: u64) {
        while let (low, rest @ 1..) = ((value & 0x7f).to_le_bytes()[0], value >> 7) {
            self.0.push(low | 0x80);
            value = rest;
        }
        self.0.push((value & 0x7f).to_le_bytes()[0]);
    }

    /// Adds a number. A field with the default value 0 is not encoded.
    fn number(mut self, field: u64, value: u64) -> ProtoMessage {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
        self
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(u64::try_from(bytes.len()).expect("a length fits"));
        self.0.extend_from_slice(bytes);
    }

    fn message(mut self, field: u64, message: &ProtoMessage) -> ProtoMessage {
        self.bytes(field, &message.0);
        self
    }

    fn numbers(self, field: u64, values: impl IntoIterator<Item = u64>) -> ProtoMessage {
        let mut packed = ProtoMessage::default();
        values.into_iter().for_each(|value| packed.varint(value));
        if packed.0.is_empty() { self } else { self.message(field, &packed) }
    }
}

/// Assigns consecutive numbers to items, in the order of their first use.
#[derive(Debug)]
struct NumberedItems<T> {
    first: u64,
    known: HashMap<T, u64>,
}

impl<T: Clone + Eq + Hash> NumberedItems<T> {
    fn from(first: u64) -> NumberedItems<T> {
        NumberedItems { first, known: HashMap::new() }
    }

    fn number_of(&mut self, thing: &T) -> u64 {
        if let Some(number) = self.known.get(thing) {
            return *number;
        }
        let number = self.first + u64::try_from(self.known.len()).expect("a length fits");
        self.known.insert(thing.clone(), number);
        number
    }

    /// All items with their numbers, in order of number.
    fn all(&self) -> Vec<(&T, u64)> {
        let mut all: Vec<(&T, u64)> = self.known.iter().map(|(thing, at)| (thing, *at)).collect();
        all.sort_unstable_by_key(|(_, at)| *at);
        all
    }
}

/// A location: number of its module, offset, and its functions with lines, the innermost first.
type PprofLocation = (u64, u64, Vec<(u64, u64)>);

/// Tables whose rows samples refer to by number. 0 represents an unknown module, an unknown
/// function or the empty string.
#[derive(Debug)]
struct PprofTables {
    strings: NumberedItems<String>,
    modules: NumberedItems<Name>,
    /// Functions by the string numbers of their name and source file.
    functions: NumberedItems<(u64, u64)>,
    locations: NumberedItems<PprofLocation>,
}

impl PprofTables {
    fn string(&mut self, text: &[u8]) -> u64 {
        self.strings.number_of(&plain(text).into_owned())
    }

    /// Encodes the name and the unit of a value.
    fn unit(&mut self, kind: &str, unit: &str) -> ProtoMessage {
        let [kind, unit] = [kind, unit].map(|text| self.string(text.as_bytes()));
        ProtoMessage::default().number(1, kind).number(2, unit)
    }

    fn locations(&mut self, frames: &[&Frame]) -> Vec<u64> {
        let places = frames.split_inclusive(|frame| !frame.inlined);
        places.map(|place| self.location(place)).collect()
    }

    fn location(&mut self, place: &[&Frame]) -> u64 {
        let outermost = place.last();
        let module = outermost.and_then(|frame| frame.module.as_ref());
        let module = module.map_or(0, |name| self.modules.number_of(name));
        let lines = place.iter().filter_map(|frame| self.line(frame)).collect();
        self.locations.number_of(&(module, outermost.map_or(0, |frame| frame.offset), lines))
    }

    fn line(&mut self, frame: &Frame) -> Option<(u64, u64)> {
        let name = self.string(frame.function.as_ref()?.as_bytes());
        let file = frame.line.as_ref().map_or(0, |line| self.string(line.file.as_bytes()));
        let number = frame.line.as_ref().map_or(0, |line| line.number);
        Some((self.functions.number_of(&(name, file)), number.into()))
    }
}

/// Adds mappings, functions and locations to a message.
fn with_tables(mut whole: ProtoMessage, tables: &mut PprofTables) -> ProtoMessage {
    let PprofTables { strings, modules, functions, locations } = tables;
    for (name, id) in modules.all() {
        let name = strings.number_of(&plain(name.as_bytes()).into_owned());
        // The mapping extends from 0 to its largest known offset. The fields 7 to 10 state that
        // functions, files, lines and inlined functions are resolved.
        let inside = locations.known.keys().filter(|(module, ..)| *module == id);
        let end = inside.map(|(_, offset, _)| offset.saturating_add(1)).max().unwrap_or(0);
        let mapping = ProtoMessage::default().number(1, id).number(3, end).number(5, name);
        let done = (7..=10).fold(mapping, |mapping, field| mapping.number(field, 1));
        whole = whole.message(3, &done);
    }
    for ((module, offset, lines), id) in locations.all() {
        let mut location =
            ProtoMessage::default().number(1, id).number(2, *module).number(3, *offset);
        for (function, line) in lines {
            location =
                location.message(4, &ProtoMessage::default().number(1, *function).number(2, *line));
        }
        whole = whole.message(4, &location);
    }
    for ((name, file), id) in functions.all() {
        let function = ProtoMessage::default().number(1, id).number(2, *name).number(3, *name);
        whole = whole.message(5, &function.number(4, *file));
    }
    whole
}
