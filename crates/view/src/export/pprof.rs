//! `profile.proto` of pprof, compressed by gzip: what `go tool pprof` and many others open.
//!
//! Six small messages, so they are encoded here rather than by a generator.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use pagewise_model::Name;
use pagewise_model::traced::{Counted, Frame, Profile};

use super::{checked, frames, plain};

/// Writes a profile. Values of each sample are the count, in units of what was counted, and, where it is known of any, the
/// time in nanoseconds; where it is not known of one, a label says `time: unknown`, since the format knows no absence.
///
/// An address is the offset in its file. A location is a place with all functions that are inlined there. Process and
/// thread are the labels `pid` and `tid`.
///
/// # Errors
/// What `out` returns; `InvalidData` for counts that add up to more than 2^63.
pub fn write(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    checked(profile)?;
    // No moment and no name of a file: the same profile makes the same bytes.
    let mut gzip = GzBuilder::new().write(out, Compression::default());
    gzip.write_all(&encoded(profile))?;
    gzip.finish().map(drop)
}

/// Fields of a message, as Protocol Buffers encode them.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while let (low, rest @ 1..) = ((value & 0x7f).to_le_bytes()[0], value >> 7) {
            self.0.push(low | 0x80);
            value = rest;
        }
        self.0.push((value & 0x7f).to_le_bytes()[0]);
    }

    /// A number; 0 is what a field has that is not there.
    fn number(mut self, field: u64, value: u64) -> Message {
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

    fn message(mut self, field: u64, message: &Message) -> Message {
        self.bytes(field, &message.0);
        self
    }

    fn numbers(self, field: u64, values: impl IntoIterator<Item = u64>) -> Message {
        let mut packed = Message::default();
        values.into_iter().for_each(|value| packed.varint(value));
        if packed.0.is_empty() { self } else { self.message(field, &packed) }
    }
}

/// Numbers things as they are met, from a first number on.
#[derive(Debug)]
struct Numbers<T> {
    first: u64,
    known: HashMap<T, u64>,
}

impl<T: Clone + Eq + Hash> Numbers<T> {
    fn from(first: u64) -> Numbers<T> {
        Numbers { first, known: HashMap::new() }
    }

    fn of(&mut self, thing: &T) -> u64 {
        if let Some(number) = self.known.get(thing) {
            return *number;
        }
        let number = self.first + u64::try_from(self.known.len()).expect("a length fits");
        self.known.insert(thing.clone(), number);
        number
    }

    /// All, by number.
    fn all(&self) -> Vec<(&T, u64)> {
        let mut all: Vec<(&T, u64)> = self.known.iter().map(|(thing, at)| (thing, *at)).collect();
        all.sort_unstable_by_key(|(_, at)| *at);
        all
    }
}

/// A place: its module, the offset, and functions with lines, the innermost first.
type Location = (u64, u64, Vec<(u64, u64)>);

/// What samples refer to by number. 0 is no module, no function; it is the empty string.
#[derive(Debug)]
struct Tables {
    strings: Numbers<String>,
    modules: Numbers<Name>,
    /// Name and file.
    functions: Numbers<(u64, u64)>,
    locations: Numbers<Location>,
}

impl Tables {
    fn string(&mut self, text: &[u8]) -> u64 {
        self.strings.of(&plain(text).into_owned())
    }

    fn locations(&mut self, frames: &[Frame]) -> Vec<u64> {
        let places = frames.split_inclusive(|frame| !frame.inlined);
        places.map(|place| self.location(place)).collect()
    }

    fn location(&mut self, place: &[Frame]) -> u64 {
        let outermost = place.last();
        let module = outermost.and_then(|frame| frame.module.as_ref());
        let module = module.map_or(0, |name| self.modules.of(name));
        let lines = place.iter().filter_map(|frame| self.line(frame)).collect();
        self.locations.of(&(module, outermost.map_or(0, |frame| frame.offset), lines))
    }

    fn line(&mut self, frame: &Frame) -> Option<(u64, u64)> {
        let name = self.string(frame.function.as_ref()?.as_bytes());
        let file = frame.line.as_ref().map_or(0, |line| self.string(line.file.as_bytes()));
        let number = frame.line.as_ref().map_or(0, |line| line.number);
        Some((self.functions.of(&(name, file)), number.into()))
    }
}

