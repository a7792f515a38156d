//! A small language that chooses rows: `rss>1M && name~libc`.
//!
//! ```text
//! filter  = all { "||" all }
//! all     = term { "&&" term }
//! term    = "!" term | "(" filter ")" | column op value
//! op      = ">" | ">=" | "<" | "<=" | "==" | "=" | "!=" | "~" | "!~"
//! value   = number [ K M G T [ iB | B ] ] | 0xHEX | word | "quoted"
//! ```
//!
//! Sizes are powers of 1024. `~` asks whether a text contains the value. Column names are those of
//! the table, upper and lower case alike. A value that is absent fits no comparison, `!=` included.

use std::borrow::Cow;
use std::fmt;

use pagewise_model::name::escape;

use crate::define::nearest;

/// Maximum nesting of parentheses and `!`: a deeper filter would exhaust the stack.
const DEEPEST: usize = 64;

/// A filter as it was written; its columns are not looked up yet.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFilter {
    expr: Expr<FilterColumn>,
    text: String,
}

/// A column with its positions in the text. Equality ignores the positions, so filters that differ
/// only in spacing are equal.
#[derive(Clone, Debug)]
struct FilterColumn {
    name: String,
    at: usize,
    value_at: usize,
}

impl PartialEq for FilterColumn {
    fn eq(&self, other: &FilterColumn) -> bool {
        self.name.eq_ignore_ascii_case(&other.name)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Expr<C> {
    Any(Vec<Expr<C>>),
    All(Vec<Expr<C>>),
    Not(Box<Expr<C>>),
    Compare(C, Op, Operand),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Greater,
    AtLeast,
    Less,
    AtMost,
    Equal,
    Differs,
    Contains,
    Lacks,
}

/// The longer spellings stand first, so that `>=` is not read as `>`.
const OPS: [(&str, Op); 9] = [
    (">=", Op::AtLeast),
    ("<=", Op::AtMost),
    ("==", Op::Equal),
    ("!=", Op::Differs),
    ("!~", Op::Lacks),
    (">", Op::Greater),
    ("<", Op::Less),
    ("=", Op::Equal),
    ("~", Op::Contains),
];

/// A value as it was written, and as a number where it is one.
#[derive(Clone, Debug, PartialEq)]
struct Operand {
    text: String,
    number: Option<u64>,
}

/// Type of a column: it decides which comparisons are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Bytes, counts, addresses.
    Number,
    /// Names and modes.
    Text,
}

/// One value of a row.
#[derive(Clone, Debug)]
pub enum Datum<'a> {
    /// Bytes, a count, an address.
    Number(u64),
    /// A name or a mode.
    Text(Cow<'a, [u8]>),
    /// The row has none: fits no comparison.
    Absent,
}

/// A [`RowFilter`] whose columns are known: `K` stands for one.
#[derive(Clone, Debug)]
pub struct BoundFilter<K>(Expr<K>);

/// A filter, or a list of columns, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterError {
    /// The filter is invalid at character `at`, counted from 0.
    Filter {
        /// The filter.
        text: String,
        /// Position.
        at: usize,
        /// Expected and actual text.
        message: String,
    },
    /// No column of that name, in `--columns` or `--sort`.
    UnknownColumn {
        /// Requested name.
        name: String,
        /// Columns of similar names.
        similar: Vec<String>,
    },
}

impl FilterError {
    /// Error for a column `name` that is not among `known`.
    pub fn unknown_column(name: &str, known: &[&str]) -> FilterError {
        let similar = nearest(name, known.iter().copied()).into_iter().map(str::to_owned).collect();
        FilterError::UnknownColumn { name: name.to_owned(), similar }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterError::Filter { text, at, message } => {
                let before: String = text.chars().take(*at).collect();
                let column = escape(before.as_bytes()).chars().count();
                writeln!(f, "filter, column {}: {message}", at + 1)?;
                writeln!(f, "    {}", escape(text.as_bytes()))?;
                write!(f, "    {:column$}^", "")
            }
            FilterError::UnknownColumn { name, similar } => {
                write!(f, "no column is called \"{}\"{}", escape(name.as_bytes()), Hint(similar))
            }
        }
    }
}

impl std::error::Error for FilterError {}

/// `; did you mean a or b?`
struct Hint<'a>(&'a [String]);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "; did you mean {}?", self.0.join(" or "))
    }
}

