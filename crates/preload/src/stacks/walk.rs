//! Walk over the frames of a piece, from the innermost one outward, which records the addresses of
//! the words that determine the frames.

use super::{CallPoint, PieceEnd, SIGNAL_CODE, SIGNAL_STACK, StackPiece, WINDOW, WORDS, word};
use std::cell::Cell;

use crate::cfi::{SAVED_HERE, UnwindRow};
use crate::rows::{self, RowCache};
use crate::tree;

/// State of a walk over the frames of a piece.
#[derive(Clone, Copy)]
struct FrameWalk<'a> {
    piece: &'a StackPiece,
    /// Word offsets of the layout that this piece probably has.
    like: &'a [Cell<u16>; WORDS],
    words: usize,
    frames: usize,
    calls: u64,
    /// Stack pointer of the next frame. The word below it, a return address, is one of the words
    /// that determine the piece.
    stack: u64,
    /// Number of words from the piece's stack pointer to the end of the words that are read, apart
    /// from return addresses of plain frames.
    reach: u16,
    /// Address of the last saved frame pointer; 0 if the register is unchanged.
    saved_at: u64,
    /// Value of `saved_at` when the saved frame pointer was last recorded.
    noted_at: u64,
}

impl FrameWalk<'_> {
    /// Records a word that determines the frames.
    #[inline(always)]
    fn note(&mut self, address: u64) -> Option<()> {
        let offset = self.piece.layout.offset(address)?;
        self.put(offset)?;
        self.reach = self.reach.max(offset + 1);
        Some(())
    }

    /// Records the offset of a word. The word must be below the stack pointer at which the walk
    /// ends.
    #[inline(always)]
    fn put(&mut self, offset: u16) -> Option<()> {
        self.piece.layout.offsets.get(self.words)?.set(offset);
        self.words += 1;
        Some(())
    }

    /// Records the return address of a frame.
    #[inline(always)]
    fn pass(&mut self, place: u32) -> Option<()> {
        self.piece.places.get(self.frames)?.set(place);
        self.frames += 1;
        self.calls = tree::mix(self.calls, place.into());
        Some(())
    }

    /// True if the data of another frame may not fit.
    #[inline(always)]
    fn is_full(&self) -> bool {
        self.words + 4 > WORDS || self.frames >= WORDS
    }

    /// Frame pointer of the current frame.
    #[inline(always)]
    fn frame(&self, at: CallPoint) -> u64 {
        if self.saved_at == 0 { at.frame } else { word(self.saved_at) }
    }

    /// Stores the counts. The last word is repeated until the number of words is a multiple of
    /// four.
    fn end(self) {
        let (piece, layout) = (self.piece, &self.piece.layout);
        let mut words = self.words;
        while !words.is_multiple_of(4) {
            layout.offsets[words].set(layout.offsets[words - 1].get());
            words += 1;
        }
        layout.words.set(words as u8);
        let length = self.stack - layout.stack.get();
        layout.reach.set(self.reach.max((length / 8) as u16));
        if layout.end.get() == PieceEnd::Call {
            layout.length.set(length as u32);
        }
        piece.frames.set(self.frames as u8);
        piece.calls.set(self.calls);
    }
}

/// Walks frames from `at` on. The layout of `piece` must have been cleared. `like` are the offsets
/// of a layout that the stack probably has.
pub(super) fn walk(piece: &StackPiece, at: CallPoint, end: u64, like: &[Cell<u16>; WORDS]) {
    let mut walk = FrameWalk {
        piece,
        like,
        words: 0,
        frames: 0,
        calls: 1,
        stack: at.stack,
        reach: 0,
        saved_at: 0,
        noted_at: 0,
    };
    if !at.stack.is_multiple_of(8) || follow(&mut walk, at, end).is_none() {
        // A frame cannot be unwound, so the stack is cut off here.
        piece.layout.end.set(PieceEnd::Cut);
    }
    walk.end();
}

/// Walks frames to the end of the window. Returns `None` if a frame cannot be unwound.
#[inline(always)]
fn follow(walk: &mut FrameWalk<'_>, at: CallPoint, end: u64) -> Option<()> {
    let window_end = (at.stack / WINDOW + 1) * WINDOW;
    let rows = RowCache::now();
    let mut code = at.code;
    loop {
        // Each lookup depends on the result of the previous one, so all other work is deferred to
        // the end.
        if let Some(plain) = rows.and_then(|rows| rows.plain(code)) {
            let top = walk.stack + plain.length;
            if top > end {
                return None;
            }
            walk.pass(plain.place)?;
            if plain.saved != 0 {
                walk.saved_at = top - plain.saved;
            }
            let before = at.stack + u64::from(walk.like.get(walk.words)?.get()) * 8;
            code = word_as_expected(top - 8, before);
            // The offset in words fits into 16 bits: the frame begins in the `WINDOW` bytes from
            // `at.stack` on, and a frame of the cache `plain` has fewer than 2^15 words.
            walk.put(((top - 8 - at.stack) / 8) as u16)?;
            walk.stack = top;
        } else {
            // `leave` gets the address of a copy, so that `walk` itself stays in registers.
            let mut aside = *walk;
            let left = leave(&mut aside, code, at, end);
            *walk = aside;
            match left? {
                Some(back) => code = back,
                None => return Some(()),
            }
        }
        if code == 0 {
            return Some(());
        }
        if walk.stack >= window_end || walk.is_full() {
            break;
        }
    }
    if walk.saved_at != 0 {
        let saved = walk.piece.layout.offset(walk.saved_at)?;
        walk.piece.layout.saved.set(saved);
        walk.reach = walk.reach.max(saved + 1);
    }
    walk.piece.layout.end.set(PieceEnd::Call);
    Some(())
}

