//! What every number means: one row a field, from which help, tables and documents are made.

/// One field: a line of a `/proc` file, or a column that we print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The kernel's spelling, or our column's.
    pub name: &'static str,
    /// The file it is read from: `smaps`, `status`, `statm`, `meminfo`; `pagewise` for what we compute.
    pub source: &'static str,
    /// `kB`, `pages`, `bytes`, `flag`, `count`.
    pub unit: &'static str,
    /// The kernel release that brought it; empty where it has always been there.
    pub since: &'static str,
    /// One sentence.
    pub meaning: &'static str,
    /// What people take it for and it is not; empty where there is no trap.
    pub trap: &'static str,
}

/// Every field, by source and in the kernel's order.
pub const FIELDS: &[Field] = &[];

/// The fields of that name; upper and lower case matter only where two fields differ by it alone.
pub fn named(name: &str) -> impl Iterator<Item = &'static Field> {
    let exact = FIELDS.iter().any(|f| f.name == name);
    FIELDS
        .iter()
        .filter(move |f| if exact { f.name == name } else { f.name.eq_ignore_ascii_case(name) })
}
