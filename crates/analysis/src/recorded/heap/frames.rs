//! Call stacks for people: the function that allocates, and functions that only pass requests on.

use std::cmp::Reverse;
use std::collections::HashMap;

use pagewise_model::Name;
use pagewise_model::heap::{AllocationSite, HeapAmount, HeapRecording};
use pagewise_model::report::CellValue;
use pagewise_model::traced::Frame;

use super::kind_word;

/// Functions that allocate on behalf of their callers.
const EXACT: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "xmalloc",
    "xcalloc",
    "xrealloc",
    "g_malloc",
    "g_malloc0",
    "g_malloc_n",
    "g_malloc0_n",
    "g_realloc",
    "g_try_malloc",
    "PyMem_Calloc",
    "PyMem_Malloc",
    "PyMem_RawCalloc",
    "PyMem_RawMalloc",
    "PyMem_RawRealloc",
    "PyMem_Realloc",
    "PyObject_Calloc",
    "PyObject_Malloc",
    "PyObject_Realloc",
    "_PyMem_RawCalloc",
    "_PyMem_RawMalloc",
    "_PyMem_RawRealloc",
    "_PyObject_Calloc",
    "_PyObject_Malloc",
    "_PyObject_Realloc",
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
];

/// Prefixes of the names of such functions, for those with an instance for each of many types.
const BEGINNINGS: &[&str] = &[
    "operator new(",
    "operator new[](",
    "__gnu_cxx::new_allocator<",
    "std::__new_allocator<",
    "std::allocator<",
    "std::allocator_traits<",
    "alloc::alloc::",
    "alloc::raw_vec::",
    "<alloc::alloc::Global",
    "<alloc::raw_vec::",
    "std::alloc::",
    "__rustc::",
    "<tikv_jemallocator::Jemalloc as ",
    "<mimalloc::MiMalloc as ",
];

pub(crate) fn passes_on(frame: &Frame) -> bool {
    let is_one = |name: &str| {
        EXACT.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
    };
    frame.function.as_deref().is_some_and(is_one)
}

/// The function of a call stack that allocates for itself; the innermost one if none does.
pub(crate) fn allocator(stack: &[Frame]) -> Option<&Frame> {
    stack.iter().find(|frame| !passes_on(frame)).or(stack.first())
}

/// A function, or its address in its file.
pub(crate) fn function_words(frame: &Frame) -> String {
    match (&frame.function, &frame.module) {
        (Some(function), _) => function.clone(),
        (None, Some(module)) => {
            format!("{}+{:#x}", String::from_utf8_lossy(module.base()), frame.offset)
        }
        (None, None) => format!("{:#x}", frame.offset),
    }
}

/// A function with its source line.
pub(crate) fn with_its_line(frame: &Frame) -> String {
    let line = frame.line.as_ref().map(|line| {
        let file = line.file.rsplit('/').next().unwrap_or_default();
        format!(" {file}:{}", line.number)
    });
    format!("{}{}", function_words(frame), line.unwrap_or_default())
}

/// A function with its source line, as a cell.
pub(crate) fn frame_cell(frame: &Frame) -> CellValue {
    CellValue::Name(Name::new(with_its_line(frame).as_bytes()))
}

/// Name of a function for people. A [`Name`], because the traced program determines the text.
pub(crate) fn name(frame: &Frame) -> Name {
    match (&frame.function, &frame.module) {
        (Some(name), _) => Name::new(name.as_bytes()),
        (None, Some(module)) => {
            let offset = format!("+{:#x}", frame.offset);
            Name::new(&[b"?? in ", module.base(), offset.as_bytes()].concat())
        }
        (None, None) => Name::new(format!("?? at {:#x}", frame.offset).as_bytes()),
    }
}

/// A function for programs; none where it is not known.
pub(crate) fn function(frame: &Frame) -> CellValue {
    let name = frame.function.as_ref();
    name.map_or(CellValue::None, |name| CellValue::Name(Name::new(name.as_bytes())))
}

