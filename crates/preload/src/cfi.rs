//! Unwinding of one function by its unwind table (`.eh_frame`): finds the row of one address.
//!
//! Supports the tables that compilers emit: tables that are sorted for search, frames relative to
//! the stack pointer or the frame pointer, and return addresses directly below the end of the
//! frame. Any other row is [`UnwindRow::Unknown`]: the call stack ends there unless the frame
//! pointer is plausible. Sources: DWARF 5, section 6.4, and the Linux Standard Base, "Exception
//! Frames".
//!
//! `pagewise-trace` uses gimli 0.34 with fixed-size storage (`read-core`) instead. It finds the
//! same rows in 1.6 times the time (260 ns instead of 160 ns for an address of glibc or libstdc++).
//! Its context takes 8.7 KB of the stack of the allocating thread, which may be a coroutine with 16
//! KiB. Here, the eight states that `remember_state` can save take less than 0.6 KB.

/// Rule that computes the caller's frame from the frame of a function at one of its instructions.
/// Offsets are in words of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnwindRow {
    /// The frame ends `offset` words above the stack pointer.
    Stack { offset: u16, saved: u16 },
    /// The frame ends `offset` words above the frame pointer.
    Frame { offset: u16, saved: u16 },
    /// A word contains the address of the frame's end. This word is `offset` words from the frame
    /// pointer (in functions that realign their stack).
    Behind { offset: i16, saved: u16 },
    /// The frame to which a signal handler returns: the kernel has saved the registers in it.
    Signal,
    /// The function has no caller: a thread begins here.
    End,
    /// Any other rule.
    Unknown,
}

// `saved`: number of words from the saved frame pointer up to the end of the frame; 0 if the
// function leaves the frame pointer unchanged.

impl UnwindRow {
    /// Packs a row: the offset in bits 0 to 15, the kind in bits 16 to 18, [`PLAIN`] in bit 19, and
    /// `saved` in bits 20 to 31.
    pub(crate) fn pack(self) -> u32 {
        let parts = |kind: u32, offset: u16, saved: u16| {
            if saved <= SAVED_MOST {
                u32::from(offset) | kind << 16 | u32::from(saved) << 20
            } else {
                0
            }
        };
        match self {
            UnwindRow::Unknown => 0,
            UnwindRow::Stack { offset, saved } => {
                let is_plain = (1..PLAIN_END).contains(&offset) && saved <= offset;
                let mark = if is_plain && i64::from(saved) < SAVED_HERE { PLAIN } else { 0 };
                parts(1, offset, saved) | mark
            }
            UnwindRow::Frame { offset, saved } => parts(2, offset, saved),
            UnwindRow::Behind { offset, saved } => {
                let offset = offset.wrapping_add(1 << 14);
                if offset < 0 { 0 } else { parts(3, offset.cast_unsigned(), saved) }
            }
            UnwindRow::Signal => 4 << 16,
            UnwindRow::End => 5 << 16,
        }
    }

    /// Inverse of [`UnwindRow::pack`].
    #[inline(always)]
    pub(crate) fn unpack(word: u32) -> UnwindRow {
        let (offset, saved) = (word as u16, (word >> 20) as u16);
        match word >> 16 & 7 {
            1 => UnwindRow::Stack { offset, saved },
            2 => UnwindRow::Frame { offset, saved },
            3 => UnwindRow::Behind { offset: offset.cast_signed() - (1 << 14), saved },
            4 => UnwindRow::Signal,
            5 => UnwindRow::End,
            _ => UnwindRow::Unknown,
        }
    }

    /// Returns `offset` and `saved` of a word with the bit [`PLAIN`]; `None` for other words.
    #[inline(always)]
    pub(crate) fn unpack_plain(word: u32) -> Option<(u16, u16)> {
        (word & PLAIN != 0).then_some((word as u16, (word >> 20) as u16))
    }
}

/// Bit in a packed row of the most frequent form: an [`UnwindRow::Stack`] whose `offset` is at
/// least one and below [`PLAIN_END`], and whose saved frame pointer is within the frame.
pub(crate) const PLAIN: u32 = 1 << 19;
pub(crate) const PLAIN_END: u16 = 1 << 15;

/// Memory of a mapped file. A read outside of its range returns `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageBytes {
    start: usize,
    end: usize,
}

impl ImageBytes {
    /// Creates the image of the memory from `start` to `end`.
    ///
    /// # Safety
    /// The memory must be mapped and unchanged while this value is in use.
    pub(crate) unsafe fn new(start: usize, end: usize) -> ImageBytes {
        ImageBytes { start, end }
    }