/// Unwinds a frame of any kind and returns its return address. Returns `Some(None)` if the piece
/// ends with this frame, and `None` if the frame cannot be unwound.
#[cold]
#[inline(never)]
fn leave(walk: &mut FrameWalk<'_>, code: u64, at: CallPoint, end: u64) -> Option<Option<u64>> {
    let known = rows::get(code)?;
    if known.place != rows::OURS {
        walk.pass(known.place)?;
    }
    let stack = walk.stack;
    let now = CallPoint { code, stack, frame: walk.frame(at) };
    let (top, saved_in) = match known.row {
        UnwindRow::Stack { offset, saved } if i64::from(saved) != SAVED_HERE => {
            let top = stack + u64::from(offset) * 8;
            (top, (saved != 0).then(|| top.wrapping_sub(u64::from(saved) * 8)))
        }
        UnwindRow::End => return Some(None),
        UnwindRow::Signal => return interrupted(walk, now, end).map(|()| None),
        row => {
            if walk.saved_at == 0 {
                walk.piece.layout.uses_frame.set(true);
            } else if walk.noted_at != walk.saved_at {
                walk.note(walk.saved_at)?;
            }
            walk.noted_at = walk.saved_at;
            by_frame(walk, row, now, end)?
        }
    };
    if top <= stack || top > end || !top.is_multiple_of(8) {
        return None;
    }
    if let Some(address) = saved_in {
        if !address.is_multiple_of(8) || address < stack || address >= end {
            return None;
        }
        walk.saved_at = address;
    }
    let back = word(top - 8);
    walk.note(top - 8)?;
    walk.stack = top;
    Some(Some(back))
}

/// End of a frame that is found by the frame pointer, and address of the saved frame pointer.
fn by_frame(
    walk: &mut FrameWalk<'_>,
    row: UnwindRow,
    now: CallPoint,
    end: u64,
) -> Option<(u64, Option<u64>)> {
    let row = if row == UnwindRow::Unknown { by_frame_pointer(now, end)? } else { row };
    let (top, saved) = match row {
        UnwindRow::Stack { offset, saved } => {
            (now.stack.checked_add(u64::from(offset) * 8)?, saved)
        }
        UnwindRow::Frame { offset, saved } => {
            (now.frame.checked_add(u64::from(offset) * 8)?, saved)
        }
        UnwindRow::Behind { offset, saved } => {
            let address = now.frame.checked_add_signed(i64::from(offset) * 8)?;
            if !address.is_multiple_of(8) || address < now.stack || address >= end {
                return None;
            }
            let top = word(address);
            walk.note(address)?;
            (top, saved)
        }
        UnwindRow::Signal | UnwindRow::End | UnwindRow::Unknown => return None,
    };
    let saved_in = match i64::from(saved) {
        0 => None,
        SAVED_HERE => Some(now.frame),
        _ => Some(top.wrapping_sub(u64::from(saved) * 8)),
    };
    Some((top, saved_in))
}

/// Returns a row for code without an unwind table that keeps a frame pointer, as JIT compilers
/// often emit it; `None` if the frame pointer is not plausible.
fn by_frame_pointer(now: CallPoint, end: u64) -> Option<UnwindRow> {
    if !now.frame.is_multiple_of(8) || now.frame < now.stack || now.frame.checked_add(16)? > end {
        return None;
    }
    let (outer, back) = (word(now.frame), word(now.frame + 8));
    let goes_on = outer > now.frame && outer < end && outer.is_multiple_of(8);
    let known = || rows::get(back).is_some_and(|known| known.row != UnwindRow::Unknown);
    (back > 0xffff && (goes_on || known())).then_some(UnwindRow::Frame { offset: 2, saved: 2 })
}

/// Ends the piece with a signal frame, in which the kernel has saved the registers of the thread
/// (`struct ucontext` of x86-64).
fn interrupted(walk: &mut FrameWalk<'_>, now: CallPoint, end: u64) -> Option<()> {
    const FRAME: u64 = 120;
    let saved = now.stack.checked_add(FRAME)?;
    if !now.stack.is_multiple_of(8) || saved.checked_add(SIGNAL_CODE * 8 + 8)? > end {
        return None;
    }
    for word in [0, SIGNAL_STACK, SIGNAL_CODE] {
        walk.note(saved + word * 8)?;
    }
    walk.piece.layout.saved.set(walk.piece.layout.offset(saved)?);
    walk.piece.layout.end.set(PieceEnd::Signal);
    Some(())
}

/// Reads a word of the stack at `address`, which usually equals `expected`: the CPU speculatively
/// loads the word at `expected` before `address` is computed.
#[inline(always)]
fn word_as_expected(address: u64, expected: u64) -> u64 {
    let mut same = expected;
    // SAFETY: the assembly is empty. It hides the equality of both values from the compiler, so
    // that the compiler keeps both.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) same, options(pure, nomem, nostack, preserves_flags))
    };
    if address == expected {
        return word(same);
    }
    // SAFETY: the assembly is empty. It keeps the compiler from selecting the address without a
    // branch: the load would then wait for `address`.
    unsafe { std::arch::asm!("", options(nomem, nostack, preserves_flags)) };
    word(address)
}
