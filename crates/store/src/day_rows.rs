//! Rows of one file: each has the values that changed since the row before.

use std::collections::HashMap;
use std::sync::Arc;

use pagewise_model::sweep::{
    CategorySample, PagesReading, ProcessIdentity, ProcessKey, Sweep, SweepCgroup, SweepEvent,
    SweepEventKind, SweepProcess, SweepTime,
};
use pagewise_model::{Absent, Name, Reading};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use crate::cells::{
    AbsentIds, CGROUP, Cell, MACHINE, PROCESS, PROCESS_CELLS, RowColumn, machine_lines,
};
use crate::schema::{self, quoted};

/// Codes of `pages`.
pub(crate) const PAGES_NOW: i64 = 1;
pub(crate) const PAGES_POSTPONED: i64 = 2;
pub(crate) const PAGES_NEVER: i64 = 3;
pub(crate) const PAGES_UNCHANGED: i64 = 4;

/// The last rows of a file, and the IDs that the next rows refer to.
#[derive(Debug)]
pub(crate) struct DayRows {
    connection: Connection,
    absent: AbsentIds,
    processes: HashMap<ProcessKey, StoredProcess>,
    /// IDs of the processes that ended before the last sweep.
    ended: HashMap<ProcessKey, i64>,
    /// IDs of processes of the file, until the first sweep has found those that still run.
    earlier: HashMap<ProcessKey, i64>,
    cgroups: HashMap<Name, StoredCgroup>,
    categories: HashMap<Name, i64>,
    /// IDs of identities and programs of this run; see [`MAX_KNOWN`].
    identities: HashMap<IdentityKey, i64>,
    programs: HashMap<ProgramKey, i64>,
    /// Columns of `machine_row`, and their last values.
    machine: Vec<(String, Option<i64>)>,
    insert_process_row: String,
    insert_cgroup_row: String,
    next_sweep: i64,
    /// Number of events of the last sweep.
    events: i64,
}

/// Rows of `identity` and `program` that are kept in memory to be referred to again. If there are
/// more, all are forgotten: a later row may repeat an earlier one.
const MAX_KNOWN: usize = 2048;

/// Name, command and program.
type IdentityKey = (Name, Reading<Vec<Name>>, i64);
/// Executable file, user ID, user and cgroup.
type ProgramKey = (Reading<Name>, Reading<u32>, Option<Name>, Reading<Name>);

#[derive(Debug)]
struct StoredProcess {
    id: i64,
    identity: Arc<ProcessIdentity>,
    identity_id: i64,
    cells: [i64; PROCESS_CELLS],
    pages: PagesReading,
    pages_ns: u64,
    sweep: i64,
}

#[derive(Debug)]
struct StoredCgroup {
    id: i64,
    cells: Vec<i64>,
    sweep: i64,
}

impl DayRows {
    /// The rows of a file that is open.
    pub(crate) fn new(connection: Connection) -> rusqlite::Result<DayRows> {
        let placeholders = |count| vec!["?"; count].join(", ");
        let last: Option<i64> =
            connection.query_row("SELECT max(id) FROM sweep", (), |row| row.get(0))?;
        let mut rows = DayRows {
            absent: absent_ids(&connection)?,
            processes: HashMap::new(),
            ended: HashMap::new(),
            earlier: HashMap::new(),
            cgroups: HashMap::new(),
            categories: HashMap::new(),
            identities: HashMap::new(),
            programs: HashMap::new(),
            machine: schema::machine_columns(&connection)?
                .into_iter()
                .map(|name| (name, None))
                .collect(),
            insert_process_row: format!(
                "INSERT INTO process_row({}) VALUES ({})",
                schema::process_columns(),
                placeholders(schema::PROCESS_ROW.len() + PROCESS.len())
            ),
            insert_cgroup_row: format!(
                "INSERT INTO cgroup_row({}) VALUES ({})",
                schema::cgroup_columns(),
                placeholders(schema::CGROUP_ROW.len() + CGROUP.len())
            ),
            next_sweep: last.unwrap_or(0) + 1,
            events: 0,
            connection,
        };
        rows.load()?;
        Ok(rows)
    }

