//! Tracepoints of this kernel: their numbers, the positions of their fields, and the names of
//! values.

use std::io;

use pagewise_model::{Absent, Reading};
use pagewise_sys::perf_event::{Mode, PerfEvent, PerfType};
use pagewise_sys::perf_ring::{Carries, Sampling};
use pagewise_sys::tracefs::TraceFs;

use crate::{SessionEvent, TraceError};

/// A tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// Name, such as `tlb:tlb_flush`.
    pub name: String,
    id: u64,
    fields: Vec<(String, TracepointField)>,
    words: Vec<(i64, String)>,
}

/// Position of a field in the data of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracepointField {
    offset: usize,
    size: usize,
    signed: bool,
}

impl TracepointField {
    /// The number in the field; the first one of an array. Sign-extended if the field is signed.
    /// `None` if the sample is too short.
    pub fn read(self, raw: &[u8]) -> Option<u64> {
        let bytes = raw.get(self.offset..self.offset.checked_add(self.size.min(8))?)?;
        let signed = self.signed;
        let number = match *bytes {
            [a] if signed => i64::from(a.cast_signed()).cast_unsigned(),
            [a] => a.into(),
            [a, b] if signed => i64::from(i16::from_ne_bytes([a, b])).cast_unsigned(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] if signed => i64::from(i32::from_ne_bytes([a, b, c, d])).cast_unsigned(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            _ => u64::from_ne_bytes(bytes.try_into().ok()?),
        };
        Some(number)
    }

    /// A number of a field that is an array of 8-byte words.
    pub fn read_word(self, at: usize, raw: &[u8]) -> Option<u64> {
        let offset = self.offset.checked_add(at.checked_mul(8)?)?;
        (at * 8 < self.size)
            .then(|| TracepointField { offset, size: 8, signed: false }.read(raw))
            .flatten()
    }
}

impl Tracepoint {
    /// Finds a tracepoint by its name.
    ///
    /// # Errors
    /// [`Absent`] if this kernel has no such tracepoint, or tracefs may not be read.
    pub fn find(tracefs: &TraceFs, name: &str) -> Reading<Tracepoint> {
        let folder = format!("events/{}", name.replacen(':', "/", 1));
        let read = |file| {
            tracefs.read(&format!("{folder}/{file}")).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Absent::NotInThisKernel("".into()),
                _ => Absent::NotPermitted("root".into()),
            })
        };
        let (id, format) = (read("id")?, read("format")?);
        let number = std::str::from_utf8(&id).ok().and_then(|id| id.trim().parse().ok());
        let id = number.ok_or_else(|| Absent::NotSupported("it has no number".into()))?;
        Ok(Tracepoint::parse(name, id, &String::from_utf8_lossy(&format)))
    }

    /// As [`Tracepoint::find`], for a tracepoint that is required.
    ///
    /// # Errors
    /// [`TraceError::NoSuchEvent`]; [`TraceError::NotWatched`] where tracefs may not be read.
    pub fn find_or_fail(tracefs: &TraceFs, name: &str) -> Result<Tracepoint, TraceError> {
        Tracepoint::find(tracefs, name).map_err(|absent| match absent {
            Absent::NotPermitted(_) => TraceError::NotWatched {
                what: name.to_owned(),
                error: io::Error::from_raw_os_error(libc::EACCES),
            },
            _ => TraceError::NoSuchEvent { what: name.to_owned() },
        })
    }

    /// Event to open.
    pub fn event(&self) -> PerfEvent {
        PerfEvent::new(PerfType::TRACEPOINT, self.id)
    }

    fn parse(name: &str, id: u64, format: &str) -> Tracepoint {
        let fields = format.lines().filter_map(field).collect();
        let print = format.lines().find(|line| line.starts_with("print fmt:")).unwrap_or("");
        Tracepoint { name: name.to_owned(), id, fields, words: parse_symbolic_names(print) }
    }

    /// Position of a field by its name.
    pub fn field(&self, name: &str) -> Option<TracepointField> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, field)| *field)
    }

    /// The kernel's names of the values of a field.
    pub fn symbolic_names(&self) -> &[(i64, String)] {
        &self.words
    }

    /// A session event that samples every occurrence, with the fields.
    pub fn sampled(&self, carries: Carries, tasks: bool) -> SessionEvent {
        self.wanted(1, Carries { raw: true, ..carries }, tasks)
    }

    /// A session event that is only counted.
    pub fn counted(&self) -> SessionEvent {
        self.wanted(0, Carries::default(), false)
    }

    fn wanted(&self, every: u64, carries: Carries, tasks: bool) -> SessionEvent {
        /// Number of bytes in a ring that wake the waiting thread: some hundred events.
        const WAKE_AT: u32 = 1 << 16;
        let event = self.event();
        let sampling =
            Sampling { event, every, carries, mode: Mode::default(), tasks, wake_at: WAKE_AT };
        SessionEvent { name: self.name.clone(), sampling }
    }
}

