//! JSON for programs: a dot in a key begins a nested object, sizes are in bytes, and absent values
//! have their reasons.
//!
//! Each table row is one line, so that `grep` finds it. Tables are streamed, so their length is not
//! limited by memory.

use std::io::{self, Write};
use std::rc::Rc;

use pagewise_model::name::{escape, is_plain};
use pagewise_model::report::{
    CellValue, Fact, Finding, Label, Report, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{Absent, Name};

use crate::cells::{CellForm, for_programs};
use crate::number;
use crate::text::inline;

/// Writes a report as one JSON object.
///
/// - Facts are members of the object at their key. A table is an array of objects, or an object of
///   objects if its rows have keys. Blocks whose keys begin with the same parts share an object.
/// - A missing value is `{"absent": "why"}`; an empty cell is `null`.
/// - A name is a string with its text. Bytes that are not valid UTF-8 become `\xNN`.
/// - If two members have the same key, only the later member is written.
///
/// ```
/// use pagewise_model::report::{Fact, NamedFacts, Report, FactsShape, CellValue, ReportBlock};
/// use pagewise_view::json::write;
///
/// let rss = Fact {
///     key: "rss".into(),
///     label: "RSS".into(),
///     value: CellValue::Bytes(4096),
///     meaning: "".into(),
///     audience: Default::default(),
/// };
/// let facts = NamedFacts {
///     key: "totals".into(),
///     title: "".into(),
///     audience: Default::default(),
///     shape: FactsShape::Line,
///     facts: vec![rss],
/// };
/// let report = Report { schema: "example/1", title: vec![], blocks: vec![ReportBlock::Facts(facts)] };
/// let mut out = Vec::new();
/// write(&report, &mut out).unwrap();
/// let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
/// assert_eq!(json["totals"]["rss"], 4096);
/// ```
///
/// # Errors
/// Returns the error of `out`.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = JsonWriter { out, buffer: Vec::new(), depth: 0 };
    writer.object(&tree(report))?;
    writer.buffer.push(b'\n');
    writer.out.write_all(&writer.buffer)
}

/// One value as JSON.
pub(crate) fn value_text(value: &CellValue) -> String {
    let mut nowhere = io::sink();
    let mut writer = JsonWriter { out: &mut nowhere, buffer: Vec::new(), depth: 0 };
    writer.value(value);
    String::from_utf8_lossy(&writer.buffer).into_owned()
}

/// Members of an object, in order of first appearance.
type Members<'r> = Vec<(&'r str, JsonNode<'r>)>;

/// Value of a member.
enum JsonNode<'r> {
    Object(Members<'r>),
    Text(&'r str),
    Value(&'r CellValue),
    Table(&'r ReportTable),
    Row(Rc<JsonColumns<'r>>, usize),
    Findings(Vec<&'r Finding>),
}

/// Builds the object of the report. Tables are not converted, but referenced.
fn tree(report: &Report) -> Members<'_> {
    let mut root: Members<'_> = vec![("schema", JsonNode::Text(report.schema))];
    for block in &report.blocks {
        match block {
            ReportBlock::Facts(facts) if for_programs(facts.audience) => {
                add_facts(object_at(&mut root, &facts.key), &facts.facts);
            }
            ReportBlock::Table(table) if for_programs(table.audience) => {
                add_table(&mut root, table)
            }
            ReportBlock::Findings(findings) => {
                match root.iter_mut().find(|(key, _)| *key == "findings") {
                    Some((_, JsonNode::Findings(so_far))) => so_far.extend(&findings.list),
                    _ => set(
                        &mut root,
                        "findings",
                        JsonNode::Findings(findings.list.iter().collect()),
                    ),
                }
            }
            ReportBlock::Facts(_) | ReportBlock::Table(_) => {}
            ReportBlock::AddressMap(_) | ReportBlock::Chart(_) | ReportBlock::Bars(_) => {}
            ReportBlock::Claims(_) | ReportBlock::Text(_) | ReportBlock::Part(_) => {}
        }
    }
    root
}

fn add_facts<'r>(object: &mut Members<'r>, facts: &'r [Fact]) {
    for fact in facts.iter().filter(|fact| for_programs(fact.audience)) {
        set(object, &fact.key, JsonNode::Value(&fact.value));
    }
}

/// Adds a table at its key: an array of rows, or an object of rows if the rows have keys.
fn add_table<'r>(root: &mut Members<'r>, table: &'r ReportTable) {
    if let Some(keys) = &table.row_keys {
        let object = object_at(root, &table.key);
        let columns = Rc::new(JsonColumns::of_table(table));
        for (key, row) in keys.iter().zip(0..table.rows()) {
            set(object, key, JsonNode::Row(Rc::clone(&columns), row));
        }
    } else {
        let (path, key) = table.key.rsplit_once('.').unwrap_or(("", &table.key));
        set(object_at(root, path), key, JsonNode::Table(table));
    }
}

/// Returns the object at a path of keys. Missing objects are created; an empty path is `object`
/// itself.
fn object_at<'t, 'r>(mut object: &'t mut Members<'r>, path: &'r str) -> &'t mut Members<'r> {
    for key in path.split('.').filter(|key| !key.is_empty()) {
        let at = object.iter().position(|(have, _)| *have == key).unwrap_or_else(|| {
            object.push((key, JsonNode::Object(Vec::new())));
            object.len() - 1
        });
        let node = &mut object[at].1;
        if !matches!(node, JsonNode::Object(_)) {
            *node = JsonNode::Object(Vec::new());
        }
        let JsonNode::Object(members) = node else { unreachable!("it was made one above") };
        object = members;
    }
    object
}

/// Sets a member. It replaces an earlier member with the same key.
fn set<'r>(object: &mut Members<'r>, key: &'r str, node: JsonNode<'r>) {
    match object.iter_mut().find(|(have, _)| *have == key) {
        Some((_, have)) => *have = node,
        None => object.push((key, node)),
    }
}

/// Number of collected bytes from which on they are written.
const CHUNK: usize = 1 << 16;

struct JsonWriter<'w> {
    out: &'w mut dyn Write,
    buffer: Vec<u8>,
    depth: usize,
}