    pub(crate) fn read<T: Copy>(&self, at: usize) -> Option<T> {
        let end = at.checked_add(size_of::<T>())?;
        if at < self.start || end > self.end {
            return None;
        }
        let place: *const T = std::ptr::with_exposed_provenance(at);
        // SAFETY: the range was checked to be within the image, and every bit pattern is valid for
        // the integer types that are read.
        Some(unsafe { place.read_unaligned() })
    }

    /// Returns `length` bytes of the image, which exist as long as the object is loaded.
    pub(crate) fn bytes(&self, at: usize, length: usize) -> Option<&'static [u8]> {
        if at < self.start || at.checked_add(length)? > self.end {
            return None;
        }
        // SAFETY: the range was checked to be within the image, whose bytes do not change.
        Some(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), length) })
    }
}

/// A position in an image.
#[derive(Clone, Copy, Debug)]
struct ImageCursor<'a> {
    image: &'a ImageBytes,
    at: usize,
    end: usize,
}

impl ImageCursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.read_value()
    }

    fn read_value<T: Copy>(&mut self) -> Option<T> {
        if self.at.checked_add(size_of::<T>())? > self.end {
            return None;
        }
        let value = self.image.read(self.at)?;
        self.at += size_of::<T>();
        Some(value)
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.at = self.at.checked_add(usize::try_from(bytes).ok()?).filter(|&at| at <= self.end)?;
        Some(())
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let unused = 57_u32.saturating_sub(shift);
                return Some((value << unused).cast_signed() >> unused);
            }
        }
        None
    }

    /// Reads an address in `encoding` (`DW_EH_PE_*`); `None` if the encoding is indirect.
    fn address(&mut self, encoding: u8, data: usize) -> Option<usize> {
        let here = self.at;
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.read_value::<u64>()?.cast_signed(),
            0x01 => self.unsigned()?.cast_signed(),
            0x02 => i64::from(self.read_value::<u16>()?),
            0x03 => i64::from(self.read_value::<u32>()?),
            0x09 => self.signed()?,
            0x0a => i64::from(self.read_value::<i16>()?),
            0x0b => i64::from(self.read_value::<i32>()?),
            _ => return None,
        };
        let base = match encoding & 0x70 {
            0x00 => 0,
            0x10 => here,
            0x30 => data,
            _ => return None,
        };
        if encoding & 0x80 != 0 {
            return None;
        }
        Some(base.wrapping_add_signed(isize::try_from(value).ok()?))
    }
}

/// Returns the row for `address`, through the search table at `header` (`PT_GNU_EH_FRAME`).
pub(crate) fn row(image: &ImageBytes, header: usize, address: usize) -> UnwindRow {
    let Some(entry) = search(image, header, address) else { return UnwindRow::Unknown };
    evaluate(image, entry, address).unwrap_or(UnwindRow::Unknown)
}

/// Address of the table entry (FDE) that covers `address`.
fn search(image: &ImageBytes, header: usize, address: usize) -> Option<usize> {
    const SORTED: u8 = 0x3b;
    let mut cursor = ImageCursor { image, at: header, end: image.end };
    let version = cursor.byte()?;
    let frame_encoding = cursor.byte()?;
    let count_encoding = cursor.byte()?;
    let table_encoding = cursor.byte()?;
    if version != 1 || table_encoding != SORTED {
        return None;
    }
    cursor.address(frame_encoding, header)?;
    let count = cursor.address(count_encoding, header)?;
    let table = cursor.at;
    let first = |index: usize| -> Option<usize> {
        let offset: i32 = image.read(table.checked_add(index.checked_mul(8)?)?)?;
        Some(header.wrapping_add_signed(offset as isize))
    };
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if first(middle)? <= address { low = middle + 1 } else { high = middle }
    }
    let offset: i32 =
        image.read(table.checked_add(low.checked_sub(1)?.checked_mul(8)?)?.checked_add(4)?)?;
    Some(header.wrapping_add_signed(offset as isize))
}

/// Location of the caller's value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegisterRule {
    Same,
    Undefined,
    /// In the word at this number of bytes from the end of the frame.
    At(i64),
    /// In the word to which the frame pointer points.
    Here,
    Other,
}

/// Rule for the end of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameEnd {
    Register(u64, i64),
    /// The word at this number of bytes from the frame pointer contains the address.
    Behind(i64),
    Other,
}

#[derive(Clone, Copy, Debug)]
struct UnwindState {
    end: FrameEnd,
    frame_pointer: RegisterRule,
    back: RegisterRule,
}