/// Part of a name that identifies a function: without its parameters, and without long template
/// arguments.
pub(crate) fn short(name: &str) -> String {
    let name = name.strip_suffix(" const").unwrap_or(name);
    let whole = name.strip_suffix(')').and_then(|inner| {
        let mut open = 1;
        let mut from_end = inner.char_indices().rev();
        let start = from_end.find_map(|(at, c)| {
            open += i32::from(c == ')') - i32::from(c == '(');
            (open == 0).then_some(at)
        });
        // `operator()` and `(anonymous namespace)` are not parameters.
        let before = &inner[..start?];
        let is_list =
            !before.is_empty() && !before.ends_with("operator") && !before.ends_with("::");
        is_list.then_some(before)
    });
    let mut text = String::new();
    let (mut open, mut inner) = (0_u32, String::new());
    for c in whole.unwrap_or(name).chars() {
        let is_list = open > 0
            || text.ends_with(|last: char| last.is_alphanumeric() || last == '_' || last == ':')
                && !text.ends_with("operator");
        match c {
            '<' if is_list => open += 1,
            // An arrow is not a bracket.
            '>' if open > 0 && !inner.ends_with('-') => open -= 1,
            c if open == 0 => {
                text.push(c);
                continue;
            }
            _ => {}
        }
        inner.push(c);
        if open == 0 {
            /// Maximum length of template arguments that are not left out.
            const SHORT: usize = 16;
            text.push_str(if inner.chars().count() <= SHORT { &inner } else { "<…>" });
            inner.clear();
        }
    }
    text.push_str(&inner);
    text
}

/// Short name of a function, for narrow columns.
fn short_name(frame: &Frame) -> Name {
    frame.function.as_deref().map_or_else(|| name(frame), |it| Name::new(short(it).as_bytes()))
}

/// A function with its source line, without the folders.
pub(crate) fn brief(frame: &Frame) -> Name {
    let Some(line) = &frame.line else { return short_name(frame) };
    let base = line.file.rsplit('/').next().unwrap_or_default();
    let place =
        if line.number == 0 { format!(" ({base})") } else { format!(" ({base}:{})", line.number) };
    Name::new(&[short_name(frame).as_bytes(), place.as_bytes()].concat())
}

/// A function with its source line and the whole path, for programs.
pub(crate) fn full(frame: &Frame) -> Name {
    let Some(line) = &frame.line else { return name(frame) };
    let place = format!(" ({}:{})", line.file, line.number);
    Name::new(&[name(frame).as_bytes(), place.as_bytes()].concat())
}

/// The sites of a recording with their stacks.
pub(crate) struct Sites<'a> {
    pub(crate) recording: &'a HeapRecording,
}

/// Call site of allocations, by frame; `None` if no caller is known.
pub(crate) type AllocatingFrame = Option<u32>;

impl<'a> Sites<'a> {
    pub(crate) fn from_recording(recording: &'a HeapRecording) -> Sites<'a> {
        Sites { recording }
    }

    /// The sites with allocations, frees or live bytes at the peak.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'a AllocationSite> + use<'a> {
        let is_used = |site: &&AllocationSite| {
            (site.allocated, site.freed, site.at_peak) != Default::default()
        };
        self.recording.sites.iter().filter(is_used)
    }