    fn load(&mut self) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare("SELECT id, pid, start_ticks FROM process")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            let (pid, ticks): (u32, i64) = (row.get(1)?, row.get(2)?);
            let key =
                ProcessKey { pid: pagewise_model::Pid(pid), start_ticks: ticks.cast_unsigned() };
            self.earlier.insert(key, row.get(0)?);
        }
        let mut statement = self.connection.prepare("SELECT id, path FROM cgroup")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            let path = name_of(row.get_ref(1)?);
            self.cgroups
                .insert(path, StoredCgroup { id: row.get(0)?, cells: Vec::new(), sweep: 0 });
        }
        let mut statement = self.connection.prepare("SELECT id, name FROM category")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            self.categories.insert(name_of(row.get_ref(1)?), row.get(0)?);
        }
        Ok(())
    }

    /// The time of the last sweep of the file.
    pub(crate) fn last_time(&self) -> rusqlite::Result<Option<SweepTime>> {
        let last = self.connection.query_row(
            "SELECT unix_ns, boot_ns FROM sweep ORDER BY id DESC LIMIT 1",
            (),
            |row| {
                let (unix, boot): (i64, i64) = (row.get(0)?, row.get(1)?);
                Ok(SweepTime { unix_ns: unix.cast_unsigned(), boot_ns: boot.cast_unsigned() })
            },
        );
        last.optional()
    }

    /// Appends a sweep and its events in one transaction.
    pub(crate) fn append(
        &mut self,
        sweep: &Sweep,
        events: &[SweepEvent],
        is_full: bool,
    ) -> rusqlite::Result<()> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let id = self.next_sweep;
        self.sweep_row(id, sweep, is_full)?;
        self.process_rows(id, sweep, is_full)?;
        self.cgroup_rows(id, sweep, is_full)?;
        self.machine_row(id, sweep, is_full)?;
        self.events = 0;
        for event in events {
            self.event_row(id, &event.event)?;
        }
        self.connection.execute_batch("COMMIT")?;
        self.next_sweep += 1;
        self.earlier = HashMap::new();
        Ok(())
    }

    /// Appends categories and events to the last sweep.
    pub(crate) fn append_to_last(
        &mut self,
        categories: &[CategorySample],
        events: &[SweepEventKind],
        saved: &[(String, String)],
    ) -> rusqlite::Result<()> {
        let sweep = self.next_sweep - 1;
        if sweep < 1 {
            return Ok(());
        }
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        for sample in categories {
            self.category_rows(sweep, sample)?;
        }
        for event in events {
            self.event_row(sweep, event)?;
        }
        for (kind, file) in saved {
            let insert = "INSERT INTO saved_file(sweep, kind, file) VALUES (?, ?, ?)";
            self.connection.prepare_cached(insert)?.execute(params![sweep, kind, file])?;
        }
        self.connection.execute_batch("COMMIT")
    }

    /// Writes all into the file itself, which then needs no other file beside it.
    pub(crate) fn close(self) -> rusqlite::Result<()> {
        let DayRows { connection, .. } = self;
        connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE);")?;
        // It fails if a reader has the file open: the file then stays as it is, which is valid too.
        let _ = connection.execute_batch("PRAGMA journal_mode = DELETE;");
        connection.close().map_err(|(_, error)| error)
    }

    fn sweep_row(&mut self, id: i64, sweep: &Sweep, is_full: bool) -> rusqlite::Result<()> {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let cgroups = self.code(sweep.cgroups.as_ref().map(|_| 0).map_err(Clone::clone))?;
        let (time, cost) = (sweep.time, sweep.cost);
        let insert = "INSERT INTO sweep VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        self.connection.prepare_cached(insert)?.execute(params![
            id,
            whole(time.unix_ns),
            whole(time.boot_ns),
            is_full,
            whole(cost.took_ns),
            whole(cost.cpu_ns),
            whole(cost.longest_hold_ns),
            whole(cost.pages_read),
            whole(cost.postponed),
            whole(sweep.kernel_threads),
            whole(sweep.vanished),
            whole(sweep.hidden),
            cgroups,
        ])?;
        Ok(())
    }

    /// The integer of a cell; a reason that is new gets its row.
    fn code(&mut self, cell: Cell) -> rusqlite::Result<i64> {
        let (code, new) = self.absent.code(cell);
        if let Some((id, why)) = new {
            let json = serde_json::to_string(&why).unwrap_or_default();
            let insert = "INSERT INTO absent VALUES (?, ?, ?)";
            let mut insert = self.connection.prepare_cached(insert)?;
            insert.execute(params![id, why.to_string(), json])?;
        }
        Ok(code)
    }

    fn codes<T>(&mut self, columns: &[RowColumn<T>], of: &T) -> rusqlite::Result<Vec<i64>> {
        columns.iter().map(|column| self.code((column.get)(of))).collect()
    }

    fn process_rows(&mut self, id: i64, sweep: &Sweep, is_full: bool) -> rusqlite::Result<()> {
        for process in &sweep.processes {
            self.process_row(id, sweep.time, process, is_full)?;
        }
        self.ended.clear();
        let ended: Vec<ProcessKey> =
            self.processes.iter().filter(|(_, it)| it.sweep != id).map(|(key, _)| *key).collect();
        for key in ended {
            let Some(stored) = self.processes.remove(&key) else { continue };
            self.ended.insert(key, stored.id);
            let insert = "INSERT INTO process_row(sweep, process, ended) VALUES (?, ?, 1)";
            self.connection.prepare_cached(insert)?.execute(params![id, stored.id])?;
        }
        Ok(())
    }

    fn process_row(
        &mut self,
        id: i64,
        time: SweepTime,
        process: &SweepProcess,
        is_full: bool,
    ) -> rusqlite::Result<()> {
        let cells = self.codes(&PROCESS, process)?;
        let cells: [i64; PROCESS_CELLS] = cells.try_into().expect("one for each column");
        let before = self.processes.remove(&process.key);
        let same = before.as_ref().filter(|it| is_same(&it.identity, &process.identity));
        let (identity_id, is_other) = match same {
            Some(before) => (before.identity_id, is_full),
            None => (self.identity_id(&process.identity)?, true),
        };
        let process_id = match &before {
            Some(before) if is_other && !is_full => self.renamed(before.id, identity_id)?,
            Some(before) => before.id,
            None => self.process_id(process, identity_id)?,
        };
        let (pages, pages_ns) = pages_codes(before.as_ref(), process.pages, is_full);
        let mut values = vec![
            Value::Integer(id),
            Value::Integer(process_id),
            Value::Null,
            if is_other { Value::Integer(identity_id) } else { Value::Null },
            pages.map_or(Value::Null, Value::Integer),
            pages_ns.map_or(Value::Null, Value::Integer),
        ];
        let mut is_changed = is_other || pages.is_some();
        for (at, cell) in cells.iter().enumerate() {
            let is_new = is_full || before.as_ref().is_none_or(|it| it.cells[at] != *cell);
            is_changed |= is_new;
            values.push(if is_new { Value::Integer(*cell) } else { Value::Null });
        }
        if is_changed {
            let mut insert = self.connection.prepare_cached(&self.insert_process_row)?;
            insert.execute(params_from_iter(values))?;
        }
        let pages_ns = match process.pages {
            PagesReading::Now => time.boot_ns,
            PagesReading::Unchanged(at) | PagesReading::Postponed(at) => at,
            PagesReading::Never => 0,
        };
        let stored = StoredProcess {
            id: process_id,
            identity: Arc::clone(&process.identity),
            identity_id,
            cells,
            pages: process.pages,
            pages_ns,
            sweep: id,
        };
        self.processes.insert(process.key, stored);
        Ok(())
    }

    /// Stores the last identity of a process. Returns the ID of the process.
    fn renamed(&self, id: i64, identity: i64) -> rusqlite::Result<i64> {
        let update = "UPDATE process SET identity = ? WHERE id = ?";
        self.connection.prepare_cached(update)?.execute(params![identity, id])?;
        Ok(id)
    }

    fn process_id(&mut self, process: &SweepProcess, identity: i64) -> rusqlite::Result<i64> {
        if let Some(id) = self.earlier.get(&process.key) {
            return self.renamed(*id, identity);
        }
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let insert = "INSERT INTO process(pid, start_ticks, started_unix_ns, identity) \
                      VALUES (?, ?, ?, ?)";
        self.connection.prepare_cached(insert)?.execute(params![
            process.key.pid.0,
            process.key.start_ticks.cast_signed(),
            whole(process.identity.started_unix_ns),
            identity,
        ])?;
        Ok(self.connection.last_insert_rowid())
    }

    fn identity_id(&mut self, it: &ProcessIdentity) -> rusqlite::Result<i64> {
        let key = (it.name.clone(), it.command.clone(), self.program_id(it)?);
        if let Some(id) = self.identities.get(&key) {
            return Ok(*id);
        }
        let command = match &it.command {
            Ok(words) => Value::Text(serde_json::to_string(words).unwrap_or_default()),
            Err(why) => Value::Integer(self.code(Err(why.clone()))?),
        };
        let insert = "INSERT INTO identity(name, command, program) VALUES (?, ?, ?)";
        let mut insert = self.connection.prepare_cached(insert)?;
        insert.execute(params![name_value(&it.name), command, key.2])?;
        drop(insert);
        Ok(note(&mut self.identities, key, self.connection.last_insert_rowid()))
    }

    fn program_id(&mut self, it: &ProcessIdentity) -> rusqlite::Result<i64> {
        let key = (it.exe.clone(), it.uid.clone(), it.user.clone(), it.cgroup.clone());
        if let Some(id) = self.programs.get(&key) {
            return Ok(*id);
        }
        let exe = self.name_or_code(&it.exe)?;
        let uid = self.code(it.uid.clone().map(i64::from))?;
        let user = it.user.as_ref().map_or(Value::Null, name_value);
        let cgroup = self.name_or_code(&it.cgroup)?;
        let insert = "INSERT INTO program(exe, uid, user, cgroup) VALUES (?, ?, ?, ?)";
        let mut insert = self.connection.prepare_cached(insert)?;
        insert.execute(params![exe, uid, user, cgroup])?;
        drop(insert);
        Ok(note(&mut self.programs, key, self.connection.last_insert_rowid()))
    }

    fn name_or_code(&mut self, name: &Reading<Name>) -> rusqlite::Result<Value> {
        match name {
            Ok(name) => Ok(name_value(name)),
            Err(why) => Ok(Value::Integer(self.code(Err(why.clone()))?)),
        }
    }

    fn cgroup_rows(&mut self, id: i64, sweep: &Sweep, is_full: bool) -> rusqlite::Result<()> {
        for cgroup in sweep.cgroups.iter().flatten() {
            self.cgroup_row(id, cgroup, is_full)?;
        }
        let is_ended = |it: &StoredCgroup| it.sweep != id && !it.cells.is_empty();
        for stored in self.cgroups.values_mut().filter(|it| is_ended(it)) {
            stored.cells = Vec::new();
            let insert = "INSERT INTO cgroup_row(sweep, cgroup, ended) VALUES (?, ?, 1)";
            self.connection.prepare_cached(insert)?.execute(params![id, stored.id])?;
        }
        Ok(())
    }

    fn cgroup_row(&mut self, id: i64, cgroup: &SweepCgroup, is_full: bool) -> rusqlite::Result<()> {
        let cells = self.codes(&CGROUP, cgroup)?;
        let cgroup_id = self.cgroup_id(&cgroup.path)?;
        let stored = self.cgroups.get_mut(&cgroup.path).expect("it has an ID");
        let mut values = vec![Value::Integer(id), Value::Integer(cgroup_id), Value::Null];
        let mut is_changed = false;
        for (at, cell) in cells.iter().enumerate() {
            let is_new = is_full || stored.cells.get(at) != Some(cell);
            is_changed |= is_new;
            values.push(if is_new { Value::Integer(*cell) } else { Value::Null });
        }
        stored.cells = cells;
        stored.sweep = id;
        if is_changed {
            let mut insert = self.connection.prepare_cached(&self.insert_cgroup_row)?;
            insert.execute(params_from_iter(values))?;
        }
        Ok(())
    }

    fn cgroup_id(&mut self, path: &Name) -> rusqlite::Result<i64> {
        if let Some(stored) = self.cgroups.get(path) {
            return Ok(stored.id);
        }
        let insert = "INSERT INTO cgroup(path) VALUES (?)";
        self.connection.prepare_cached(insert)?.execute(params![name_value(path)])?;
        let id = self.connection.last_insert_rowid();
        let stored = StoredCgroup { id, cells: Vec::new(), sweep: 0 };
        self.cgroups.insert(path.clone(), stored);
        Ok(id)
    }

    fn machine_row(&mut self, id: i64, sweep: &Sweep, is_full: bool) -> rusqlite::Result<()> {
        let fixed = MACHINE.iter().map(|it| (it.name.to_owned(), (it.get)(&sweep.machine)));
        let mut now: HashMap<String, Cell> = fixed.collect();
        for (name, cell) in machine_lines(&sweep.machine) {
            if !self.machine.iter().any(|(column, _)| *column == name) {
                let column = quoted(&name);
                let alter = format!("ALTER TABLE machine_row ADD COLUMN {column} INTEGER");
                self.connection.execute_batch(&alter)?;
                self.machine.push((name.clone(), None));
            }
            now.insert(name, cell);
        }
        let mut columns = Vec::new();
        let mut values = vec![Value::Integer(id)];
        for at in 0..self.machine.len() {
            let gone = || Err(Absent::NotRecorded("the kernel".into()));
            let cell = now.remove(&self.machine[at].0).unwrap_or_else(gone);
            let code = self.code(cell)?;
            let (name, last) = &mut self.machine[at];
            if is_full || *last != Some(code) {
                columns.push(quoted(name));
                values.push(Value::Integer(code));
                *last = Some(code);
            }
        }
        let placeholders = vec!["?"; values.len()].join(", ");
        let columns: String = columns.iter().map(|it| format!(", {it}")).collect();
        let insert = format!("INSERT INTO machine_row(sweep{columns}) VALUES ({placeholders})");
        self.connection.execute(&insert, params_from_iter(values))?;
        Ok(())
    }

    fn event_row(&mut self, sweep: i64, event: &SweepEventKind) -> rusqlite::Result<()> {
        let whole = |number: u64| Some(i64::try_from(number).unwrap_or(i64::MAX));
        let mut row = EventRow::default();
        match event {
            SweepEventKind::Started { process, name } => {
                row.process = self.known_process(*process);
                row.name = name_value(name);
            }
            SweepEventKind::Exited { process, name, peak_rss, last_rss, lived_ns } => {
                row.process = self.known_process(*process);
                row.name = name_value(name);
                let peak = peak_rss.clone().map(|it| (it.0 >> 10).cast_signed());
                row.peak_rss_kib = Some(self.code(peak)?);
                row.last_rss_kib = whole(last_rss.0 >> 10);
                row.lived_ns = whole(*lived_ns);
            }
            SweepEventKind::ShortLived { count } => row.count = whole(*count),
            SweepEventKind::OomKill { cgroup, kills } => {
                row.cgroup = cgroup.as_ref().map(|path| self.cgroup_id(path)).transpose()?;
                row.count = whole(*kills);
            }
            SweepEventKind::LimitHit { cgroup, hits, limit } => {
                row.cgroup = Some(self.cgroup_id(cgroup)?);
                row.count = whole(*hits);
                let unlimited = || -1;
                let limit = limit
                    .clone()
                    .map(|it| it.map_or_else(unlimited, |it| (it.0 >> 10).cast_signed()));
                row.peak_rss_kib = Some(self.code(limit)?);
            }
            SweepEventKind::Gap { .. }
            | SweepEventKind::ClockSet { .. }
            | SweepEventKind::Triggered { .. }
            | SweepEventKind::NotSaved { .. }
            | SweepEventKind::OomReport { .. } => {
                row.detail = serde_json::to_string(event).ok();
            }
        }
        let insert = "INSERT INTO event(sweep, id, kind, process, cgroup, name, count, \
                      peak_rss_kib, last_rss_kib, lived_ns, detail) \
                      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        self.events += 1;
        self.connection.prepare_cached(insert)?.execute(params![
            sweep,
            self.events,
            event.key(),
            row.process,
            row.cgroup,
            row.name,
            row.count,
            row.peak_rss_kib,
            row.last_rss_kib,
            row.lived_ns,
            row.detail,
        ])?;
        Ok(())
    }

    /// The ID of a process of the last rows, or of one that has ended since.
    fn known_process(&self, key: ProcessKey) -> Option<i64> {
        let last = self.processes.get(&key).map(|it| it.id);
        last.or_else(|| self.ended.get(&key).copied()).or_else(|| self.earlier.get(&key).copied())
    }

    fn category_rows(&mut self, sweep: i64, sample: &CategorySample) -> rusqlite::Result<()> {
        let Some(process) = self.known_process(sample.process) else { return Ok(()) };
        for category in &sample.categories {
            let id = match self.categories.get(&category.category) {
                Some(id) => *id,
                None => {
                    let insert = "INSERT INTO category(name) VALUES (?)";
                    let name = name_value(&category.category);
                    self.connection.prepare_cached(insert)?.execute(params![name])?;
                    let id = self.connection.last_insert_rowid();
                    self.categories.insert(category.category.clone(), id);
                    id
                }
            };
            let kib = |size: &Reading<pagewise_model::Bytes>| {
                size.clone().map(|it| (it.0 >> 10).cast_signed())
            };
            let rss = self.code(kib(&category.rss))?;
            let pss = self.code(kib(&category.pss))?;
            let swap = self.code(kib(&category.swap))?;
            let insert = "INSERT OR REPLACE INTO category_row VALUES (?, ?, ?, ?, ?, ?)";
            let mut insert = self.connection.prepare_cached(insert)?;
            insert.execute(params![sweep, process, id, rss, pss, swap])?;
        }
        Ok(())
    }
}