impl RowFilter {
    /// Reads a filter.
    ///
    /// ```
    /// use pagewise_analysis::filter::RowFilter;
    /// let filter = RowFilter::parse("rss > 1M && (name~libc || mode~x)")?;
    /// assert_eq!(filter.to_string(), "rss>1M && (name~libc || mode~x)");
    /// # Ok::<(), pagewise_analysis::filter::FilterError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error with the position and the expected text if the filter is invalid.
    pub fn parse(text: &str) -> Result<RowFilter, FilterError> {
        let mut parser =
            FilterParser { text, chars: text.char_indices().collect(), at: 0, depth: 0 };
        let expr = parser.any()?;
        match parser.peek() {
            None => Ok(RowFilter { expr, text: text.to_owned() }),
            Some(_) => Err(parser.expected("`&&`, `||` or the end")),
        }
    }

    /// Resolves the names of columns.
    ///
    /// # Errors
    /// A column that `look_up` does not know, or a comparison that its kind does not allow.
    pub fn bind<K>(
        &self,
        look_up: impl Fn(&str) -> Option<(K, ColumnKind)>,
        known: &[&str],
    ) -> Result<BoundFilter<K>, FilterError> {
        let error = |at, message| FilterError::Filter { text: self.text.clone(), at, message };
        let bound = self.expr.try_map(&|column: &FilterColumn, op, operand: &Operand| {
            let (key, kind) = look_up(&column.name).ok_or_else(|| {
                let similar = FilterError::unknown_column(&column.name, known);
                error(column.at, similar.to_string())
            })?;
            match (kind, op) {
                (ColumnKind::Text, Op::Greater | Op::AtLeast | Op::Less | Op::AtMost) => {
                    Err(error(column.at, format!("{} is text: use ==, !=, ~ or !~", column.name)))
                }
                (ColumnKind::Number, Op::Contains | Op::Lacks) => {
                    Err(error(column.at, format!("{} is a number: ~ is for text", column.name)))
                }
                (ColumnKind::Number, _) if operand.number.is_none() => {
                    let found = escape(operand.text.as_bytes());
                    let message =
                        format!("expected a size such as 4096 or 1.5M, found \"{found}\"");
                    Err(error(column.value_at, message))
                }
                _ => Ok(key),
            }
        })?;
        Ok(BoundFilter(bound))
    }
}

impl<K> BoundFilter<K> {
    /// True if a row fits; `value` gives its value in a column.
    pub fn fits<'a>(&self, value: &impl Fn(&K) -> Datum<'a>) -> bool {
        self.0.fits(value)
    }
}

impl<C> Expr<C> {
    fn try_map<K, E>(
        &self,
        make: &impl Fn(&C, Op, &Operand) -> Result<K, E>,
    ) -> Result<Expr<K>, E> {
        let list = |all: &[Expr<C>]| {
            all.iter().map(|expr| expr.try_map(make)).collect::<Result<Vec<_>, E>>()
        };
        Ok(match self {
            Expr::Any(all) => Expr::Any(list(all)?),
            Expr::All(all) => Expr::All(list(all)?),
            Expr::Not(expr) => Expr::Not(Box::new(expr.try_map(make)?)),
            Expr::Compare(column, op, operand) => {
                Expr::Compare(make(column, *op, operand)?, *op, operand.clone())
            }
        })
    }

    fn fits<'a>(&self, value: &impl Fn(&C) -> Datum<'a>) -> bool {
        match self {
            Expr::Any(all) => all.iter().any(|expr| expr.fits(value)),
            Expr::All(all) => all.iter().all(|expr| expr.fits(value)),
            Expr::Not(expr) => !expr.fits(value),
            Expr::Compare(column, op, operand) => op.holds(&value(column), operand),
        }
    }
}

impl Op {
    fn holds(self, value: &Datum<'_>, operand: &Operand) -> bool {
        match (value, operand.number) {
            (Datum::Absent, _) | (Datum::Number(_), None) => false,
            (Datum::Number(left), Some(right)) => self.compares(*left, right),
            (Datum::Text(text), _) => self.compares_text(text, operand.text.as_bytes()),
        }
    }

    fn compares(self, left: u64, right: u64) -> bool {
        match self {
            Op::Greater => left > right,
            Op::AtLeast => left >= right,
            Op::Less => left < right,
            Op::AtMost => left <= right,
            Op::Equal => left == right,
            Op::Differs => left != right,
            Op::Contains | Op::Lacks => false,
        }
    }

