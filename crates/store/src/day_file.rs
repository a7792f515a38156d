//! Files of a recording: one for each day (UTC). A new part of the day begins if the last part is
//! damaged or too large.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagewise_model::civil::CivilTime;
use rusqlite::{Connection, OpenFlags};

use crate::error::StoreError;
use crate::schema;

/// Maximum time for which a writer or reader waits for a lock that another writer or reader holds.
const BUSY: Duration = Duration::from_secs(5);
/// Page size of the files in bytes: the default of SQLite.
const PAGE: u64 = 4 << 10;
/// Length in bytes of the start of the file header that contains the page size and the format
/// versions.
const HEADER: usize = 20;
const READ: OpenFlags = OpenFlags::SQLITE_OPEN_READ_ONLY.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);
/// Suffix of the file names.
const SUFFIX: &str = ".pagewise.db";

/// A file of a recording. The order of files is the order of writing, unless the clock was set
/// back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DayFile {
    /// Day of the sweeps in the file: `2026-11-25`.
    pub day: String,
    /// Number of the part of the day, from 1.
    pub part: u32,
    /// Path of the file.
    pub path: PathBuf,
}

impl DayFile {
    pub(crate) fn new(folder: &Path, day: &str, part: u32) -> DayFile {
        let name = match part {
            1 => format!("{day}{SUFFIX}"),
            part => format!("{day}.{part}{SUFFIX}"),
        };
        DayFile { day: day.to_owned(), part, path: folder.join(name) }
    }

    fn parse(path: PathBuf) -> Option<DayFile> {
        let name = path.file_name().and_then(OsStr::to_str)?.strip_suffix(SUFFIX)?;
        let (day, part) = match name.split_once('.') {
            Some((day, part)) => (day, part.parse().ok().filter(|part| *part > 1)?),
            None => (name, 1),
        };
        let is_day = day.len() >= 10 && day.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        let day = is_day.then(|| day.to_owned())?;
        Some(DayFile { day, part, path })
    }

    /// Paths of the file and of the two files that SQLite keeps beside it while it is open.
    pub fn paths(&self) -> [PathBuf; 3] {
        ["", "-wal", "-shm"].map(|end| self.beside(end))
    }

    /// Size in bytes of the file and of the files that SQLite keeps beside it.
    pub fn size(&self) -> u64 {
        let sizes = self.paths().map(fs::metadata);
        sizes.into_iter().flatten().map(|it| it.len()).sum()
    }

    /// Removes the file and the files beside it.
    pub(crate) fn remove(&self) -> Result<(), StoreError> {
        for end in ["-wal", "-shm"] {
            // The files beside it exist only while a recorder runs or after it was killed.
            let _ = fs::remove_file(self.beside(end));
        }
        fs::remove_file(&self.path).map_err(|error| StoreError::io(&self.path, error))
    }

    fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(end);
        name.into()
    }

    /// Opens the file to append to it, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::is_damage`] if the file is damaged.
    pub(crate) fn open(&self) -> Result<Connection, StoreError> {
        let wrong = |error| StoreError::sqlite(&self.path, error);
        let is_new = fs::metadata(&self.path).map_or(true, |it| it.len() == 0);
        let connection = Connection::open(&self.path).map_err(wrong)?;
        connection.busy_timeout(BUSY).map_err(wrong)?;
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL;
                 PRAGMA synchronous = FULL;
                 PRAGMA wal_autocheckpoint = 256;
                 PRAGMA journal_size_limit = 4194304;
                 PRAGMA cache_size = -1024;",
            )
            .map_err(wrong)?;
        connection.set_prepared_statement_cache_capacity(32);
        let has_tables = connection
            .query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get::<_, i64>(0))
            .map_err(wrong)?;
        if has_tables == 0 && is_new {
            schema::create(&connection).map_err(wrong)?;
        }
        if !schema::is_ours(&connection).map_err(wrong)? {
            return Err(StoreError::NotARecording { path: self.path.clone() });
        }
        let check: String =
            connection.query_row("PRAGMA quick_check(1)", (), |row| row.get(0)).map_err(wrong)?;
        if check != "ok" {
            return Err(StoreError::NotARecording { path: self.path.clone() });
        }
        Ok(connection)
    }

    /// Opens the file read-only. The file may be damaged, or open in a recorder.
    ///
    /// # Errors
    /// [`StoreError`]
    pub(crate) fn open_to_read(&self) -> Result<Connection, StoreError> {
        let whole = self.whole_pages().map_err(|error| StoreError::io(&self.path, error))?;
        let connection = match &whole {
            Some(copy) => self.open_copy(copy)?,
            None => self.open_in_place()?,
        };
        connection.set_prepared_statement_cache_capacity(32);
        Ok(connection)
    }

    fn open_in_place(&self) -> Result<Connection, StoreError> {
        let opened = Connection::open_with_flags(&self.path, READ);
        let connection = opened.map_err(|error| StoreError::sqlite(&self.path, error))?;
        match self.is_readable(&connection) {
            Ok(()) => Ok(connection),
            // Without write permission for the folder, SQLite opens a file in WAL mode only if the
            // file is declared immutable.
            Err(error) if error.is_not_writable() || is_cannot_open(&error) => {
                self.open_immutable()
            }
            Err(error) => Err(error),
        }
    }

    fn open_immutable(&self) -> Result<Connection, StoreError> {
        let flags = READ | OpenFlags::SQLITE_OPEN_URI;
        let uri = format!("file:{}?immutable=1", uri_path(&self.path));
        let opened = Connection::open_with_flags(uri, flags);
        let connection = opened.map_err(|error| StoreError::sqlite(&self.path, error))?;
        self.is_readable(&connection)?;
        Ok(connection)
    }

    fn open_copy(&self, copy: &[u8]) -> Result<Connection, StoreError> {
        let wrong = |error| StoreError::sqlite(&self.path, error);
        let mut connection = Connection::open_in_memory().map_err(wrong)?;
        connection.deserialize_read_exact("main", copy, copy.len(), true).map_err(wrong)?;
        self.is_readable(&connection)?;
        Ok(connection)
    }

    /// Copies the whole pages of a file whose last page was cut. Returns `None` if the file has
    /// only whole pages. SQLite would read zeros in place of the missing part, which would look
    /// like values.
    ///
    /// The file is opened here only if its length shows that it was cut: when a file is closed, the
    /// kernel releases all POSIX locks of this process on the file, including those of SQLite
    /// connections.
    fn whole_pages(&self) -> io::Result<Option<Vec<u8>>> {
        if fs::metadata(&self.path)?.len().is_multiple_of(PAGE) {
            return Ok(None);
        }
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        let mut bytes = vec![0; HEADER];
        if file.read_exact(&mut bytes).is_err() {
            return Ok(None);
        }
        // The value 1 represents a page size of 64 KiB.
        let page = u64::from(u16::from_be_bytes([bytes[16], bytes[17]])).max(2);
        if length.is_multiple_of(page) {
            return Ok(None);
        }
        // Format version 1 has no write-ahead log, which a copy in memory cannot have.
        bytes[18..20].fill(1);
        let left = (length - length % page).saturating_sub(HEADER as u64);
        file.take(left).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn is_readable(&self, connection: &Connection) -> Result<(), StoreError> {
        let wrong = |error| StoreError::sqlite(&self.path, error);
        connection.busy_timeout(BUSY).map_err(wrong)?;
        // With this setting, SQLite opens a file that is shorter than its header states.
        connection.execute_batch("PRAGMA writable_schema = ON;").map_err(wrong)?;
        match schema::is_ours(connection).map_err(wrong)? {
            true => Ok(()),
            false => Err(StoreError::NotARecording { path: self.path.clone() }),
        }
    }
}

fn is_cannot_open(error: &StoreError) -> bool {
    matches!(error, StoreError::Sqlite { source, .. }
        if source.sqlite_error_code() == Some(rusqlite::ErrorCode::CannotOpen))
}

/// Escapes a path as a part of a URI.
fn uri_path(path: &Path) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'_' | b'.' | b'~');
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes
        .iter()
        .map(|&b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// Lists the files of a recording in order.
///
/// # Errors
/// [`StoreError::Io`] if the folder cannot be listed.
pub fn files(folder: &Path) -> Result<Vec<DayFile>, StoreError> {
    let entries = fs::read_dir(folder).map_err(|error| StoreError::io(folder, error))?;
    let mut files: Vec<DayFile> =
        entries.flatten().filter_map(|entry| DayFile::parse(entry.path())).collect();
    files.sort();
    Ok(files)
}

/// The day (UTC) of a time in nanoseconds since 1970, as `2026-11-25`.
pub fn day_of(unix_ns: u64) -> String {
    let seconds = i64::try_from(unix_ns / 1_000_000_000).unwrap_or(i64::MAX);
    CivilTime::new(seconds, 0).date()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_sort_by_day_and_part() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["2026-11-25.10", "2026-11-25.2", "2026-11-25", "2026-11-24", "other", "x.1"] {
            fs::write(folder.path().join(format!("{name}{SUFFIX}")), "").unwrap();
        }
        let listed = files(folder.path()).unwrap();
        let found: Vec<_> = listed.iter().map(|it| (it.day.as_str(), it.part)).collect();
        assert_eq!(
            found,
            [("2026-11-24", 1), ("2026-11-25", 1), ("2026-11-25", 2), ("2026-11-25", 10)]
        );
        for file in listed {
            assert_eq!(DayFile::new(folder.path(), &file.day, file.part), file);
        }
    }
}
