//! Reads the rows of one file as sweeps.

use std::collections::HashMap;
use std::sync::Arc;

use pagewise_model::sweep::{
    CategoryBytes, CategorySample, PagesReading, ProcessIdentity, ProcessKey, Sweep, SweepCost,
    SweepEvent, SweepEventKind, SweepMachine, SweepTime,
};
use pagewise_model::{Absent, Bytes, Name, Pid, Reading};
use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::cells::{
    AbsentIds, CGROUP, MACHINE, PROCESS, blank_cgroup, blank_machine, blank_process,
    set_machine_line,
};
use crate::day_file::DayFile;
use crate::day_rows::{
    PAGES_NEVER, PAGES_NOW, PAGES_POSTPONED, PAGES_UNCHANGED, absent_ids, name_of,
};
use crate::error::StoreError;
use crate::schema::{self, CGROUP_ROW, PROCESS_ROW};

/// Reader of one file.
#[derive(Debug)]
pub(super) struct DayReader {
    file: DayFile,
    connection: Connection,
    absent: AbsentIds,
    processes: HashMap<i64, (ProcessKey, u64)>,
    identities: HashMap<(i64, i64), Arc<ProcessIdentity>>,
    cgroups: HashMap<i64, Name>,
    /// Columns of `machine_row` for lines of `meminfo` and `vmstat`, and their last values.
    machine_columns: Vec<String>,
    machine: Vec<Option<i64>>,
    select_process: String,
    select_cgroup: String,
    sweep: Sweep,
    /// ID of the next sweep to read, and ID of the last one.
    next: i64,
    end: i64,
    /// ID of the first sweep that the caller requested. Earlier sweeps are read only to complete
    /// its values.
    wanted: i64,
    /// First and last time that the caller requested, in nanoseconds since 1970.
    range: (u64, u64),
    is_cut: bool,
}

impl DayReader {
    pub(super) fn open(file: &DayFile) -> Result<DayReader, StoreError> {
        let connection = file.open_to_read()?;
        let wrong = |error| StoreError::sqlite(&file.path, error);
        let columns = schema::machine_columns(&connection).map_err(wrong)?;
        let select =
            |columns: String, table: &str| format!("SELECT {columns} FROM {table} WHERE sweep = ?");
        Ok(DayReader {
            file: file.clone(),
            absent: absent_ids(&connection).map_err(wrong)?,
            processes: HashMap::new(),
            identities: HashMap::new(),
            cgroups: HashMap::new(),
            machine: vec![None; columns.len()],
            machine_columns: columns,
            select_process: select(schema::process_columns(), "process_row"),
            select_cgroup: select(schema::cgroup_columns(), "cgroup_row"),
            sweep: blank_sweep(),
            next: 1,
            end: 0,
            wanted: 1,
            range: (0, u64::MAX),
            is_cut: false,
            connection,
        })
    }

    fn wrong(&self, error: rusqlite::Error) -> StoreError {
        StoreError::sqlite(&self.file.path, error)
    }

    /// Calls `take` with the ID and time of each sweep. In a damaged file, it stops at the damage
    /// and sets `is_cut`.
    fn scan(&mut self, mut take: impl FnMut(i64, SweepTime)) -> Result<(), StoreError> {
        let select = "SELECT unix_ns, boot_ns, id FROM sweep ORDER BY id";
        let wrong = |error| StoreError::sqlite(&self.file.path, error);
        let mut statement = self.connection.prepare(select).map_err(wrong)?;
        let mut rows = statement.query(()).map_err(wrong)?;
        loop {
            match rows.next() {
                Ok(Some(row)) => take(row.get(2).map_err(wrong)?, sweep_time(row).map_err(wrong)?),
                Ok(None) => return Ok(()),
                Err(error) => match wrong(error) {
                    error if error.is_damage() => {
                        self.is_cut = true;
                        return Ok(());
                    }
                    error => return Err(error),
                },
            }
        }
    }

    /// Times of the first and the last sweep, and the number of sweeps; `None` if the file has no
    /// sweep.
    pub(super) fn span(&mut self) -> Result<Option<(SweepTime, SweepTime, u64)>, StoreError> {
        let mut span: Option<(SweepTime, SweepTime, u64)> = None;
        self.scan(|_, time| {
            let (first, _, count) = span.unwrap_or((time, time, 0));
            span = Some((first, time, count + 1));
        })?;
        Ok(span)
    }