fn encoded(profile: &Profile) -> Vec<u8> {
    let mut tables = Tables {
        strings: Numbers::from(0),
        modules: Numbers::from(1),
        functions: Numbers::from(1),
        locations: Numbers::from(1),
    };
    tables.string(b"");
    // Readers take the first file to be the program.
    program(profile).map(|name| tables.modules.of(name));
    let timed = profile.samples.iter().any(|counted| counted.took_ns.is_some());
    let what = if profile.what.is_empty() { "samples" } else { &profile.what };
    let types = [(what.replace(' ', "_"), "count"), ("time".to_owned(), "nanoseconds")];
    let mut whole = Message::default();
    for (kind, unit) in types.iter().take(if timed { 2 } else { 1 }) {
        let (kind, unit) = (tables.string(kind.as_bytes()), tables.string(unit.as_bytes()));
        whole = whole.message(1, &Message::default().number(1, kind).number(2, unit));
    }
    for counted in profile.samples.iter().filter(|counted| counted.count > 0) {
        let sample = sample(profile, counted, timed, &mut tables);
        whole = whole.message(2, &sample);
    }
    whole = with_tables(whole, &mut tables);
    whole = whole
        .number(9, profile.began_ns.unwrap_or(0))
        .number(10, profile.took_ns)
        .number(14, tables.string(types[0].0.as_bytes()));
    for (text, _) in tables.strings.all() {
        whole.bytes(6, text.as_bytes());
    }
    whole.0
}

/// The file that most began in.
fn program(profile: &Profile) -> Option<&Name> {
    let mut counts: BTreeMap<&Name, u64> = BTreeMap::new();
    for counted in &profile.samples {
        let outermost = frames(profile, counted).last().and_then(|frame| frame.module.as_ref());
        outermost.into_iter().for_each(|name| *counts.entry(name).or_default() += counted.count);
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name)
}

fn sample(profile: &Profile, counted: &Counted, timed: bool, tables: &mut Tables) -> Message {
    let values = std::iter::once(counted.count).chain(timed.then(|| counted.took_ns.unwrap_or(0)));
    let locations = tables.locations(frames(profile, counted));
    let mut sample = Message::default().numbers(1, locations).numbers(2, values);
    if let Some((pid, tid)) = counted.thread {
        for (key, number) in [("pid", pid), ("tid", tid)] {
            let key = tables.string(key.as_bytes());
            sample = sample.message(3, &Message::default().number(1, key).number(3, number.into()));
        }
    }
    let unknown = ("time".to_owned(), "unknown".to_owned());
    let unknown = (timed && counted.took_ns.is_none()).then_some(&unknown);
    for (key, value) in counted.labels.iter().chain(unknown) {
        let [key, value] = [key, value].map(|text| tables.string(text.as_bytes()));
        sample = sample.message(3, &Message::default().number(1, key).number(2, value));
    }
    sample
}

/// Mappings, functions and locations.
fn with_tables(mut whole: Message, tables: &mut Tables) -> Message {
    let Tables { strings, modules, functions, locations } = tables;
    for (name, id) in modules.all() {
        let name = strings.of(&plain(name.as_bytes()).into_owned());
        // Of offset 0, as long as what is known of it. What could be looked up in the file was: readers need not.
        let inside = locations.known.keys().filter(|(module, ..)| *module == id);
        let end = inside.map(|(_, offset, _)| offset.saturating_add(1)).max().unwrap_or(0);
        let mapping = Message::default().number(1, id).number(3, end).number(5, name);
        let done = (7..=10).fold(mapping, |mapping, field| mapping.number(field, 1));
        whole = whole.message(3, &done);
    }
    for ((module, offset, lines), id) in locations.all() {
        let mut location = Message::default().number(1, id).number(2, *module).number(3, *offset);
        for (function, line) in lines {
            location =
                location.message(4, &Message::default().number(1, *function).number(2, *line));
        }
        whole = whole.message(4, &location);
    }
    for ((name, file), id) in functions.all() {
        let function = Message::default().number(1, id).number(2, *name).number(3, *name);
        whole = whole.message(5, &function.number(4, *file));
    }
    whole
}