    fn compares_text(self, text: &[u8], part: &[u8]) -> bool {
        let contains = || part.is_empty() || text.windows(part.len()).any(|piece| piece == part);
        match self {
            Op::Equal => text == part,
            Op::Differs => text != part,
            Op::Contains => contains(),
            Op::Lacks => !contains(),
            Op::Greater | Op::AtLeast | Op::Less | Op::AtMost => false,
        }
    }

    fn spelling(self) -> &'static str {
        OPS.iter().find(|(_, op)| *op == self).expect("every operator is in the table").0
    }
}

/// In the form that [`RowFilter::parse`] reads back to an equal filter.
impl fmt::Display for RowFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.write(f)
    }
}

impl Expr<FilterColumn> {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Any(all) => write_list(f, all, " || "),
            Expr::All(all) => write_list(f, all, " && "),
            Expr::Not(expr) => {
                f.write_str("!")?;
                expr.write_inside(f)
            }
            Expr::Compare(column, op, operand) => {
                write!(f, "{}{}", column.name, op.spelling())?;
                operand.write(f)
            }
        }
    }

    /// As a part of a longer expression: lists in parentheses.
    fn write_inside(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self, Expr::Not(_) | Expr::Compare(..)) {
            return self.write(f);
        }
        f.write_str("(")?;
        self.write(f)?;
        f.write_str(")")
    }
}

fn write_list(
    f: &mut fmt::Formatter<'_>,
    all: &[Expr<FilterColumn>],
    between: &str,
) -> fmt::Result {
    for (i, expr) in all.iter().enumerate() {
        f.write_str(if i == 0 { "" } else { between })?;
        expr.write_inside(f)?;
    }
    Ok(())
}

impl Operand {
    fn new(text: String) -> Operand {
        Operand { number: number(&text), text }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.text.is_empty() && self.text.chars().all(is_bare) {
            return f.write_str(&self.text);
        }
        f.write_str("\"")?;
        for c in self.text.chars() {
            if matches!(c, '"' | '\\') {
                f.write_str("\\")?;
            }
            write!(f, "{c}")?;
        }
        f.write_str("\"")
    }
}

/// True if a character may stand in a value without quotes.
fn is_bare(c: char) -> bool {
    !c.is_whitespace() && !"()&|!<>=~\"'".contains(c)
}

/// `4096`, `1.5M`, `2GiB`, `0x7f00`; `None` for anything else.
fn number(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return hex
            .bytes()
            .all(|b| b.is_ascii_hexdigit())
            .then(|| u64::from_str_radix(hex, 16).ok())?;
    }
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (mantissa, suffix) = text.split_at(digits);
    let shift = shift(suffix)?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    // Digits of a fraction after the ninth are ignored: the ninth of a TiB is about 1 KiB.
    let fraction = fraction.get(..fraction.len().min(9)).filter(|f| !f.is_empty())?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let whole = u128::from(whole.parse::<u64>().ok()?);
    let scaled = whole * scale + u128::from(fraction.parse::<u64>().ok()?);
    u64::try_from(scaled.checked_mul(1 << shift)? / scale).ok()
}

/// The power of two that a size suffix stands for.
fn shift(suffix: &str) -> Option<u32> {
    let unit = suffix.to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    match unit {
        "" => Some(0),
        "k" => Some(10),
        "m" => Some(20),
        "g" => Some(30),
        "t" => Some(40),
        _ => None,
    }
}

struct FilterParser<'a> {
    text: &'a str,
    chars: Vec<(usize, char)>,
    at: usize,
    depth: usize,
}

