//! Payloads of layout frames and of live block frames: a writer for each part, followed by its
//! reader. Each frame is independent of other frames.

use crate::format::{Bad, In, Out, limit};
use crate::recording::{
    LogAmount, LogArea, LogAreaKind, LogBlock, LogLayout, LogPageDensity, LogPinned,
};
use crate::shapes::CodecState;

/// Bit flags that show which values of an area are known.
mod known {
    pub(super) const RESIDENT: u8 = 1;
    pub(super) const LIVE: u8 = 2;
    pub(super) const EMPTY: u8 = 4;
    pub(super) const TOP: u8 = 8;
    pub(super) const GAP: u8 = 16;
    pub(super) const THREADS: u8 = 32;
}

fn kind_number(kind: LogAreaKind) -> u8 {
    match kind {
        LogAreaKind::Main => 0,
        LogAreaKind::Arena => 1,
        LogAreaKind::Mapped => 2,
        LogAreaKind::Mappings => 3,
    }
}

fn kind_of(number: u8) -> Option<LogAreaKind> {
    let all = [LogAreaKind::Main, LogAreaKind::Arena, LogAreaKind::Mapped, LogAreaKind::Mappings];
    all.get(usize::from(number)).copied()
}

pub(crate) fn write(out: &mut Out, layout: &LogLayout) {
    out.number(layout.time_ns);
    out.number(layout.unclear);
    out.count(layout.areas.len());
    for area in &layout.areas {
        let LogArea { kind, number, parts, held, resident, live, empty, top, gap, threads } = *area;
        out.byte(kind_number(kind));
        let there = [
            (known::RESIDENT, resident.is_some()),
            (known::LIVE, live.is_some()),
            (known::EMPTY, empty.is_some()),
            (known::TOP, top.is_some()),
            (known::GAP, gap.is_some()),
            (known::THREADS, threads.is_some()),
        ];
        out.byte(there.iter().filter(|(_, there)| *there).map(|(part, _)| part).sum());
        out.number(number.into());
        out.number(parts.into());
        out.number(held);
        resident.into_iter().for_each(|it| out.number(it));
        live.into_iter().for_each(|it| write_amount(out, it));
        [empty, top, gap, threads].into_iter().flatten().for_each(|it| out.number(it));
    }
    out.byte(layout.pages.is_some().into());
    if let Some(pages) = &layout.pages {
        pages.cells.iter().for_each(|cell| out.number(*cell));
        out.count(pages.pinned.len());
        for it in &pages.pinned {
            out.number(it.site.into());
            out.number(it.bytes);
            write_amount(out, it.live);
        }
        out.number(pages.others.bytes);
        write_amount(out, pages.others.live);
    }
}

fn write_amount(out: &mut Out, amount: LogAmount) {
    out.number(amount.bytes);
    out.number(amount.blocks);
}

fn read_amount(input: &mut In<'_>) -> Result<LogAmount, Bad> {
    Ok(LogAmount { bytes: input.number()?, blocks: input.number()? })
}

fn read_area(input: &mut In<'_>) -> Result<LogArea, Bad> {
    let kind = kind_of(input.byte()?).ok_or("an area is of no kind")?;
    let there = input.byte()?;
    let mut area = LogArea {
        kind,
        number: input.number32()?,
        parts: input.number32()?,
        held: input.number()?,
        ..LogArea::default()
    };
    if there & known::RESIDENT != 0 {
        area.resident = Some(input.number()?);
    }
    if there & known::LIVE != 0 {
        area.live = Some(read_amount(input)?);
    }
    let rest = [
        (known::EMPTY, &mut area.empty),
        (known::TOP, &mut area.top),
        (known::GAP, &mut area.gap),
        (known::THREADS, &mut area.threads),
    ];
    for (part, place) in rest {
        if there & part != 0 {
            *place = Some(input.number()?);
        }
    }
    Ok(area)
}

/// Writes blocks, which must be in order of address.
pub(crate) fn write_blocks(out: &mut Out, blocks: &[LogBlock]) {
    out.count(blocks.len());
    let mut last = LogBlock::default();
    for block in blocks {
        out.number(block.address.wrapping_sub(last.address));
        out.change(last.site.into(), block.site.into());
        last = *block;
    }
}

impl CodecState {
    /// Appends the blocks of a frame. Their addresses must be above the addresses of all earlier
    /// blocks.
    pub(crate) fn read_blocks(
        &self,
        input: &mut In<'_>,
        blocks: &mut Vec<LogBlock>,
    ) -> Result<(), Bad> {
        let count = input.count(2, limit::BLOCKS.saturating_sub(blocks.len()))?;
        let mut last = LogBlock::default();
        for _ in 0..count {
            let address = last.address.checked_add(input.number()?);
            let address = address.ok_or("a block is behind all addresses")?;
            let site = u32::try_from(input.change(last.site.into())?);
            let site = site.ok().filter(|site| (*site as usize) < self.sites);
            last =
                LogBlock { address, site: site.ok_or("a block names a site that is not there")? };
            if blocks.last().is_some_and(|before| before.address >= address) {
                return Err("a block is before the one before it");
            }
            blocks.push(last);
        }
        Ok(())
    }

    pub(crate) fn read_layout(&mut self, input: &mut In<'_>) -> Result<LogLayout, Bad> {
        let mut layout = LogLayout {
            time_ns: input.number()?,
            unclear: input.number()?,
            ..LogLayout::default()
        };
        /// Minimum number of bytes of an area.
        const AREA: usize = 5;
        let count = input.count(AREA, limit::AREAS)?;
        self.leaves += count * limit::AREA_LEAVES;
        if self.leaves > limit::LEAVES {
            return Err("more areas over all time points than the limit");
        }
        for _ in 0..count {
            layout.areas.push(read_area(input)?);
        }
        if input.flag()? {
            layout.pages = Some(self.read_pages(input)?);
        }
        Ok(layout)
    }

    fn read_pages(&mut self, input: &mut In<'_>) -> Result<LogPageDensity, Bad> {
        let mut pages = LogPageDensity::default();
        for cell in &mut pages.cells {
            *cell = input.number()?;
        }
        // Each item has at least four bytes: a site and three numbers.
        for _ in 0..input.count(4, self.sites)? {
            let site = input.number32()?;
            if site as usize >= self.sites {
                return Err("pages are pinned by a site that is not there");
            }
            let bytes = input.number()?;
            pages.pinned.push(LogPinned { site, bytes, live: read_amount(input)? });
        }
        self.leaves += pages.pinned.len();
        if self.leaves > limit::LEAVES {
            return Err("more call stacks over all time points than the limit");
        }
        let bytes = input.number()?;
        pages.others = LogPinned { site: 0, bytes, live: read_amount(input)? };
        Ok(pages)
    }
}