const FRAME_POINTER: u64 = 6;
const STACK_POINTER: u64 = 7;
const RETURN_ADDRESS: u64 = 16;
/// DWARF operations `DW_OP_breg6` and `DW_OP_deref`.
const BREG_FRAME: u8 = 0x76;
const DEREFERENCE: u8 = 0x06;

fn evaluate(image: &ImageBytes, entry: usize, address: usize) -> Option<UnwindRow> {
    let mut cursor = ImageCursor { image, at: entry, end: image.end };
    let length: u32 = cursor.read_value()?;
    if length == 0 || length == u32::MAX {
        return None;
    }
    cursor.end = cursor.at.checked_add(length as usize)?;
    let here = cursor.at;
    let offset: u32 = cursor.read_value()?;
    let common = Common::read(image, here.checked_sub(offset as usize)?)?;
    let begin = cursor.address(common.encoding, 0)?;
    let range = cursor.address(common.encoding & 0x0f, 0)?;
    if address < begin || address - begin >= range {
        return None;
    }
    if common.signal {
        return Some(UnwindRow::Signal);
    }
    if common.augmented {
        let skip = cursor.unsigned()?;
        cursor.skip(skip)?;
    }
    let nothing = UnwindState {
        end: FrameEnd::Other,
        frame_pointer: RegisterRule::Same,
        back: RegisterRule::Other,
    };
    let mut first = ImageCursor { image, at: common.instructions, end: common.end };
    let initial = execute(&mut first, &common, nothing, nothing, begin, usize::MAX)?;
    let state = execute(&mut cursor, &common, initial, initial, begin, address)?;
    Some(compact(state))
}

/// Common part of table entries (a CIE).
#[derive(Clone, Copy, Debug)]
struct Common {
    encoding: u8,
    signal: bool,
    augmented: bool,
    code_unit: u64,
    data_unit: i64,
    instructions: usize,
    end: usize,
}

impl Common {
    fn read(image: &ImageBytes, at: usize) -> Option<Common> {
        let mut cursor = ImageCursor { image, at, end: image.end };
        let length: u32 = cursor.read_value()?;
        if length == 0 || length == u32::MAX {
            return None;
        }
        cursor.end = cursor.at.checked_add(length as usize)?;
        let _id: u32 = cursor.read_value()?;
        let version = cursor.byte()?;
        if version != 1 && version != 3 {
            return None;
        }
        let mut letters = [0_u8; 8];
        let mut count = 0;
        loop {
            match cursor.byte()? {
                0 => break,
                letter => *letters.get_mut(count)? = letter,
            }
            count += 1;
        }
        let code_unit = cursor.unsigned()?;
        let data_unit = cursor.signed()?;
        let back = if version == 1 { u64::from(cursor.byte()?) } else { cursor.unsigned()? };
        if back != RETURN_ADDRESS {
            return None;
        }
        let mut common = Common {
            encoding: 0,
            signal: false,
            augmented: letters[0] == b'z',
            code_unit,
            data_unit,
            instructions: 0,
            end: cursor.end,
        };
        if common.augmented {
            let length = cursor.unsigned()?;
            let behind = cursor.at.checked_add(usize::try_from(length).ok()?)?;
            for &letter in &letters[1..count] {
                match letter {
                    b'R' => common.encoding = cursor.byte()?,
                    b'S' => common.signal = true,
                    b'L' => drop(cursor.byte()?),
                    b'P' => {
                        let encoding = cursor.byte()?;
                        cursor.address(encoding & 0x0f, 0)?;
                    }
                    b'B' => {}
                    _ => break,
                }
            }
            cursor.at = behind;
        } else if count != 0 {
            return None;
        }
        common.instructions = cursor.at;
        Some(common)
    }
}

/// Executes call frame instructions up to `address`.
fn execute(
    cursor: &mut ImageCursor<'_>,
    common: &Common,
    mut state: UnwindState,
    initial: UnwindState,
    begin: usize,
    address: usize,
) -> Option<UnwindState> {
    let mut location = begin;
    const _: () = assert!(8 * size_of::<UnwindState>() < 600);
    let mut kept = [state; 8];
    let mut depth = 0;
    while cursor.at < cursor.end {
        let byte = cursor.byte()?;
        let low = u64::from(byte & 0x3f);
        let advance = match byte >> 6 {
            1 => Some(low),
            2 => {
                let offset = scaled(cursor.unsigned()?, common)?;
                rule(&mut state, low, RegisterRule::At(offset));
                None
            }
            3 => {
                restore(&mut state, initial, low);
                None
            }
            _ => match byte {
                0x02 => Some(u64::from(cursor.byte()?)),
                0x03 => Some(u64::from(cursor.read_value::<u16>()?)),
                0x04 => Some(u64::from(cursor.read_value::<u32>()?)),
                _ => {
                    rare_instruction(
                        cursor,
                        common,
                        &mut state,
                        initial,
                        byte,
                        (&mut kept, &mut depth),
                        &mut location,
                    )?;
                    None
                }
            },
        };
        if let Some(advance) = advance {
            let bytes = advance.checked_mul(common.code_unit)?;
            location = location.checked_add(usize::try_from(bytes).ok()?)?;
        }
        if location > address {
            break;
        }
    }
    Some(state)
}