impl FilterParser<'_> {
    fn any(&mut self) -> Result<Expr<FilterColumn>, FilterError> {
        self.list("||", FilterParser::all, Expr::Any)
    }

    fn all(&mut self) -> Result<Expr<FilterColumn>, FilterError> {
        self.list("&&", FilterParser::term, Expr::All)
    }

    /// One or more of `item` with `between` between them; a single one stands for itself.
    fn list(
        &mut self,
        between: &str,
        item: fn(&mut Self) -> Result<Expr<FilterColumn>, FilterError>,
        make: fn(Vec<Expr<FilterColumn>>) -> Expr<FilterColumn>,
    ) -> Result<Expr<FilterColumn>, FilterError> {
        let first = item(self)?;
        if !self.consume_token(between) {
            return Ok(first);
        }
        let mut list = vec![first, item(self)?];
        while self.consume_token(between) {
            list.push(item(self)?);
        }
        Ok(make(list))
    }

    fn term(&mut self) -> Result<Expr<FilterColumn>, FilterError> {
        if self.consume_token("!") {
            return self.nested(|parser| Ok(Expr::Not(Box::new(parser.term()?))));
        }
        if !self.consume_token("(") {
            return self.comparison();
        }
        let inside = self.nested(FilterParser::any)?;
        if self.consume_token(")") { Ok(inside) } else { Err(self.expected("`)`")) }
    }

    fn nested(
        &mut self,
        inside: impl FnOnce(&mut Self) -> Result<Expr<FilterColumn>, FilterError>,
    ) -> Result<Expr<FilterColumn>, FilterError> {
        if self.depth == DEEPEST {
            return Err(self.error(format!("more than {DEEPEST} levels of `(` and `!`")));
        }
        self.depth += 1;
        let expr = inside(self);
        self.depth -= 1;
        expr
    }

    fn comparison(&mut self) -> Result<Expr<FilterColumn>, FilterError> {
        self.skip_spaces();
        let at = self.at;
        let name = self.take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '%' | '.'));
        if name.is_empty() {
            return Err(self.expected("a column"));
        }
        let op = OPS.iter().find(|(spelling, _)| self.consume_token(spelling)).map(|(_, op)| *op);
        let op = op.ok_or_else(|| self.expected("one of > >= < <= == != ~ !~"))?;
        self.skip_spaces();
        let value_at = self.at;
        let operand = self.operand()?;
        Ok(Expr::Compare(FilterColumn { name, at, value_at }, op, operand))
    }

    fn operand(&mut self) -> Result<Operand, FilterError> {
        if let Some(quote @ ('"' | '\'')) = self.peek() {
            return self.quoted(quote);
        }
        let text = self.take_while(is_bare);
        if text.is_empty() { Err(self.expected("a value")) } else { Ok(Operand::new(text)) }
    }

    fn quoted(&mut self, quote: char) -> Result<Operand, FilterError> {
        self.at += 1;
        let mut text = String::new();
        while let Some(&(_, c)) = self.chars.get(self.at) {
            self.at += 1;
            match (c, self.chars.get(self.at)) {
                (c, _) if c == quote => return Ok(Operand::new(text)),
                ('\\', Some(&(_, next))) => {
                    self.at += 1;
                    text.push(next);
                }
                (c, _) => text.push(c),
            }
        }
        Err(self.expected(&format!("the closing {quote}")))
    }

    fn skip_spaces(&mut self) {
        self.take_while(char::is_whitespace);
    }

    /// The next character that is not a space.
    fn peek(&mut self) -> Option<char> {
        self.skip_spaces();
        self.chars.get(self.at).map(|(_, c)| *c)
    }

    /// Steps over `token` where it comes next.
    fn consume_token(&mut self, token: &str) -> bool {
        self.skip_spaces();
        let start = self.chars.get(self.at).map_or(self.text.len(), |(byte, _)| *byte);
        let found = self.text[start..].starts_with(token);
        if found {
            self.at += token.chars().count();
        }
        found
    }

    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> String {
        let rest = self.chars[self.at..].iter().map(|(_, c)| *c);
        let taken: String = rest.take_while(|c| fits(*c)).collect();
        self.at += taken.chars().count();
        taken
    }

    fn expected(&mut self, what: &str) -> FilterError {
        let found = self.peek().map_or("the end".to_owned(), |c| {
            format!("\"{}\"", escape(c.encode_utf8(&mut [0; 4]).as_bytes()))
        });
        self.error(format!("expected {what}, found {found}"))
    }

    fn error(&self, message: String) -> FilterError {
        FilterError::Filter { text: self.text.to_owned(), at: self.at, message }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A row with `rss` 2 MiB, `name` libc.so.6, no `pss`.
    fn fits(filter: &str) -> bool {
        let look_up = |name: &str| match name.to_ascii_lowercase().as_str() {
            "rss" => Some((0, ColumnKind::Number)),
            "pss" => Some((1, ColumnKind::Number)),
            "name" => Some((2, ColumnKind::Text)),
            _ => None,
        };
        let bound = RowFilter::parse(filter).unwrap().bind(look_up, &[]).unwrap();
        bound.fits(&|key| match key {
            0 => Datum::Number(2 << 20),
            1 => Datum::Absent,
            _ => Datum::Text(b"libc.so.6"[..].into()),
        })
    }

    fn error(filter: &str) -> String {
        let look_up = |name: &str| match name {
            "rss" => Some(((), ColumnKind::Number)),
            "name" => Some(((), ColumnKind::Text)),
            _ => None,
        };
        let parsed = RowFilter::parse(filter).and_then(|f| f.bind(look_up, &["rss", "name"]));
        parsed.unwrap_err().to_string()
    }

    #[test]
    fn comparisons_read_sizes_in_powers_of_1024() {
        for yes in ["rss>1M", "rss == 2M", "RSS>=2097152", "rss=2MiB", "rss<1T", "rss!=2000k"] {
            assert!(fits(yes), "{yes}");
        }
        for no in ["rss>2M", "rss<2M", "rss==1.999M", "rss <= 0x1fffff"] {
            assert!(!fits(no), "{no}");
        }
    }

    #[test]
    fn and_binds_tighter_than_or_and_not_tightest() {
        assert!(fits("name~libc || rss<1M && rss<1M"));
        assert!(!fits("(name~libc || rss<1M) && rss<1M"));
        assert!(fits("!rss<1M && name~so"));
        assert!(fits("!(rss<1M || name!~so)"));
    }

    #[test]
    fn quotes_hold_spaces_and_operators() {
        assert!(fits(r#"name=="libc.so.6""#) && fits("name~'libc'"));
        assert!(fits(r#"name!="a && (b)""#));
    }

    #[test]
    fn an_absent_value_fits_no_comparison() {
        assert!(!fits("pss>0") && !fits("pss==0") && !fits("pss!=0") && !fits("pss<1T"));
    }

    #[test]
    fn errors_point_at_the_place() {
        assert_eq!(
            error("rss>x1 && name~libc"),
            "filter, column 5: expected a size such as 4096 or 1.5M, found \"x1\"\n    rss>x1 && name~libc\n        ^"
        );
        for (filter, start) in [
            ("rss>300000000000000000.123456789T", "filter, column 5: expected a size"),
            ("", "filter, column 1: expected a column, found the end"),
            ("rss", "filter, column 4: expected one of > >="),
            ("rss>", "filter, column 5: expected a value, found the end"),
            ("(rss>1", "filter, column 7: expected `)`, found the end"),
            ("rss>1 name~x", "filter, column 7: expected `&&`, `||` or the end, found \"n\""),
            ("name~\"x", "filter, column 8: expected the closing \", found the end"),
            ("rsss>1", "filter, column 1: no column is called \"rsss\"; did you mean rss?"),
            ("name>1", "filter, column 1: name is text"),
            ("rss~1", "filter, column 1: rss is a number"),
        ] {
            assert!(error(filter).starts_with(start), "{filter}: {}", error(filter));
        }
    }

    #[test]
    fn an_error_cannot_steer_the_terminal() {
        assert!(!error("rss>\x1b[2J").contains('\x1b'));
    }

    #[test]
    fn endless_nesting_is_an_error_not_a_stack_overflow() {
        assert!(error(&"(".repeat(100_000)).contains("more than 64 levels"));
        assert!(error(&"!".repeat(100_000)).contains("more than 64 levels"));
    }

    fn operand() -> impl Strategy<Value = Operand> {
        prop_oneof![any::<u64>().prop_map(|n| n.to_string()), any::<String>()]
            .prop_map(Operand::new)
    }

    fn expr() -> impl Strategy<Value = Expr<FilterColumn>> {
        let column =
            "[a-zA-Z][a-zA-Z_]{0,8}".prop_map(|name| FilterColumn { name, at: 0, value_at: 0 });
        let op = (0..OPS.len()).prop_map(|i| OPS[i].1);
        let compare = (column, op, operand()).prop_map(|(c, op, v)| Expr::Compare(c, op, v));
        compare.prop_recursive(5, 40, 4, |inner| {
            let list = || prop::collection::vec(inner.clone(), 2..4);
            prop_oneof![
                list().prop_map(Expr::Any),
                list().prop_map(Expr::All),
                inner.clone().prop_map(|e| Expr::Not(Box::new(e))),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in any::<String>()) {
            let _ = RowFilter::parse(&text);
        }

        #[test]
        fn no_soup_of_tokens_makes_the_parser_panic(
            tokens in prop::collection::vec(prop::sample::select(vec![
                "rss", ">", ">=", "<", "==", "!=", "~", "!~", "!", "(", ")", "&&", "||", "1M", "\"", "\\", " ", "é", "0x", "1.", ".5T",
            ]), 0..24)
        ) {
            let _ = RowFilter::parse(&tokens.concat());
        }

        #[test]
        fn a_printed_filter_reads_back_equal(expr in expr()) {
            let filter = RowFilter { expr, text: String::new() };
            let printed = filter.to_string();
            let read = RowFilter::parse(&printed).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(&read.expr, &filter.expr, "{}", printed);
        }
    }
}