/// Parses a line such as `field:int reason;`, followed by offset, size and signedness.
fn field(line: &str) -> Option<(String, TracepointField)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declared = parts.next()?.strip_prefix("field:")?;
    let name = declared.split('[').next()?.split([' ', '*']).next_back()?;
    let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse::<usize>().ok();
    let (offset, size) = (number("offset:")?, number("size:")?);
    let signed = number("signed:")? > 0;
    Some((name.to_owned(), TracepointField { offset, size, signed }))
}

/// Parses pairs such as `{ 0, "flush on task switch" }` in the line with the print format of an
/// event.
fn parse_symbolic_names(print: &str) -> Vec<(i64, String)> {
    let word = |part: &str| {
        let (number, rest) = part.split_once(',')?;
        let number = number.trim();
        let number = match number.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        let text = rest.split('"').nth(1)?;
        Some((number, text.to_owned()))
    };
    print.split('{').skip(1).filter_map(word).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMAT: &str = "name: tlb_flush\nID: 188\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\tfield:int reason;\toffset:8;\tsize:4;\tsigned:1;\n\tfield:unsigned long pages;\toffset:16;\tsize:8;\tsigned:0;\n\tfield:unsigned long args[2];\toffset:24;\tsize:16;\tsigned:0;\n\tfield:void * csd;\toffset:40;\tsize:8;\tsigned:0;\n\nprint fmt: \"pages:%ld reason:%s (%d)\", REC->pages, __print_symbolic(REC->reason, { 0, \"flush on task switch\" }, { 0x1, \"remote shootdown\" }), REC->reason\n";

    #[test]
    fn fields_lie_where_the_format_says_and_values_have_its_words() {
        let tracepoint = Tracepoint::parse("tlb:tlb_flush", 188, FORMAT);
        let mut raw = vec![0_u8; 48];
        raw[8..12].copy_from_slice(&(-1_i32).to_ne_bytes());
        raw[16] = 7;
        raw[32] = 9;
        raw[40] = 3;
        let read = |name| tracepoint.field(name).unwrap().read(&raw);
        assert_eq!(read("reason"), Some(u64::MAX));
        assert_eq!((read("pages"), read("csd")), (Some(7), Some(3)));
        let args = tracepoint.field("args").unwrap();
        let args = [0, 1, 2].map(|at| args.read_word(at, &raw));
        assert_eq!(args, [Some(0), Some(9), None]);
        assert_eq!(tracepoint.field("pages").unwrap().read(&raw[..20]), None);
        assert!(tracepoint.field("missing").is_none());
        let words = [(0, "flush on task switch".to_owned()), (1, "remote shootdown".to_owned())];
        assert_eq!(tracepoint.symbolic_names(), words);
    }

    proptest! {
        #[test]
        fn any_format_is_read(format: String, raw: Vec<u8>, offset: usize, size: usize) {
            let line = format!("field:{format};offset:{offset};size:{size};signed:1;");
            for (_, field) in Tracepoint::parse("a:b", 1, &line).fields {
                let _ = (field.read(&raw), field.read_word(size, &raw));
            }
            let _ = parse_symbolic_names(&format!("{{{format}"));
        }
    }
}