/// Executes an instruction that is not among the most frequent ones.
fn rare_instruction(
    cursor: &mut ImageCursor<'_>,
    common: &Common,
    state: &mut UnwindState,
    initial: UnwindState,
    byte: u8,
    (kept, depth): (&mut [UnwindState; 8], &mut usize),
    location: &mut usize,
) -> Option<()> {
    match byte {
        // nop
        0x00 => {}
        // set_loc
        0x01 => *location = cursor.address(common.encoding, 0)?,
        // remember_state
        0x0a => {
            *kept.get_mut(*depth)? = *state;
            *depth += 1;
        }
        // restore_state
        0x0b => {
            *depth = depth.checked_sub(1)?;
            *state = kept[*depth];
        }
        0x0c..=0x0f | 0x12 | 0x13 => state.end = frame_end(cursor, common, state.end, byte)?,
        // GNU_args_size
        0x2e => drop(cursor.unsigned()?),
        _ => register_rule(cursor, common, state, initial, byte)?,
    }
    Some(())
}

/// Executes an instruction that defines the location of a saved register.
#[inline(always)]
fn register_rule(
    cursor: &mut ImageCursor<'_>,
    common: &Common,
    state: &mut UnwindState,
    initial: UnwindState,
    byte: u8,
) -> Option<()> {
    match byte {
        // offset_extended
        0x05 => {
            let register = cursor.unsigned()?;
            let offset = scaled(cursor.unsigned()?, common)?;
            rule(state, register, RegisterRule::At(offset));
        }
        // restore_extended
        0x06 => restore(state, initial, cursor.unsigned()?),
        // undefined
        0x07 => rule(state, cursor.unsigned()?, RegisterRule::Undefined),
        // same_value
        0x08 => rule(state, cursor.unsigned()?, RegisterRule::Same),
        // register
        0x09 => {
            let register = cursor.unsigned()?;
            cursor.unsigned()?;
            rule(state, register, RegisterRule::Other);
        }
        // expression, val_expression
        0x10 | 0x16 => {
            let register = cursor.unsigned()?;
            let skip = cursor.unsigned()?;
            let begin = cursor.at;
            cursor.skip(skip)?;
            // Functions that realign their stack save the frame pointer in the word to which the
            // frame pointer points.
            rule(
                state,
                register,
                match by_frame_pointer(cursor.image, begin, cursor.at) {
                    Some(0) if byte == 0x10 && register == FRAME_POINTER => RegisterRule::Here,
                    _ => RegisterRule::Other,
                },
            );
        }
        // offset_extended_sf
        0x11 => {
            let register = cursor.unsigned()?;
            let offset = cursor.signed()?.checked_mul(common.data_unit)?;
            rule(state, register, RegisterRule::At(offset));
        }
        // val_offset, val_offset_sf
        0x14 | 0x15 => {
            let register = cursor.unsigned()?;
            cursor.unsigned()?;
            rule(state, register, RegisterRule::Other);
        }
        // GNU_negative_offset_extended
        0x2f => {
            let register = cursor.unsigned()?;
            cursor.unsigned()?;
            rule(state, register, RegisterRule::Other);
        }
        _ => return None,
    }
    Some(())
}