/// Remembers the ID of a row, and returns it.
fn note<K: Eq + std::hash::Hash>(known: &mut HashMap<K, i64>, key: K, id: i64) -> i64 {
    if known.len() >= MAX_KNOWN {
        known.clear();
    }
    known.insert(key, id);
    id
}

/// True if two identities have the same row. The parent has a column of its own, and the start
/// belongs to the process.
fn is_same(one: &Arc<ProcessIdentity>, other: &Arc<ProcessIdentity>) -> bool {
    Arc::ptr_eq(one, other)
        || (one.name == other.name
            && one.command == other.command
            && one.exe == other.exe
            && one.uid == other.uid
            && one.user == other.user
            && one.cgroup == other.cgroup)
}

/// Columns of `event`.
struct EventRow {
    process: Option<i64>,
    cgroup: Option<i64>,
    name: Value,
    count: Option<i64>,
    peak_rss_kib: Option<i64>,
    last_rss_kib: Option<i64>,
    lived_ns: Option<i64>,
    detail: Option<String>,
}

impl Default for EventRow {
    fn default() -> EventRow {
        EventRow {
            process: None,
            cgroup: None,
            name: Value::Null,
            count: None,
            peak_rss_kib: None,
            last_rss_kib: None,
            lived_ns: None,
            detail: None,
        }
    }
}