    pub(super) fn next_after(&mut self, unix_ns: u64) -> Result<Option<SweepTime>, StoreError> {
        let select =
            "SELECT unix_ns, boot_ns FROM sweep WHERE unix_ns > ? ORDER BY unix_ns LIMIT 1";
        self.time(select, Some(unix_ns))
    }

    pub(super) fn last_before(&mut self, unix_ns: u64) -> Result<Option<SweepTime>, StoreError> {
        let select =
            "SELECT unix_ns, boot_ns FROM sweep WHERE unix_ns < ? ORDER BY unix_ns DESC LIMIT 1";
        self.time(select, Some(unix_ns))
    }

    fn time(&self, select: &str, at: Option<u64>) -> Result<Option<SweepTime>, StoreError> {
        let mut statement = self.connection.prepare(select).map_err(|error| self.wrong(error))?;
        let found = match at {
            Some(at) => statement.query_row(params![clamped(at)], sweep_time),
            None => statement.query_row((), sweep_time),
        };
        found.optional().map_err(|error| self.wrong(error))
    }

    /// ID of the last sweep at or before a time.
    pub(super) fn id_at(&mut self, unix_ns: u64) -> Result<Option<i64>, StoreError> {
        let mut best: Option<(u64, i64)> = None;
        self.scan(|id, time| {
            if time.unix_ns <= unix_ns && best.is_none_or(|best| (time.unix_ns, id) > best) {
                best = Some((time.unix_ns, id));
            }
        })?;
        Ok(best.map(|(_, id)| id))
    }

    /// The sweep with this ID.
    pub(super) fn sweep(&mut self, id: i64) -> Result<Sweep, StoreError> {
        self.range = (0, u64::MAX);
        self.begin_at(id, id)?;
        self.step()?;
        Ok(self.sweep.clone())
    }

    /// IDs of the first and the last sweep from `from_ns` to `to_ns`.
    fn ids(&mut self, from_ns: u64, to_ns: u64) -> Result<Option<(i64, i64)>, StoreError> {
        let mut ends: Option<(i64, i64)> = None;
        self.scan(|id, time| {
            if (from_ns..=to_ns).contains(&time.unix_ns) {
                ends = Some((ends.map_or(id, |ends| ends.0), id));
            }
        })?;
        Ok(ends)
    }

    /// Prepares to read the sweeps from `from_ns` to `to_ns`.
    pub(super) fn begin(&mut self, from_ns: u64, to_ns: u64) -> Result<(), StoreError> {
        self.range = (from_ns, to_ns);
        match self.ids(from_ns, to_ns)? {
            Some((first, last)) => self.begin_at(first, last),
            None => {
                (self.next, self.end) = (1, 0);
                Ok(())
            }
        }
    }

    /// True if a part of the file is missing.
    pub(super) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn begin_at(&mut self, first: i64, last: i64) -> Result<(), StoreError> {
        let select = "SELECT max(id) FROM sweep WHERE id <= ? AND is_full";
        let full = self.connection.query_row(select, params![first], |row| row.get(0));
        let full: Option<i64> = full.map_err(|error| self.wrong(error))?;
        (self.next, self.wanted, self.end) = (full.unwrap_or(first), first, last);
        Ok(())
    }

    /// Continues at the next complete sweep. Returns false if the file has none.
    pub(super) fn skip_damage(&mut self) -> Result<bool, StoreError> {
        let select = "SELECT min(id) FROM sweep WHERE id >= ? AND is_full";
        let full = self.connection.query_row(select, params![self.next], |row| row.get(0));
        let full: Option<i64> = full.map_err(|error| self.wrong(error))?;
        Ok(full.filter(|id| *id <= self.end).map(|id| self.next = id).is_some())
    }

    /// The sweep that the last call of [`DayReader::step`] read.
    pub(super) const fn current(&self) -> &Sweep {
        &self.sweep
    }