/// Executes an instruction that defines the end of the frame, the canonical frame address.
#[inline(always)]
fn frame_end(
    cursor: &mut ImageCursor<'_>,
    common: &Common,
    end: FrameEnd,
    byte: u8,
) -> Option<FrameEnd> {
    Some(match byte {
        // def_cfa
        0x0c => {
            let register = cursor.unsigned()?;
            FrameEnd::Register(register, i64::try_from(cursor.unsigned()?).ok()?)
        }
        // def_cfa_register
        0x0d => {
            let register = cursor.unsigned()?;
            match end {
                FrameEnd::Register(_, offset) => FrameEnd::Register(register, offset),
                _ => FrameEnd::Other,
            }
        }
        // def_cfa_offset
        0x0e => {
            let offset = i64::try_from(cursor.unsigned()?).ok()?;
            match end {
                FrameEnd::Register(register, _) => FrameEnd::Register(register, offset),
                _ => FrameEnd::Other,
            }
        }
        // def_cfa_expression
        0x0f => expression(cursor)?,
        // def_cfa_sf
        0x12 => {
            let register = cursor.unsigned()?;
            let offset = cursor.signed()?.checked_mul(common.data_unit)?;
            FrameEnd::Register(register, offset)
        }
        // def_cfa_offset_sf
        _ => {
            let offset = cursor.signed()?.checked_mul(common.data_unit)?;
            match end {
                FrameEnd::Register(register, _) => FrameEnd::Register(register, offset),
                end => end,
            }
        }
    })
}

fn scaled(offset: u64, common: &Common) -> Option<i64> {
    i64::try_from(offset).ok()?.checked_mul(common.data_unit)
}

fn rule(state: &mut UnwindState, register: u64, rule: RegisterRule) {
    match register {
        FRAME_POINTER => state.frame_pointer = rule,
        RETURN_ADDRESS => state.back = rule,
        _ => {}
    }
}

fn restore(state: &mut UnwindState, initial: UnwindState, register: u64) {
    match register {
        FRAME_POINTER => state.frame_pointer = initial.frame_pointer,
        RETURN_ADDRESS => state.back = initial.back,
        _ => {}
    }
}

/// Evaluates a DWARF expression for the end of a frame. Supports only the form that functions with
/// a realigned stack use.
fn expression(cursor: &mut ImageCursor<'_>) -> Option<FrameEnd> {
    let length = cursor.unsigned()?;
    let begin = cursor.at;
    cursor.skip(length)?;
    let end = cursor.at;
    let last: u8 = cursor.image.read(end.checked_sub(1)?)?;
    if last != DEREFERENCE {
        return Some(FrameEnd::Other);
    }
    Some(match by_frame_pointer(cursor.image, begin, end - 1) {
        Some(offset) => FrameEnd::Behind(offset),
        None => FrameEnd::Other,
    })
}

/// Returns the offset in an expression that adds an offset to the frame pointer; `None` for other
/// expressions.
fn by_frame_pointer(image: &ImageBytes, begin: usize, end: usize) -> Option<i64> {
    let mut cursor = ImageCursor { image, at: begin, end };
    if cursor.byte()? != BREG_FRAME {
        return None;
    }
    let offset = cursor.signed()?;
    (cursor.at == end).then_some(offset)
}

/// Converts a state to a row.
fn compact(state: UnwindState) -> UnwindRow {
    match state.back {
        RegisterRule::Undefined => return UnwindRow::End,
        RegisterRule::At(-8) => {}
        _ => return UnwindRow::Unknown,
    }
    let words = |bytes: i64| (bytes % 8 == 0).then_some(bytes / 8);
    let saved = match (state.end, state.frame_pointer) {
        (_, RegisterRule::Same) => Some(0),
        (_, RegisterRule::At(offset)) => words(-offset).filter(|&words| words > 0),
        (_, RegisterRule::Here) => Some(SAVED_HERE),
        // The caller's frame pointer cannot be restored, so the row is unknown.
        (_, RegisterRule::Undefined | RegisterRule::Other) => None,
    };
    let saved = saved.and_then(|words| u16::try_from(words).ok());
    let (Some(saved), end) = (saved, state.end) else { return UnwindRow::Unknown };
    match end {
        FrameEnd::Register(STACK_POINTER, bytes) => match words(bytes).map(u16::try_from) {
            Some(Ok(offset)) => UnwindRow::Stack { offset, saved },
            _ => UnwindRow::Unknown,
        },
        FrameEnd::Register(FRAME_POINTER, bytes) => match words(bytes).map(u16::try_from) {
            Some(Ok(offset)) => UnwindRow::Frame { offset, saved },
            _ => UnwindRow::Unknown,
        },
        FrameEnd::Behind(bytes) => match words(bytes).map(i16::try_from) {
            Some(Ok(offset)) => UnwindRow::Behind { offset, saved },
            _ => UnwindRow::Unknown,
        },
        FrameEnd::Register(..) | FrameEnd::Other => UnwindRow::Unknown,
    }
}

/// Value of `saved` if the frame pointer is saved in the word to which the frame pointer points.
pub(crate) const SAVED_HERE: i64 = SAVED_MOST as i64;
/// Maximum of `saved`, which has 12 bits.
const SAVED_MOST: u16 = 0xfff;

#[cfg(test)]
mod tests;