/// Codes of `pages` and `pages_ns`; `None` where they follow from the row before.
fn pages_codes(
    before: Option<&StoredProcess>,
    now: PagesReading,
    is_full: bool,
) -> (Option<i64>, Option<i64>) {
    let expected = before.map(|it| match it.pages {
        PagesReading::Now => PagesReading::Unchanged(it.pages_ns),
        pages => pages,
    });
    if expected == Some(now) && !is_full {
        return (None, None);
    }
    let (code, at) = match now {
        PagesReading::Now => return (Some(PAGES_NOW), None),
        PagesReading::Never => return (Some(PAGES_NEVER), None),
        PagesReading::Postponed(at) => (PAGES_POSTPONED, at),
        PagesReading::Unchanged(at) => (PAGES_UNCHANGED, at),
    };
    let is_known = !is_full && before.is_some_and(|it| it.pages_ns == at);
    (Some(code), (!is_known).then(|| at.cast_signed()))
}

/// A name as text, or as a blob if it is not UTF-8.
pub(crate) fn name_value(name: &Name) -> Value {
    match std::str::from_utf8(name.as_bytes()) {
        // SQL functions stop at a zero byte of a text.
        Ok(text) if !text.contains('\0') => Value::Text(text.to_owned()),
        _ => Value::Blob(name.as_bytes().to_owned()),
    }
}

/// A name that [`name_value`] wrote.
pub(crate) fn name_of(value: rusqlite::types::ValueRef<'_>) -> Name {
    Name::new(value.as_bytes().unwrap_or_default())
}

/// Reasons of absent values of a file.
pub(crate) fn absent_ids(connection: &Connection) -> rusqlite::Result<AbsentIds> {
    let mut ids = AbsentIds::default();
    let mut statement = connection.prepare("SELECT id, json FROM absent ORDER BY id")?;
    let mut rows = statement.query(())?;
    // The reasons before the damage of a damaged table are still right.
    while let Ok(Some(row)) = rows.next() {
        let json: String = row.get(1)?;
        let why = serde_json::from_str(&json);
        ids.add(row.get(0)?, why.unwrap_or_else(|_| Absent::NotRecorded(json.into())));
    }
    Ok(ids)
}
