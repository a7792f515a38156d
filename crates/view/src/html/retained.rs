//! Retained bytes of a heap in HTML: an icicle that can be searched and zoomed. A script draws it
//! from the data that are embedded here.

use std::collections::HashMap;
use std::io;

use pagewise_model::heap_graph::RetainedCell;
use pagewise_model::report::Audience;

use super::HtmlPage;
use super::heap::embedded;
use crate::words::clean;

pub(super) const JS: &str = include_str!("retained.js");

impl HtmlPage<'_> {
    /// The icicle; without a script, a reference to the table.
    pub(super) fn retained(&mut self, cells: &[RetainedCell]) -> io::Result<()> {
        self.section("Retained bytes", Audience::Everyone);
        self.html.push_str(
            "<noscript><p>A script draws this picture, and does not run here. The table needs none.</p></noscript>\n\
             <div id=\"heap\"></div>\n\
             <script type=\"application/json\" id=\"retained-data\">\n{",
        );
        let parent = |cell: &RetainedCell| cell.parent.map_or(-1, i64::from);
        self.column("parents", cells.iter().map(|cell| Some(parent(cell))))?;
        self.column("bytes", cells.iter().map(|cell| Some(cell.retained.bytes)))?;
        self.column("blocks", cells.iter().map(|cell| Some(cell.retained.blocks)))?;
        let mut numbers: HashMap<&[u8], usize> = HashMap::new();
        let mut names = Vec::new();
        let labels = cells.iter().map(|cell| {
            let label = cell.label.as_bytes();
            *numbers.entry(label).or_insert_with(|| {
                names.push(embedded(&clean(label)));
                names.len() - 1
            })
        });
        let labels: Vec<usize> = labels.collect();
        self.column("labels", labels.into_iter().map(Some))?;
        self.column("names", names.into_iter().map(Some))?;
        self.html.push_str("\"version\":1}\n</script>\n");
        self.end_section();
        self.flush()
    }
}