    /// Reads up to the next requested sweep. Returns false at the end.
    pub(super) fn step(&mut self) -> Result<bool, StoreError> {
        while self.next <= self.end {
            let id = self.next;
            self.next += 1;
            // If the ID is missing, the row of the sweep was on a damaged page.
            let is_there = self.apply(id).map_err(|error| self.wrong(error))?;
            // If the clock was set, the times are not in order.
            let is_wanted = (self.range.0..=self.range.1).contains(&self.sweep.time.unix_ns);
            if is_there && id >= self.wanted && is_wanted {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn apply(&mut self, id: i64) -> rusqlite::Result<bool> {
        let select = "SELECT unix_ns, boot_ns, took_ns, cpu_ns, longest_hold_ns, pages_read, \
                      postponed, kernel_threads, vanished, hidden, is_full, cgroups FROM sweep \
                      WHERE id = ?";
        let mut statement = self.connection.prepare_cached(select)?;
        let before_ns = self.sweep.time.boot_ns;
        let count = |row: &Row<'_>, at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        let mut rows = statement.query(params![id])?;
        let Some(row) = rows.next()? else { return Ok(false) };
        self.sweep.time = sweep_time(row)?;
        self.sweep.cost = SweepCost {
            took_ns: count(row, 2)?,
            cpu_ns: count(row, 3)?,
            longest_hold_ns: count(row, 4)?,
            pages_read: count(row, 5)?,
            postponed: count(row, 6)?,
        };
        self.sweep.kernel_threads = count(row, 7)?;
        self.sweep.vanished = count(row, 8)?;
        self.sweep.hidden = count(row, 9)?;
        let (is_full, cgroups): (bool, i64) = (row.get(10)?, row.get(11)?);
        drop(rows);
        drop(statement);
        if is_full {
            self.sweep.processes.clear();
            self.sweep.cgroups = Ok(Vec::new());
            self.machine.fill(None);
        }
        for process in &mut self.sweep.processes {
            if process.pages == PagesReading::Now {
                process.pages = PagesReading::Unchanged(before_ns);
            }
        }
        match self.absent.cell(cgroups) {
            Ok(_) if self.sweep.cgroups.is_err() => self.sweep.cgroups = Ok(Vec::new()),
            Ok(_) => {}
            Err(why) => self.sweep.cgroups = Err(why),
        }
        self.process_rows(id)?;
        self.cgroup_rows(id)?;
        self.machine_row(id)?;
        Ok(true)
    }

    fn process_rows(&mut self, id: i64) -> rusqlite::Result<()> {
        let DayReader { connection, processes, identities, absent, sweep, .. } = self;
        let mut statement = connection.prepare_cached(&self.select_process)?;
        let mut rows = statement.query(params![id])?;
        while let Some(row) = rows.next()? {
            let process: i64 = row.get(1)?;
            let (key, started) = known_process(connection, processes, process)?;
            let at = sweep.processes.binary_search_by_key(&key, |it| it.key);
            if row.get::<_, Option<i64>>(2)?.is_some() {
                if let Ok(at) = at {
                    sweep.processes.remove(at);
                }
                continue;
            }
            let identity: Option<i64> = row.get(3)?;
            let identity = identity
                .map(|it| identity_of(connection, identities, absent, (process, it), started))
                .transpose()?;
            let at = match (at, identity) {
                (Ok(at), None) => at,
                (Ok(at), Some(identity)) => {
                    let before = &mut sweep.processes[at].identity;
                    let parent = before.parent;
                    *before = identity;
                    if before.parent != parent {
                        Arc::make_mut(before).parent = parent;
                    }
                    at
                }
                (Err(at), Some(identity)) => {
                    sweep.processes.insert(at, blank_process(key, identity));
                    at
                }
                // The complete row before this row is damaged.
                (Err(_), None) => continue,
            };
            let values = &mut sweep.processes[at];
            for (at, column) in PROCESS.iter().enumerate() {
                if let Some(code) = integer(row, PROCESS_ROW.len() + at)? {
                    (column.set)(values, absent.cell(code));
                }
            }
            let pages_ns = integer(row, 5)?.map(i64::cast_unsigned);
            values.pages = match (integer(row, 4)?, values.pages) {
                (None, pages) => pages,
                (Some(PAGES_NOW), _) => PagesReading::Now,
                (Some(PAGES_NEVER), _) => PagesReading::Never,
                (Some(code), PagesReading::Unchanged(at) | PagesReading::Postponed(at)) => {
                    read_at(code, pages_ns.unwrap_or(at))
                }
                (Some(code), _) => read_at(code, pages_ns.unwrap_or_default()),
            };
        }
        Ok(())
    }

    fn cgroup_rows(&mut self, id: i64) -> rusqlite::Result<()> {
        let Ok(cgroups) = &mut self.sweep.cgroups else { return Ok(()) };
        let mut statement = self.connection.prepare_cached(&self.select_cgroup)?;
        let mut rows = statement.query(params![id])?;
        while let Some(row) = rows.next()? {
            let path = known_cgroup(&self.connection, &mut self.cgroups, row.get(1)?)?;
            let at = cgroups.binary_search_by(|it| it.path.cmp(&path));
            if row.get::<_, Option<i64>>(2)?.is_some() {
                if let Ok(at) = at {
                    cgroups.remove(at);
                }
                continue;
            }
            let at = at.unwrap_or_else(|at| {
                cgroups.insert(at, blank_cgroup(path));
                at
            });
            for (column_at, column) in CGROUP.iter().enumerate() {
                if let Some(code) = integer(row, CGROUP_ROW.len() + column_at)? {
                    (column.set)(&mut cgroups[at], self.absent.cell(code));
                }
            }
        }
        Ok(())
    }

    fn machine_row(&mut self, id: i64) -> rusqlite::Result<()> {
        let select = "SELECT * FROM machine_row WHERE sweep = ?";
        let mut statement = self.connection.prepare_cached(select)?;
        let mut rows = statement.query(params![id])?;
        if let Some(row) = rows.next()? {
            for (at, last) in self.machine.iter_mut().enumerate() {
                *last = integer(row, at + 1)?.or(*last);
            }
        }
        self.sweep.machine = machine_of(&self.machine_columns, &self.machine, &self.absent);
        Ok(())
    }

    /// Events from `from` to `to`.
    pub(super) fn events(&mut self, from: u64, to: u64) -> Result<Vec<SweepEvent>, StoreError> {
        let select = "SELECT unix_ns, boot_ns, kind, process, cgroup, name, count, peak_rss_kib, \
                      last_rss_kib, lived_ns, detail FROM event JOIN sweep ON sweep.id = \
                      event.sweep WHERE event.sweep BETWEEN ? AND ? AND unix_ns BETWEEN ? AND ? \
                      ORDER BY event.sweep, event.id";
        let mut events = Vec::new();
        let found = self.each(select, (from, to), |day, row| {
            events.extend(day.event(row)?);
            Ok(())
        });
        // If the table is damaged, the events before the damage are still valid.
        match found {
            Err(error) if events.is_empty() => Err(error),
            _ => Ok(events),
        }
    }

    fn event(&mut self, row: &Row<'_>) -> rusqlite::Result<Option<SweepEvent>> {
        let time = sweep_time(row)?;
        let kind: String = row.get(2)?;
        let process = match integer(row, 3)? {
            Some(id) => known_process(&self.connection, &mut self.processes, id)?.0,
            None => ProcessKey::default(),
        };
        let cgroup = integer(row, 4)?
            .map(|id| known_cgroup(&self.connection, &mut self.cgroups, id))
            .transpose()?;
        let name = name_of(row.get_ref(5)?);
        let count = integer(row, 6)?.unwrap_or(0).cast_unsigned();
        let size = integer(row, 7)?.unwrap_or(0);
        let number =
            |at| Ok::<u64, rusqlite::Error>(integer(row, at)?.unwrap_or(0).cast_unsigned());
        let event = match kind.as_str() {
            "started" => SweepEventKind::Started { process, name },
            "exited" => SweepEventKind::Exited {
                process,
                name,
                peak_rss: self.absent.cell(size).map(|it| Bytes::kib(it.cast_unsigned())),
                last_rss: Bytes::kib(number(8)?),
                lived_ns: number(9)?,
            },
            "short-lived" => SweepEventKind::ShortLived { count },
            "oom-kill" => SweepEventKind::OomKill { cgroup, kills: count },
            "limit-hit" => SweepEventKind::LimitHit {
                cgroup: cgroup.unwrap_or_default(),
                hits: count,
                limit: self
                    .absent
                    .cell(size)
                    .map(|it| (it >= 0).then(|| Bytes::kib(it.cast_unsigned()))),
            },
            _ => {
                let detail: Option<String> = row.get(10)?;
                match detail.and_then(|json| serde_json::from_str(&json).ok()) {
                    Some(event) => event,
                    // A later version wrote an event of an unknown kind.
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(SweepEvent { time, event }))
    }

    /// Memory by category of processes.
    pub(super) fn categories(
        &mut self,
        from: u64,
        to: u64,
    ) -> Result<Vec<CategorySample>, StoreError> {
        let select = "SELECT unix_ns, boot_ns, process, name, rss_kib, pss_kib, swap_kib \
                      FROM category_row JOIN sweep ON sweep.id = category_row.sweep \
                      JOIN category ON category.id = category_row.category \
                      WHERE category_row.sweep BETWEEN ? AND ? AND unix_ns BETWEEN ? AND ? \
                      ORDER BY category_row.sweep, process, rss_kib DESC";
        let mut samples: Vec<CategorySample> = Vec::new();
        self.each(select, (from, to), |day, row| {
            let time = sweep_time(row)?;
            let process = known_process(&day.connection, &mut day.processes, row.get(2)?)?.0;
            let size = |at| -> rusqlite::Result<Reading<Bytes>> {
                let code: i64 = row.get(at)?;
                Ok(day.absent.cell(code).map(|it| Bytes::kib(it.cast_unsigned())))
            };
            let category = CategoryBytes {
                category: name_of(row.get_ref(3)?),
                rss: size(4)?,
                pss: size(5)?,
                swap: size(6)?,
            };
            match samples.last_mut().filter(|it| it.time == time && it.process == process) {
                Some(sample) => sample.categories.push(category),
                None => samples.push(CategorySample { time, process, categories: vec![category] }),
            }
            Ok(())
        })?;
        Ok(samples)
    }

    /// Snapshots and diagnoses that triggers saved.
    pub(super) fn saved_files(
        &mut self,
        from: u64,
        to: u64,
    ) -> Result<Vec<(SweepTime, String, String)>, StoreError> {
        let select = "SELECT unix_ns, boot_ns, kind, file FROM saved_file JOIN sweep ON sweep.id = \
                      saved_file.sweep WHERE sweep BETWEEN ? AND ? AND unix_ns BETWEEN ? AND ? \
                      ORDER BY saved_file.id";
        let mut found = Vec::new();
        self.each(select, (from, to), |_, row| {
            found.push((sweep_time(row)?, row.get(2)?, row.get(3)?));
            Ok(())
        })?;
        Ok(found)
    }

    fn each(
        &mut self,
        select: &str,
        (from, to): (u64, u64),
        mut take: impl FnMut(&mut DayReader, &Row<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let Some((first, last)) = self.ids(from, to)? else { return Ok(()) };
        let path = self.file.path.clone();
        let wrong = |error| StoreError::sqlite(&path, error);
        // The rows borrow this second connection, so that they do not borrow the reader.
        let connection = self.file.open_to_read()?;
        let mut statement = connection.prepare(select).map_err(wrong)?;
        let mut rows =
            statement.query(params![first, last, clamped(from), clamped(to)]).map_err(wrong)?;
        while let Some(row) = rows.next().map_err(wrong)? {
            take(self, row).map_err(wrong)?;
        }
        Ok(())
    }
}

fn clamped(unix_ns: u64) -> i64 {
    i64::try_from(unix_ns).unwrap_or(i64::MAX)
}

fn integer(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<i64>> {
    match row.get_ref(at)? {
        ValueRef::Null => Ok(None),
        ValueRef::Integer(value) => Ok(Some(value)),
        other => Err(rusqlite::Error::InvalidColumnType(at, String::new(), type_of(other))),
    }
}

fn type_of(value: ValueRef<'_>) -> Type {
    value.data_type()
}

fn sweep_time(row: &Row<'_>) -> rusqlite::Result<SweepTime> {
    let (unix, boot): (i64, i64) = (row.get(0)?, row.get(1)?);
    Ok(SweepTime { unix_ns: unix.cast_unsigned(), boot_ns: boot.cast_unsigned() })
}

const fn read_at(code: i64, at: u64) -> PagesReading {
    match code {
        PAGES_POSTPONED => PagesReading::Postponed(at),
        PAGES_UNCHANGED => PagesReading::Unchanged(at),
        _ => PagesReading::Never,
    }
}

fn known_process(
    connection: &Connection,
    known: &mut HashMap<i64, (ProcessKey, u64)>,
    id: i64,
) -> rusqlite::Result<(ProcessKey, u64)> {
    if let Some(found) = known.get(&id) {
        return Ok(*found);
    }
    let select = "SELECT pid, start_ticks, started_unix_ns FROM process WHERE id = ?";
    let found = connection.prepare_cached(select)?.query_row(params![id], |row| {
        let (pid, ticks, started): (u32, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let key = ProcessKey { pid: Pid(pid), start_ticks: ticks.cast_unsigned() };
        Ok((key, started.cast_unsigned()))
    })?;
    known.insert(id, found);
    Ok(found)
}

fn known_cgroup(
    connection: &Connection,
    known: &mut HashMap<i64, Name>,
    id: i64,
) -> rusqlite::Result<Name> {
    if let Some(path) = known.get(&id) {
        return Ok(path.clone());
    }
    let select = "SELECT path FROM cgroup WHERE id = ?";
    let path = connection
        .prepare_cached(select)?
        .query_row(params![id], |row| Ok(name_of(row.get_ref(0)?)))?;
    known.insert(id, path.clone());
    Ok(path)
}

fn identity_of(
    connection: &Connection,
    known: &mut HashMap<(i64, i64), Arc<ProcessIdentity>>,
    absent: &AbsentIds,
    (process, id): (i64, i64),
    started_unix_ns: u64,
) -> rusqlite::Result<Arc<ProcessIdentity>> {
    if let Some(found) = known.get(&(process, id)) {
        return Ok(Arc::clone(found));
    }
    let select = "SELECT name, command, exe, uid, user, cgroup FROM identity \
                  JOIN program ON program.id = program WHERE identity.id = ?";
    let name = |value: ValueRef<'_>| match value {
        ValueRef::Integer(code) => Err(absent.cell(code).err().unwrap_or(Absent::Vanished)),
        other => Ok(name_of(other)),
    };
    let found = connection.prepare_cached(select)?.query_row(params![id], |row| {
        let command = match row.get_ref(1)? {
            ValueRef::Integer(code) => Err(absent.cell(code).err().unwrap_or(Absent::Vanished)),
            other => {
                Ok(serde_json::from_slice(other.as_bytes().unwrap_or_default()).unwrap_or_default())
            }
        };
        let uid = absent.cell(row.get(3)?);
        Ok(ProcessIdentity {
            name: name_of(row.get_ref(0)?),
            // The caller sets the parent: it is a column of the table `process_row`, which this
            // query does not read.
            parent: Pid(0),
            command,
            exe: name(row.get_ref(2)?),
            uid: uid.map(|uid| u32::try_from(uid).unwrap_or(u32::MAX)),
            user: match row.get_ref(4)? {
                ValueRef::Null => None,
                value => Some(name_of(value)),
            },
            cgroup: name(row.get_ref(5)?),
            started_unix_ns,
        })
    })?;
    let found = Arc::new(found);
    known.insert((process, id), Arc::clone(&found));
    Ok(found)
}

fn machine_of(columns: &[String], values: &[Option<i64>], absent: &AbsentIds) -> SweepMachine {
    let mut machine = blank_machine();
    for (at, column) in MACHINE.iter().enumerate() {
        if let Some(code) = values.get(at).copied().flatten() {
            (column.set)(&mut machine, absent.cell(code));
        }
    }
    for (column, code) in columns.iter().zip(values).skip(MACHINE.len()) {
        if let Some(Ok(value)) = code.map(|code| absent.cell(code)) {
            set_machine_line(&mut machine, column, value);
        }
    }
    machine
}

fn blank_sweep() -> Sweep {
    Sweep {
        time: SweepTime::default(),
        cost: SweepCost::default(),
        processes: Vec::new(),
        kernel_threads: 0,
        vanished: 0,
        hidden: 0,
        cgroups: Ok(Vec::new()),
        machine: blank_machine(),
    }
}
