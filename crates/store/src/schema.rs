//! Tables of a database file.

use rusqlite::Connection;

use crate::cells::{CGROUP, MACHINE, PROCESS, RowColumn};

/// `PRAGMA application_id` of a recording: "pgws".
pub(crate) const APPLICATION: i32 = 0x7067_7773;
/// `PRAGMA user_version`: version of the file format. It increases when a change would make an
/// older program misread the file.
pub(crate) const VERSION: i32 = 2;

/// SQL of the tables with the same columns in every file.
const FIXED: &str = "
CREATE TABLE absent(id INTEGER PRIMARY KEY, reason TEXT NOT NULL, json TEXT NOT NULL);
CREATE TABLE process(id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL,
    started_unix_ns INTEGER NOT NULL, identity INTEGER NOT NULL);
CREATE TABLE identity(id INTEGER PRIMARY KEY, name NOT NULL, command NOT NULL, program INTEGER NOT NULL);
CREATE TABLE program(id INTEGER PRIMARY KEY, exe NOT NULL, uid INTEGER NOT NULL, user, cgroup NOT NULL);
CREATE TABLE cgroup(id INTEGER PRIMARY KEY, path NOT NULL);
CREATE TABLE category(id INTEGER PRIMARY KEY, name NOT NULL);
CREATE TABLE sweep(id INTEGER PRIMARY KEY, unix_ns INTEGER NOT NULL, boot_ns INTEGER NOT NULL,
    is_full INTEGER NOT NULL, took_ns INTEGER NOT NULL, cpu_ns INTEGER NOT NULL,
    longest_hold_ns INTEGER NOT NULL, pages_read INTEGER NOT NULL, postponed INTEGER NOT NULL,
    kernel_threads INTEGER NOT NULL, vanished INTEGER NOT NULL, hidden INTEGER NOT NULL,
    cgroups INTEGER NOT NULL);
CREATE TABLE event(sweep INTEGER, id INTEGER, kind TEXT NOT NULL, process INTEGER, cgroup INTEGER, name,
    count INTEGER, peak_rss_kib INTEGER, last_rss_kib INTEGER, lived_ns INTEGER, detail TEXT,
    PRIMARY KEY(sweep, id)) WITHOUT ROWID;
CREATE TABLE category_row(sweep INTEGER, process INTEGER, category INTEGER, rss_kib INTEGER,
    pss_kib INTEGER, swap_kib INTEGER, PRIMARY KEY(sweep, process, category)) WITHOUT ROWID;
CREATE TABLE saved_file(id INTEGER PRIMARY KEY, sweep INTEGER NOT NULL, kind TEXT NOT NULL, file TEXT NOT NULL);
";

/// SQL of the views, which are for people.
const VIEWS: &str = "
CREATE VIEW sweep_time AS SELECT id AS sweep, datetime(unix_ns / 1000000000, 'unixepoch') AS utc FROM sweep;
CREATE VIEW process_name AS SELECT process.id AS process, pid, name, command, exe, uid, user, cgroup
    FROM process JOIN identity ON identity.id = process.identity JOIN program ON program.id = program;
";

/// Columns of `process_row` that precede the columns of [`PROCESS`].
pub(crate) const PROCESS_ROW: [&str; 6] =
    ["sweep", "process", "ended", "identity", "pages", "pages_ns"];
/// Columns of `cgroup_row` that precede the columns of [`CGROUP`].
pub(crate) const CGROUP_ROW: [&str; 3] = ["sweep", "cgroup", "ended"];

fn names<T>(columns: &[RowColumn<T>]) -> impl Iterator<Item = &'static str> + '_ {
    columns.iter().map(|column| column.name)
}

fn list(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// SQL of the columns of `process_row`.
pub(crate) fn process_columns() -> String {
    list(PROCESS_ROW.into_iter().chain(names(&PROCESS)))
}

/// SQL of the columns of `cgroup_row`.
pub(crate) fn cgroup_columns() -> String {
    list(CGROUP_ROW.into_iter().chain(names(&CGROUP)))
}

/// A name in double quotes, for SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Creates the tables in an empty file. The rows of each row table are sorted by sweep, then by
/// process or cgroup.
pub(crate) fn create(connection: &Connection) -> rusqlite::Result<()> {
    let integers = |columns: &str| columns.replace(", ", " INTEGER, ") + " INTEGER";
    let process = integers(&process_columns());
    let cgroup = integers(&cgroup_columns());
    let machine = integers(&list(names(&MACHINE)));
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         {FIXED}
         CREATE TABLE process_row({process}, PRIMARY KEY(sweep, process)) WITHOUT ROWID;
         CREATE TABLE cgroup_row({cgroup}, PRIMARY KEY(sweep, cgroup)) WITHOUT ROWID;
         CREATE TABLE machine_row(sweep INTEGER PRIMARY KEY, {machine});
         {VIEWS}
         PRAGMA application_id = {APPLICATION};
         PRAGMA user_version = {VERSION};
         COMMIT;"
    ))
}

/// True if the file has the tables of this version; false for an empty file.
pub(crate) fn is_ours(connection: &Connection) -> rusqlite::Result<bool> {
    let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), (), |row| row.get(0));
    let (application, version): (i32, i32) = (pragma("application_id")?, pragma("user_version")?);
    Ok((application, version) == (APPLICATION, VERSION))
}

/// Names of the columns of `machine_row` after the column `sweep`.
pub(crate) fn machine_columns(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("SELECT name FROM pragma_table_info('machine_row')")?;
    let names = statement.query_map((), |row| row.get(0))?;
    let mut names: Vec<String> = names.collect::<Result<_, _>>()?;
    names.remove(0);
    Ok(names)
}