    /// The whole stack of a site, as numbers of frames.
    pub(crate) fn stack(&self, site: &AllocationSite) -> &'a [u32] {
        self.recording.stacks.get(site.stack as usize).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn frame(&self, number: u32) -> Option<&'a Frame> {
        self.recording.frames.get(number as usize)
    }

    /// The stack from the first function that does not pass the request on; the whole stack if all
    /// functions do.
    pub(crate) fn asking(&self, site: &AllocationSite) -> &'a [u32] {
        let stack = self.stack(site);
        let asks = |number: &u32| self.frame(*number).is_some_and(|frame| !passes_on(frame));
        stack.iter().position(asks).map_or(stack, |first| &stack[first..])
    }

    /// The frame of the function that allocates.
    pub(crate) fn place(&self, site: &AllocationSite) -> AllocatingFrame {
        self.asking(site).first().copied()
    }

    /// The words for an allocating frame.
    pub(crate) fn frame_text(&self, place: AllocatingFrame) -> Name {
        let frame = place.and_then(|number| self.frame(number));
        frame.map_or_else(|| Name::new(b"[unknown callers]"), brief)
    }

    /// A stack for programs: each call with its line.
    pub(crate) fn stack_value(&self, site: &AllocationSite) -> CellValue {
        let kind = kind_word(site.kind).map(|word| CellValue::Name(Name::new(word.as_bytes())));
        let frames = self.stack(site).iter().filter_map(|number| self.frame(*number));
        CellValue::List(
            kind.into_iter().chain(frames.map(|frame| CellValue::Name(full(frame)))).collect(),
        )
    }

    /// A stack for people: the function that allocates, and its nearest callers.
    pub(crate) fn stack_words(&self, site: &AllocationSite) -> Name {
        /// More callers do not make a line clearer.
        const MAX_CALLERS: usize = 4;
        let stack = self.asking(site);
        let mut words: Vec<u8> = kind_word(site.kind).map_or("", |it| it).into();
        if stack.is_empty() {
            words.extend_from_slice(self.frame_text(None).as_bytes());
        }
        for (depth, number) in stack.iter().take(MAX_CALLERS).enumerate() {
            if !words.is_empty() {
                words.extend_from_slice(" ← ".as_bytes());
            }
            let Some(frame) = self.frame(*number) else { continue };
            // Only the allocating function has its source line: those of callers would make the
            // line too long.
            let called = if depth == 0 { brief(frame) } else { short_name(frame) };
            words.extend_from_slice(called.as_bytes());
        }
        Name::new(&words)
    }

    /// Sums by allocating frame, the most allocated bytes first.
    pub(crate) fn by_place(&self) -> Vec<(AllocatingFrame, SiteSum)> {
        let mut sums: HashMap<AllocatingFrame, SiteSum> = HashMap::new();
        for site in self.all() {
            sums.entry(self.place(site)).or_default().add(site);
        }
        let mut sums: Vec<(AllocatingFrame, SiteSum)> = sums.into_iter().collect();
        sums.sort_by_key(|(place, sum)| (Reverse(sum.allocated.bytes), *place));
        sums
    }

    /// The allocating frame with the most bytes of an amount, and that amount.
    pub(crate) fn largest_place(
        &self,
        amount: impl Fn(&AllocationSite) -> HeapAmount,
    ) -> Option<(Name, HeapAmount)> {
        let mut sums: HashMap<AllocatingFrame, HeapAmount> = HashMap::new();
        for site in self.all() {
            plus(sums.entry(self.place(site)).or_default(), amount(site));
        }
        let by =
            |(place, sum): &(AllocatingFrame, HeapAmount)| (sum.bytes, sum.blocks, Reverse(*place));
        let (place, sum) = sums.into_iter().max_by_key(by)?;
        (sum.bytes > 0).then(|| (self.frame_text(place), sum))
    }
}

pub(crate) fn plus(sum: &mut HeapAmount, more: HeapAmount) {
    sum.bytes = sum.bytes.saturating_add(more.bytes);
    sum.blocks = sum.blocks.saturating_add(more.blocks);
}

/// Sums over several sites.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SiteSum {
    pub(crate) allocated: HeapAmount,
    pub(crate) freed: HeapAmount,
    pub(crate) temporary: u64,
    pub(crate) at_peak: HeapAmount,
    pub(crate) leaked: HeapAmount,
    /// Standard errors of allocated and of live bytes; 0 if every call was recorded.
    pub(crate) errors: (f64, f64),
}

impl SiteSum {
    pub(crate) fn add(&mut self, site: &AllocationSite) {
        plus(&mut self.allocated, site.allocated);
        plus(&mut self.freed, site.freed);
        plus(&mut self.at_peak, site.at_peak);
        plus(&mut self.leaked, site.leaked());
        self.temporary = self.temporary.saturating_add(site.temporary);
        let (allocated, live) = site.errors.unwrap_or_default();
        // The squares of independent errors add up.
        self.errors = (self.errors.0.hypot(allocated), self.errors.1.hypot(live));
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn a_short_name_is_that_of_the_function() {
        let names = [
            ("main", "main"),
            ("make_node(tree_code)", "make_node"),
            ("a::b(std::vector<int, std::allocator<int> > const&) const", "a::b"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
            ("f(void (*)(int))", "f"),
            ("a::operator()(int) const", "a::operator()"),
            ("a::operator()", "a::operator()"),
            ("a::operator<(b)", "a::operator<"),
            ("std::map<int, char>::f()", "std::map<int, char>::f"),
            ("std::map<int, std::vector<std::string> >::f()", "std::map<…>::f"),
            ("<T as core::fmt::Display>::fmt", "<T as core::fmt::Display>::fmt"),
            ("core::ptr::drop_in_place::<alloc::vec::Vec<u8>>", "core::ptr::drop_in_place::<…>"),
            ("f<a->b, c, d, e, f, g, h>", "f<…>"),
            ("f<a", "f<a"),
            (")", ")"),
            ("", ""),
        ];
        for (name, expected) in names {
            assert_eq!(short(name), expected, "{name}");
        }
    }
}
