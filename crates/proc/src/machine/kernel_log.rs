//! The kernel log: the records of `/dev/kmsg` as lines, and lines of any log without their prefix.

use std::fs::File;
use std::io::{ErrorKind, Read};

use pagewise_model::{Absent, Reading};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::ProcRoot;
use crate::text::number;

/// Maximum bytes of the log of `/dev/kmsg`: the last part of a longer log is kept.
const MAX_LOG: usize = 32 << 20;
/// Maximum length of a record of the kernel.
const RECORD: usize = 16 << 10;

/// The log of a machine; a copied tree has it in `DIR/kmsg`.
///
/// # Errors
/// Those of [`read`], or [`Absent`] for a tree without the file.
pub fn of(root: &ProcRoot) -> Reading<Vec<u8>> {
    if root.is_live() { read() } else { root.machine("kmsg") }
}

/// Reads the log of the running kernel: one line for each line of each record, with the time in
/// front as `dmesg` prints it.
///
/// # Errors
/// [`Absent`] without CAP_SYSLOG where `kernel.dmesg_restrict` is 1, or without `/dev/kmsg`.
pub fn read() -> Reading<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open("/dev/kmsg", flags, Mode::empty());
    let mut file = File::from(opened.map_err(|error| match error {
        Errno::PERM | Errno::ACCESS => Absent::NotPermitted("CAP_SYSLOG".into()),
        error => Absent::NotSupported(format!("/dev/kmsg: {error}").into()),
    })?);
    let mut log = Vec::new();
    let mut record = vec![0; RECORD];
    loop {
        match file.read(&mut record) {
            Ok(0) => break,
            Ok(length) => add_record(&mut log, &record[..length]),
            // Newer records have overwritten the next one: the kernel goes on with the oldest.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if log.len() > MAX_LOG {
            log.drain(..MAX_LOG / 2);
        }
    }
    Ok(log)
}

/// Adds the lines of a record `6,1234,5678901,-;text`, whose control characters are escaped.
fn add_record(log: &mut Vec<u8>, record: &[u8]) {
    let Some(semicolon) = memchr::memchr(b';', record) else { return };
    let micros = record[..semicolon].split(|&b| b == b',').nth(2).and_then(number).unwrap_or(0);
    let text = &record[semicolon + 1..];
    // Lines after the first are properties of the device that the record is about.
    let text = text.split(|&b| b == b'\n').next().unwrap_or_default();
    for line in unescape(text).split(|&b| b == b'\n') {
        let time = format!("[{:5}.{:06}] ", micros / 1_000_000, micros % 1_000_000);
        log.extend_from_slice(time.as_bytes());
        log.extend_from_slice(line);
        log.push(b'\n');
    }
}

/// Undoes the escape of newlines only: other control characters stay escaped.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\x0a") {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(byte);
            rest = tail;
        }
    }
    plain
}

/// A line of a log without what the logger put in front, and its time in seconds since boot.
///
/// Known loggers: `dmesg` with and without times and colors, `/dev/kmsg`, the journal, syslog, and
/// serial consoles.
pub(crate) fn split_line(line: &[u8]) -> (Option<f64>, &[u8]) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if let Some((micros, text)) = kmsg_line(line) {
        return (Some(micros / 1e6), text);
    }
    let line = after_level(line);
    let line = after_host(line);
    let (time, line) = bracket(line);
    (time, after_caller(line))
}

/// `6,1234,5678901,-;text`
#[expect(clippy::cast_precision_loss, reason = "times have microseconds")]
fn kmsg_line(line: &[u8]) -> Option<(f64, &[u8])> {
    let semicolon = memchr::memchr(b';', line.get(..64.min(line.len()))?)?;
    let mut words = line[..semicolon].split(|&b| b == b',');
    number(words.next()?)?;
    number(words.next()?)?;
    let micros = number(words.next()?)?;
    Some((micros as f64, &line[semicolon + 1..]))
}

/// `<6>text`
fn after_level(line: &[u8]) -> &[u8] {
    let level = line.strip_prefix(b"<").and_then(|rest| {
        let end = memchr::memchr(b'>', rest.get(..5.min(rest.len()))?)?;
        number(&rest[..end])?;
        Some(&rest[end + 1..])
    });
    level.unwrap_or(line)
}

/// `Nov 25 15:22:15 host kernel: text`
fn after_host(line: &[u8]) -> &[u8] {
    const MARK: &[u8] = b" kernel: ";
    let head = &line[..line.len().min(160)];
    memchr::memmem::find(head, MARK).map_or(line, |at| &line[at + MARK.len()..])
}

/// `[   12.345678] text`, or `[Wed Nov 25 15:22:15 2026] text`. A number without a point is a
/// process of a table, not a time.
fn bracket(line: &[u8]) -> (Option<f64>, &[u8]) {
    let found = line.strip_prefix(b"[").and_then(|rest| {
        let end = memchr::memchr(b']', rest.get(..40.min(rest.len()))?)?;
        let (inner, after) = (&rest[..end], &rest[end + 1..]);
        let text = after.strip_prefix(b" ").unwrap_or(after);
        let inner = std::str::from_utf8(inner).ok()?.trim();
        let time = inner.contains('.').then(|| inner.parse::<f64>().ok()).flatten();
        let is_date = inner.contains(':');
        (time.is_some() || is_date).then_some((time.filter(|it| it.is_finite()), text))
    });
    found.unwrap_or((None, line))
}

/// `[    T123] text` or `[   C0] text` of kernels that print the calling task or CPU.
fn after_caller(line: &[u8]) -> &[u8] {
    let caller = line.strip_prefix(b"[").and_then(|rest| {
        let end = memchr::memchr(b']', rest.get(..16.min(rest.len()))?)?;
        let inner = rest[..end].trim_ascii();
        let digits = inner.strip_prefix(b"T").or_else(|| inner.strip_prefix(b"C"))?;
        number(digits)?;
        Some(rest[end + 1..].strip_prefix(b" ").unwrap_or(&rest[end + 1..]))
    });
    caller.unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_logger_is_taken_off_and_tables_stay() {
        for (line, time, text) in [
            ("[   12.500000] a b", Some(12.5), "a b"),
            ("[   12.500000][    T99] a b", Some(12.5), "a b"),
            ("<4>[   12.500000] a b", Some(12.5), "a b"),
            ("4,99,12500000,-;a b", Some(12.5), "a b"),
            ("Nov 25 15:22:15 host kernel: a b", None, "a b"),
            ("Nov 25 15:22:15 host kernel: [   12.500000] a b", Some(12.5), "a b"),
            ("[Wed Nov 25 15:22:15 2026] a b", None, "a b"),
            ("[   1234]     0  1234 a", None, "[   1234]     0  1234 a"),
            ("[    0.5] [   1234]     0  1234 a", Some(0.5), "[   1234]     0  1234 a"),
            ("[  pid  ]   uid  tgid", None, "[  pid  ]   uid  tgid"),
            ("a b\r", None, "a b"),
        ] {
            assert_eq!(split_line(line.as_bytes()), (time, text.as_bytes()), "{line}");
        }
    }

    #[test]
    fn a_record_of_several_lines_becomes_several_lines() {
        let mut log = Vec::new();
        add_record(&mut log, b"6,1,2500000,-;anon 1\\x0afile 2\\x1b\n SUBSYSTEM=x\n");
        assert_eq!(log, b"[    2.500000] anon 1\n[    2.500000] file 2\\x1b\n");
        add_record(&mut log, b"no record");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>) {
            let _ = split_line(&text);
            add_record(&mut Vec::new(), &text);
        }
    }
}