impl JsonWriter<'_> {
    /// Writes an object with one line for each member.
    fn object(&mut self, members: &[(&str, JsonNode<'_>)]) -> io::Result<()> {
        self.lines(b"{}", members, |writer, (key, node)| {
            writer.key(key);
            writer.node(node)
        })
    }

    fn node(&mut self, node: &JsonNode<'_>) -> io::Result<()> {
        match node {
            JsonNode::Object(members) => return self.object(members),
            JsonNode::Table(table) => return self.table(table),
            JsonNode::Findings(list) => {
                return self.lines(b"[]", list, |writer, finding| {
                    writer.finding(finding);
                    Ok(())
                });
            }
            JsonNode::Row(columns, row) => self.row(columns, *row),
            JsonNode::Text(text) => self.string(text),
            JsonNode::Value(value) => self.value(value),
        }
        Ok(())
    }

    /// Writes items in brackets, one line for each item.
    fn lines<T>(
        &mut self,
        brackets: &[u8; 2],
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.buffer.push(brackets[0]);
        self.depth += 1;
        let mut any = false;
        for item in items {
            if any {
                self.buffer.push(b',');
            }
            any = true;
            self.newline()?;
            write(self, item)?;
        }
        self.depth -= 1;
        if any {
            self.newline()?;
        }
        self.buffer.push(brackets[1]);
        Ok(())
    }

    fn newline(&mut self) -> io::Result<()> {
        if self.buffer.len() > CHUNK {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        self.buffer.push(b'\n');
        self.buffer.resize(self.buffer.len() + 2 * self.depth, b' ');
        Ok(())
    }

    fn table(&mut self, table: &ReportTable) -> io::Result<()> {
        let columns = JsonColumns::of_table(table);
        self.lines(b"[]", 0..table.rows(), |writer, row| {
            writer.row(&columns, row);
            Ok(())
        })
    }

    /// Writes a row as an object on one line.
    fn row(&mut self, columns: &JsonColumns<'_>, row: usize) {
        self.buffer.push(b'{');
        for (key, column) in &columns.0 {
            self.buffer.extend_from_slice(key);
            self.cell(CellForm::at(column, row));
        }
        self.buffer.push(b'}');
    }

    fn finding(&mut self, finding: &Finding) {
        self.buffer.push(b'{');
        self.key("id");
        self.string(finding.id);
        self.buffer.extend_from_slice(b", ");
        self.key("severity");
        self.string(finding.severity.key());
        self.buffer.extend_from_slice(b", ");
        self.key("claim");
        self.string(&inline(&finding.claim));
        self.buffer.extend_from_slice(b", ");
        self.key("evidence");
        self.evidence(&finding.evidence);
        self.buffer.extend_from_slice(b", ");
        self.key("next_step");
        match inline(&finding.next_step).as_str() {
            "" => self.value(&CellValue::None),
            step => self.string(step),
        }
        self.buffer.push(b'}');
    }

    fn evidence(&mut self, facts: &[Fact]) {
        let mut members = Vec::new();
        add_facts(&mut members, facts);
        self.buffer.push(b'{');
        for (at, (key, node)) in members.iter().enumerate() {
            if at > 0 {
                self.buffer.extend_from_slice(b", ");
            }
            self.key(key);
            if let JsonNode::Value(value) = node {
                self.value(value);
            }
        }
        self.buffer.push(b'}');
    }

    fn key(&mut self, key: &str) {
        self.string(key);
        self.buffer.extend_from_slice(b": ");
    }

    fn cell(&mut self, cell: CellForm<'_>) {
        match cell {
            CellForm::Bytes(n) | CellForm::Count(n) | CellForm::Address(n) => self.number(n),
            CellForm::Name(name) => self.name(name),
            CellForm::Label(text) => self.string(text),
            CellForm::Absent(absent) => self.absent(absent),
            CellForm::Other(value) => self.value(value),
        }
    }

    fn value(&mut self, value: &CellValue) {
        match value {
            CellValue::None => self.buffer.extend_from_slice(b"null"),
            CellValue::Bytes(n)
            | CellValue::Count(n)
            | CellValue::Address(n)
            | CellValue::Nanos(n) => {
                self.number(*n);
            }
            CellValue::Seconds(ns) => {
                let (whole, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
                self.buffer.extend_from_slice(format!("{whole}.{rest:09}").as_bytes());
            }
            CellValue::Change(n) => {
                if *n < 0 {
                    self.buffer.push(b'-');
                }
                self.number(n.unsigned_abs());
            }
            CellValue::Number(number)
                if number.is_finite() && number.fract() == 0.0 && number.abs() < 1e15 =>
            {
                self.buffer.extend_from_slice(format!("{number:.0}").as_bytes());
            }
            CellValue::Share(number)
            | CellValue::Rate(number)
            | CellValue::Number(number)
            | CellValue::Bar(number)
                if number.is_finite() =>
            {
                // `Display` would write 300 zeros for 1e-300; `Debug` writes an exponent.
                self.buffer.extend_from_slice(format!("{number:?}").as_bytes());
            }
            CellValue::Share(_) | CellValue::Rate(_) | CellValue::Number(_) | CellValue::Bar(_) => {
                self.buffer.extend_from_slice(b"null")
            }
            CellValue::Flag(flag) => self.buffer.extend_from_slice(flag.to_string().as_bytes()),
            CellValue::Text(text) | CellValue::Picture(text) => self.string(text),
            CellValue::Name(name) => self.name(name),
            CellValue::List(values) => self.list(values),
            CellValue::Sentence(pieces) => self.string(&inline(pieces)),
            CellValue::Record(members) => self.record(members),
            CellValue::Absent(absent) => self.absent(absent),
        }
    }

    fn list(&mut self, values: &[CellValue]) {
        self.buffer.push(b'[');
        for (at, value) in values.iter().enumerate() {
            if at > 0 {
                self.buffer.extend_from_slice(b", ");
            }
            self.value(value);
        }
        self.buffer.push(b']');
    }

    /// Writes an object on one line. If members have equal keys, the last member counts.
    fn record(&mut self, members: &[(Label, CellValue)]) {
        self.buffer.push(b'{');
        let mut place = 0;
        for (at, (key, value)) in members.iter().enumerate() {
            if members[at + 1..].iter().any(|(later, _)| later == key) {
                continue;
            }
            self.buffer.extend_from_slice(&lead(place, key));
            self.value(value);
            place += 1;
        }
        self.buffer.push(b'}');
    }

    fn absent(&mut self, absent: &Absent) {
        self.buffer.push(b'{');
        self.key("absent");
        self.string(&absent.to_string());
        self.buffer.push(b'}');
    }

    fn number(&mut self, n: u64) {
        let mut field = [0; number::ROOM];
        let length = number::decimal(&mut field, n);
        self.buffer.extend_from_slice(&field[number::ROOM - length..]);
    }

    /// Writes a name: its text if it is valid UTF-8, otherwise its text with escapes.
    fn name(&mut self, name: &Name) {
        match std::str::from_utf8(name.as_bytes()) {
            Ok(text) => self.string(text),
            Err(_) => self.string(&escape(name.as_bytes())),
        }
    }

    fn string(&mut self, text: &str) {
        push_string(&mut self.buffer, text);
    }
}

/// Appends a JSON string without raw control characters, direction marks or invisible characters.
pub(crate) fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| matches!(c, '"' | '\\') || !is_plain(c)) {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let c = rest[at..].chars().next().expect("`find` found one here");
        push_escape(out, c);
        rest = &rest[at + c.len_utf8()..];
    }
    out.extend_from_slice(rest.as_bytes());
    out.push(b'"');
}

fn push_escape(out: &mut Vec<u8>, c: char) {
    match c {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\t' => out.extend_from_slice(b"\\t"),
        '\r' => out.extend_from_slice(b"\\r"),
        _ => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
            }
        }
    }
}

/// Columns for programs, each with the bytes that precede its cells: the key, after a comma if the
/// column is not the first.
struct JsonColumns<'r>(Vec<(Vec<u8>, &'r TableColumn)>);

impl<'r> JsonColumns<'r> {
    fn of_table(table: &'r ReportTable) -> JsonColumns<'r> {
        let mut columns: Vec<&TableColumn> = Vec::new();
        for column in table.columns.iter().filter(|column| for_programs(column.audience)) {
            match columns.iter_mut().find(|have| have.key == column.key) {
                Some(have) => *have = column,
                None => columns.push(column),
            }
        }
        JsonColumns(columns.into_iter().enumerate().map(|(at, c)| (lead(at, &c.key), c)).collect())
    }
}

/// Bytes that precede the value of a member: a comma if the member is not the first, and its key.
fn lead(place: usize, key: &str) -> Vec<u8> {
    let mut lead = if place > 0 { b", ".to_vec() } else { Vec::new() };
    push_string(&mut lead, key);
    lead.extend_from_slice(b": ");
    lead
}
