//! Effects of an x86-64 instruction on memory, from the registers after it; and location of the
//! return address in functions.
//!
//! A data breakpoint reports the address after the instruction, and x86 code cannot be decoded
//! backward. So the code is decoded from the start of its function on, where an instruction surely
//! begins.

use std::ops::Range;

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, Formatter, GasFormatter, Instruction,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use pagewise_model::watched::WatchAccess;

/// Mask of the register that counts down during copies: cx.
pub(crate) const COUNTER: u64 = if cfg!(target_arch = "x86_64") { 1 << 2 } else { 0 };

/// Mask of the flags register.
pub(crate) const FLAGS: u64 = if cfg!(target_arch = "x86_64") { 1 << 9 } else { 0 };

/// Registers after an instruction, and the flags where they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownRegisters([u64; 17], Option<u64>);

/// Registers in the order of samples, which the unwinder requests.
const ORDER: [Register; 17] = [
    Register::RAX,
    Register::RBX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::RBP,
    Register::RSP,
    Register::RIP,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];
const SP: usize = 7;
/// Numbers of the bits of the zero flag and of the direction flag.
const ZERO: u32 = 6;
const DIRECTION: u32 = 10;

impl KnownRegisters {
    /// Returns the registers of a sample; `None` if the sample lacks a register.
    pub(crate) fn from_sample(registers: impl Iterator<Item = u64>) -> Option<KnownRegisters> {
        let mut all = [0; 17];
        let mut registers = registers.fuse();
        for register in &mut all {
            *register = registers.next()?;
        }
        Some(KnownRegisters(all, None))
    }

    pub(crate) fn with_flags(self, flags: Option<u64>) -> KnownRegisters {
        KnownRegisters(self.0, flags)
    }

    pub(crate) fn stack_pointer(&self) -> u64 {
        self.0[SP]
    }

    /// True if a flag is set, by its bit.
    fn flag(&self, bit: u32) -> Option<bool> {
        self.1.map(|flags| flags >> bit & 1 == 1)
    }

    /// True if a condition holds.
    fn holds(&self, condition: ConditionCode) -> Option<bool> {
        const CARRY: u32 = 0;
        const PARITY: u32 = 2;
        const SIGN: u32 = 7;
        const OVERFLOW: u32 = 11;
        let is_less = || Some(self.flag(SIGN)? != self.flag(OVERFLOW)?);
        let is_below_or_equal = || Some(self.flag(CARRY)? || self.flag(ZERO)?);
        let is_less_or_equal = || Some(is_less()? || self.flag(ZERO)?);
        let not = |it: Option<bool>| it.map(|it| !it);
        match condition {
            ConditionCode::o => self.flag(OVERFLOW),
            ConditionCode::no => not(self.flag(OVERFLOW)),
            ConditionCode::b => self.flag(CARRY),
            ConditionCode::ae => not(self.flag(CARRY)),
            ConditionCode::e => self.flag(ZERO),
            ConditionCode::ne => not(self.flag(ZERO)),
            ConditionCode::be => is_below_or_equal(),
            ConditionCode::a => not(is_below_or_equal()),
            ConditionCode::s => self.flag(SIGN),
            ConditionCode::ns => not(self.flag(SIGN)),
            ConditionCode::p => self.flag(PARITY),
            ConditionCode::np => not(self.flag(PARITY)),
            ConditionCode::l => is_less(),
            ConditionCode::ge => not(is_less()),
            ConditionCode::le => is_less_or_equal(),
            ConditionCode::g => not(is_less_or_equal()),
            ConditionCode::None => None,
        }
    }

    /// Value of a register in its own width.
    fn get(&self, register: Register) -> Option<u64> {
        if matches!(register, Register::CS | Register::DS | Register::ES | Register::SS) {
            return Some(0);
        }
        let full = register.full_register();
        let at = ORDER.iter().position(|it| *it == full && full != Register::None)?;
        let high = [Register::AH, Register::BH, Register::CH, Register::DH].contains(&register);
        let value = self.0[at] >> if high { 8 } else { 0 };
        Some(value & ones(register.size()))
    }
}

/// A number of `bytes` bytes with all bits set.
fn ones(bytes: usize) -> u64 {
    match bytes {
        0..8 => (1 << (8 * bytes)) - 1,
        _ => u64::MAX,
    }
}

/// Effect of an instruction on the content of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreChange {
    /// Stores this value.
    Set(u64),
    Add(u64),
    Sub(u64),
    And(u64),
    Or(u64),
    Xor(u64),
    Negate,
    Not,
    ShiftLeft(u32),
    ShiftRight(u32),
    /// Arithmetic shift, which keeps the sign.
    ShiftSigned(u32),
    RotateLeft(u32),
}

impl StoreChange {
    /// Result for a number of `size` bytes; excess bits are cut off.
    fn apply(self, old: u64, size: usize) -> u64 {
        let bits = u32::try_from(size * 8).unwrap_or(64);
        let unused = 64 - bits;
        match self {
            StoreChange::Set(value) => value,
            StoreChange::Add(by) => old.wrapping_add(by),
            StoreChange::Sub(by) => old.wrapping_sub(by),
            StoreChange::And(with) => old & with,
            StoreChange::Or(with) => old | with,
            StoreChange::Xor(with) => old ^ with,
            StoreChange::Negate => old.wrapping_neg(),
            StoreChange::Not => !old,
            StoreChange::ShiftLeft(by) => old.checked_shl(by).unwrap_or(0),
            StoreChange::ShiftRight(by) => old.checked_shr(by).unwrap_or(0),
            StoreChange::ShiftSigned(by) => {
                let signed = (old << unused).cast_signed() >> unused;
                (signed >> by.min(63)).cast_unsigned()
            }
            StoreChange::RotateLeft(by) => match by % bits {
                0 => old,
                by => old << by | old >> (bits - by),
            },
        }
    }
}

/// Effect of an instruction on watched memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreEffect {
    pub(crate) access: WatchAccess,
    /// Change of at most 8 bytes at an address; `None` if it is unknown.
    pub(crate) change: Option<(u64, usize, StoreChange)>,
}

impl StoreEffect {
    /// Content of the watched bytes after the instruction, where `old` is the content before; and
    /// true if the old content matters.
    pub(crate) fn after(
        &self,
        start: u64,
        old: Option<&[u8]>,
        length: usize,
    ) -> Option<(Vec<u8>, bool)> {
        let (address, size, change) = self.change?;
        let end = start + length as u64;
        let covers = address <= start && address + size as u64 >= end;
        let is_set = matches!(change, StoreChange::Set(_));
        let mut value = match old {
            Some(old) => old.to_vec(),
            None if covers && is_set => vec![0; length],
            None => return None,
        };
        let inside =
            |at: u64| usize::try_from(at.checked_sub(start)?).ok().filter(|at| *at < length);
        let mut before = [0; 8];
        for (at, byte) in (address..).zip(&mut before[..size]) {
            match inside(at) {
                Some(at) => *byte = value[at],
                // Unwatched bytes are unknown, and carry into watched ones.
                None if !is_set => return None,
                None => {}
            }
        }
        let after = change.apply(u64::from_le_bytes(before), size).to_le_bytes();
        for (at, byte) in (address..).zip(&after[..size]) {
            if let Some(at) = inside(at) {
                value[at] = *byte;
            }
        }
        Some((value, !(covers && is_set)))
    }
}

/// The instruction before an address, and how its function uses the stack there.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodeBefore {
    instruction: Option<Instruction>,
    /// Distance in bytes of the return address from the stack pointer, if the function has set up
    /// no frame.
    pub(crate) return_address: Option<u64>,
}

impl CodeBefore {
    /// Reads the instruction before `ip`, from the bytes of its function up to `ip`.
    pub(crate) fn read(code: &[u8], ip: u64) -> CodeBefore {
        let start = ip.wrapping_sub(code.len() as u64);
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let (mut last, mut depth, mut deepest) = (None, 0_i64, 0_i64);
        // True while a frame is set up at this instruction, and true if the body of the function
        // has one.
        let (mut in_frame, mut has_frame) = (false, false);
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                // The next instruction may begin anywhere.
                return CodeBefore::default();
            }
            depth += deeper(&instruction);
            let is_frame_pointer = instruction.op0_register() == Register::RBP;
            match instruction.mnemonic() {
                Mnemonic::Mov
                    if is_frame_pointer && instruction.op1_register() == Register::RSP =>
                {
                    (in_frame, has_frame) = (true, true);
                }
                Mnemonic::Pop if is_frame_pointer && in_frame => (in_frame, depth) = (false, 0),
                Mnemonic::Leave => (in_frame, depth) = (false, 0),
                // The instruction after a `ret` or `jmp` is reached by a jump from the body of the
                // function, where the frame is complete.
                Mnemonic::Ret | Mnemonic::Jmp => (in_frame, depth) = (has_frame, deepest),
                _ => {}
            }
            deepest = deepest.max(depth);
            last = Some(instruction);
        }
        let return_address = u64::try_from(depth).ok().filter(|_| !in_frame);
        CodeBefore { instruction: last.filter(|it| it.next_ip() == ip), return_address }
    }

    /// Returns the first instruction of `code`, if it is a repeated string instruction. Until all
    /// its iterations are done, its events have the address of the instruction itself.
    pub(crate) fn repeating(code: &[u8], ip: u64) -> Option<CodeBefore> {
        let mut decoder = Decoder::with_ip(64, code, ip, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let is_one = instruction.is_string_instruction()
            && (instruction.has_rep_prefix() || instruction.has_repne_prefix());
        is_one.then_some(CodeBefore { instruction: Some(instruction), return_address: None })
    }

    /// Returns the text of the instruction, as `objdump` writes it.
    pub(crate) fn text(&self) -> Option<String> {
        let mut text = String::new();
        GasFormatter::new().format(self.instruction.as_ref()?, &mut text);
        Some(text)
    }

    /// Returns the effect, if the instruction accessed the memory from `start` on.
    pub(crate) fn effect(
        &self,
        registers: &KnownRegisters,
        start: u64,
        length: usize,
    ) -> Option<StoreEffect> {
        let instruction = self.instruction.as_ref()?;
        // The known registers are those after the instruction, but addresses depend on the
        // registers before it. For the stack pointer, the difference is known.
        let moved = i64::from(instruction.stack_pointer_increment());
        let get = |register: Register| match register {
            Register::RSP => Some(registers.stack_pointer().wrapping_sub(moved.cast_unsigned())),
            register => registers.get(register),
        };
        let end = start + length as u64;
        if let Some(size) = stored_size(instruction) {
            return filled(size, registers, start, length);
        }
        let (access, place) = memory_access(instruction, start..end, get)?;
        // The register of a plain load contains the content of the memory.
        if access == WatchAccess::Read
            && matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx)
            && instruction.op1_kind() == OpKind::Memory
            && let Some(value) = registers.get(instruction.op0_register())
            && let Some(address) = instruction
                .virtual_address(1, 0, |it, _, _| loaded_from(instruction, registers, it))
        {
            let size = instruction.memory_size().size().min(8);
            let change = Some((address, size, StoreChange::Set(value & ones(size))));
            return Some(StoreEffect { access, change });
        }
        let change = place.filter(|(_, size)| *size <= 8).and_then(|(address, size)| {
            let change = change(instruction, registers)?;
            Some((address, size, change))
        });
        Some(StoreEffect { access, change })
    }
}

/// Returns the access of an instruction to a range of addresses: its write, if it has one, with the
/// address and the size of all written bytes.
fn memory_access(
    instruction: &Instruction,
    range: Range<u64>,
    get: impl Fn(Register) -> Option<u64>,
) -> Option<(WatchAccess, Option<(u64, usize)>)> {
    let mut infos = InstructionInfoFactory::new();
    let mut found = None;
    for memory in infos.info(instruction).used_memory() {
        let Some(address) = memory.virtual_address(0, |register, _, _| get(register)) else {
            continue;
        };
        let size = memory.memory_size().size();
        if address >= range.end || address.saturating_add(size as u64) <= range.start {
            continue;
        }
        let writes = matches!(
            memory.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        if writes {
            found = Some((WatchAccess::Write, Some((address, size))));
        } else if found.is_none() {
            found = Some((WatchAccess::Read, None));
        }
    }
    found
}

/// Number of bytes that each iteration of a string instruction stores.
fn stored_size(instruction: &Instruction) -> Option<usize> {
    match instruction.mnemonic() {
        Mnemonic::Stosb => Some(1),
        Mnemonic::Stosw => Some(2),
        Mnemonic::Stosd => Some(4),
        Mnemonic::Stosq => Some(8),
        _ => None,
    }
}

/// Effect of a `rep stos` instruction that is in progress: the bytes before the current address are
/// copies of ax.
fn filled(
    size: usize,
    registers: &KnownRegisters,
    start: u64,
    length: usize,
) -> Option<StoreEffect> {
    let (to, value) = (registers.get(Register::RDI)?, registers.get(Register::RAX)?);
    let is_upwards = !registers.flag(DIRECTION).unwrap_or(false);
    let end = start + length as u64;
    // The change is known only if di is less than `size` bytes beyond the watched bytes. If di is
    // further on, the fill may have begun behind the watched bytes. If more than `size` bytes are
    // watched, the fill may have begun within them.
    let is_behind = is_upwards && to >= end && to - end < size as u64;
    if !is_behind || length > size {
        let is_near = is_upwards && to > start && to - start <= (length + size) as u64;
        return is_near.then_some(StoreEffect { access: WatchAccess::Write, change: None });
    }
    let change = StoreChange::Set(value & ones(size));
    Some(StoreEffect { access: WatchAccess::Write, change: Some((to - size as u64, size, change)) })
}

/// Returns the value of a register, unless the load has overwritten it.
fn loaded_from(load: &Instruction, registers: &KnownRegisters, register: Register) -> Option<u64> {
    let is_gone = load.op0_register().full_register() == register.full_register();
    if is_gone { None } else { registers.get(register) }
}

/// Returns the number of bytes by which an instruction moves the stack pointer down.
fn deeper(instruction: &Instruction) -> i64 {
    let moved = i64::from(instruction.stack_pointer_increment());
    let by_number = || instruction.immediate(1).cast_signed();
    let is_number = instruction.op0_register() == Register::RSP
        && !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory);
    match instruction.mnemonic() {
        Mnemonic::Sub if is_number => by_number(),
        Mnemonic::Add if is_number => -by_number(),
        // A call pops its return address when it returns.
        Mnemonic::Call | Mnemonic::Ret => 0,
        _ => -moved,
    }
}

/// Effect of an instruction on its memory operand.
fn change(instruction: &Instruction, registers: &KnownRegisters) -> Option<StoreChange> {
    if instruction.op0_kind() != OpKind::Memory {
        return None;
    }
    let operand = || match instruction.op1_kind() {
        OpKind::Register => registers.get(instruction.op1_register()),
        OpKind::Memory => None,
        _ => Some(instruction.immediate(1)),
    };
    // Only some bits of a shift count are used.
    let shift = || {
        let is_wide = instruction.memory_size().size() == 8;
        u32::try_from(operand()? & if is_wide { 63 } else { 31 }).ok()
    };
    // A mask of one bit. A bit offset in a register can select another word.
    let bit = || {
        let at = operand()?;
        let bits = instruction.memory_size().size() as u64 * 8;
        let is_number = instruction.op1_kind() != OpKind::Register;
        (is_number || at < bits).then(|| 1_u64 << (at % bits))
    };
    // `cmpxchg`: stores the new value if the comparison succeeds, else the old value, which ends up
    // in ax.
    let exchanged = |new: Option<u64>, old: Option<u64>| match registers.flag(ZERO)? {
        true => new,
        false => old,
    };
    if instruction.condition_code() != ConditionCode::None && instruction.op_count() == 1 {
        return registers.holds(instruction.condition_code()).map(|it| StoreChange::Set(it.into()));
    }
    Some(match instruction.mnemonic() {
        Mnemonic::Cmpxchg => {
            let old = match instruction.memory_size().size() {
                1 => Register::AL,
                2 => Register::AX,
                4 => Register::EAX,
                _ => Register::RAX,
            };
            StoreChange::Set(exchanged(operand(), registers.get(old))?)
        }
        Mnemonic::Cmpxchg8b => {
            let pair = |high, low| Some(registers.get(high)? << 32 | registers.get(low)?);
            let new = pair(Register::ECX, Register::EBX);
            StoreChange::Set(exchanged(new, pair(Register::EDX, Register::EAX))?)
        }
        Mnemonic::Shl | Mnemonic::Sal => StoreChange::ShiftLeft(shift()?),
        Mnemonic::Shr => StoreChange::ShiftRight(shift()?),
        Mnemonic::Sar => StoreChange::ShiftSigned(shift()?),
        Mnemonic::Rol => StoreChange::RotateLeft(shift()?),
        Mnemonic::Ror => {
            let bits = u32::try_from(instruction.memory_size().size() * 8).ok()?;
            StoreChange::RotateLeft((bits - shift()? % bits) % bits)
        }
        Mnemonic::Bts => StoreChange::Or(bit()?),
        Mnemonic::Btr => StoreChange::And(!bit()?),
        Mnemonic::Btc => StoreChange::Xor(bit()?),
        Mnemonic::Mov | Mnemonic::Movnti => StoreChange::Set(operand()?),
        Mnemonic::Add => StoreChange::Add(operand()?),
        Mnemonic::Sub => StoreChange::Sub(operand()?),
        Mnemonic::And => StoreChange::And(operand()?),
        Mnemonic::Or => StoreChange::Or(operand()?),
        Mnemonic::Xor => StoreChange::Xor(operand()?),
        Mnemonic::Inc => StoreChange::Add(1),
        Mnemonic::Dec => StoreChange::Sub(1),
        Mnemonic::Neg => StoreChange::Negate,
        Mnemonic::Not => StoreChange::Not,
        _ => return None,
    })
}

/// Returns `Some` if the code may end with a call. For a direct call the value is the target of the
/// call, computed from `address`, the return address.
pub(crate) fn ends_with_call(code: &[u8], address: u64) -> Option<Option<u64>> {
    if let Some(&[0xe8, a, b, c, d]) = code.last_chunk::<5>() {
        let by = i64::from(i32::from_le_bytes([a, b, c, d]));
        return Some(Some(address.wrapping_add_signed(by)));
    }
    let is_call = (2..=7).any(|length| {
        let Some(piece) = code.len().checked_sub(length).map(|at| &code[at..]) else {
            return false;
        };
        let mut decoder = Decoder::with_ip(64, piece, 0, DecoderOptions::NONE);
        let instruction = decoder.decode();
        instruction.mnemonic() == Mnemonic::Call && instruction.len() == length
    });
    is_call.then_some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers by name, the others 0.
    fn registers(values: &[(Register, u64)]) -> KnownRegisters {
        let mut all = KnownRegisters::default();
        for (register, value) in values {
            all.0[ORDER.iter().position(|it| it == register).unwrap()] = *value;
        }
        all
    }

    /// Effect of the last instruction of some code on 8 bytes at 0x1000 that contain 5.
    fn after(code: &[u8], values: &[(Register, u64)]) -> Option<(u64, bool)> {
        let code = CodeBefore::read(code, 0x4000_0000 + code.len() as u64);
        let effect = code.effect(&registers(values), 0x1000, 8)?;
        let (bytes, computed) = effect.after(0x1000, Some(&5_u64.to_le_bytes()), 8)?;
        Some((u64::from_le_bytes(bytes.try_into().unwrap()), computed))
    }

    #[test]
    fn stores_are_computed_from_the_registers_behind_them() {
        use Register::{RAX, RBX, RCX, RDI};
        let at = |base| (base, 0x1000);
        // mov %rax,(%rdi)
        assert_eq!(after(&[0x48, 0x89, 0x07], &[at(RDI), (RAX, 77)]), Some((77, false)));
        // movl $1,(%rbx): the upper half stays.
        assert_eq!(after(&[0xc7, 0x03, 1, 0, 0, 0], &[at(RBX)]), Some((1, true)));
        // movq $-1,(%rbx)
        let minus = [0x48, 0xc7, 0x03, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(after(&minus, &[at(RBX)]), Some((u64::MAX, false)));
        // mov %ah,-1(%rbx,%rcx,2)
        let high = [0x88, 0x64, 0x4b, 0xff];
        assert_eq!(after(&high, &[(RBX, 0xfff), (RCX, 1), (RAX, 0x1234)]), Some((0x12, true)));
        // lock add %rcx,(%rdi)
        let add = [0xf0, 0x48, 0x01, 0x0f];
        assert_eq!(after(&add, &[at(RDI), (RCX, 3)]), Some((8, true)));
        // decq (%rdi), negq (%rdi)
        assert_eq!(after(&[0x48, 0xff, 0x0f], &[at(RDI)]), Some((4, true)));
        assert_eq!(after(&[0x48, 0xf7, 0x1f], &[at(RDI)]), Some((5_u64.wrapping_neg(), true)));
        // An access at another address, and an access by a register that is not known: mov
        // %rax,%fs:(%rdi).
        assert_eq!(after(&[0x48, 0x89, 0x07], &[(RDI, 0x2000), (RAX, 77)]), None);
        assert_eq!(after(&[0x64, 0x48, 0x89, 0x07], &[at(RDI), (RAX, 77)]), None);
    }

    #[test]
    fn exchanges_shifts_and_fills_are_computed_too() {
        use Register::{RAX, RCX, RDI};
        const EQUAL: u64 = 1 << ZERO;
        let at = (RDI, 0x1000);
        let with = |code: &[u8], values: &[(Register, u64)], flags: u64| {
            let code = CodeBefore::read(code, 0x4000_0000 + code.len() as u64);
            let registers = registers(values).with_flags(Some(flags));
            let effect = code.effect(&registers, 0x1000, 8)?;
            let (bytes, _) = effect.after(0x1000, Some(&5_u64.to_le_bytes()), 8)?;
            Some(u64::from_le_bytes(bytes.try_into().unwrap()))
        };
        // lock cmpxchg %rcx,(%rdi): successful, and failed, after which ax contains the old value.
        let exchange = [0xf0, 0x48, 0x0f, 0xb1, 0x0f];
        assert_eq!(with(&exchange, &[at, (RCX, 9), (RAX, 5)], EQUAL), Some(9));
        assert_eq!(with(&exchange, &[at, (RCX, 9), (RAX, 5)], 0), Some(5));
        // Without flags, and xchg %rcx,(%rdi): no register contains the stored value.
        assert_eq!(after(&exchange, &[at, (RCX, 9), (RAX, 5)]), None);
        assert_eq!(with(&[0x48, 0x87, 0x0f], &[at, (RCX, 9)], 0), None);
        // sete (%rdi), setg (%rdi)
        assert_eq!(with(&[0x0f, 0x94, 0x07], &[at], EQUAL), Some(1));
        assert_eq!(with(&[0x0f, 0x9f, 0x07], &[at], EQUAL), Some(0));
        // shlq $2,(%rdi); shrq %cl,(%rdi); sarb $1,(%rdi); rorq $1,(%rdi); rolb $1,(%rdi)
        assert_eq!(with(&[0x48, 0xc1, 0x27, 2], &[at], 0), Some(20));
        assert_eq!(with(&[0x48, 0xd3, 0x2f], &[at, (RCX, 65)], 0), Some(2));
        assert_eq!(with(&[0xd0, 0x3f], &[at], 0), Some(2));
        assert_eq!(with(&[0x48, 0xd1, 0x0f], &[at], 0), Some(1 << 63 | 2));
        assert_eq!(with(&[0xd0, 0x07], &[at], 0), Some(10));
        // lock btsq $3,(%rdi); btrq %rcx,(%rdi), of a bit in this word and of a bit in a distant
        // word
        assert_eq!(with(&[0xf0, 0x48, 0x0f, 0xba, 0x2f, 3], &[at], 0), Some(13));
        assert_eq!(with(&[0x48, 0x0f, 0xb3, 0x0f], &[at, (RCX, 2)], 0), Some(1));
        assert_eq!(with(&[0x48, 0x0f, 0xb3, 0x0f], &[at, (RCX, 640)], 0), None);
        // rep stos %rax,(%rdi): di directly behind the word, di further on, and a fill downward.
        let fill = [0xf3, 0x48, 0xab];
        assert_eq!(with(&fill, &[(RDI, 0x1008), (RAX, 7)], 0), Some(7));
        assert_eq!(with(&fill, &[(RDI, 0x1018), (RAX, 7)], 0), None);
        assert_eq!(with(&fill, &[(RDI, 0x1008), (RAX, 7)], 1 << DIRECTION), None);
        let repeating = CodeBefore::repeating(&[0xf3, 0xaa, 0x90, 0x90], 0x1000).unwrap();
        assert_eq!(repeating.text().unwrap(), "rep stos %al,(%rdi)");
        assert!(
            CodeBefore::repeating(&[0xaa, 0x90], 0).is_none()
                && CodeBefore::repeating(&[], 0).is_none()
        );
    }

    #[test]
    fn reads_are_distinguished_from_writes() {
        let access = |code: &[u8], values: &[(Register, u64)]| {
            let code = CodeBefore::read(code, 0x4000_0000 + code.len() as u64);
            code.effect(&registers(values), 0x1000, 8).map(|effect| effect.access)
        };
        // mov (%rdi),%rax; cmpq $0,(%rdi); push (%rdi); push %rax
        let there = [(Register::RDI, 0x1000), (Register::RSP, 0x5000)];
        assert_eq!(access(&[0x48, 0x8b, 0x07], &there), Some(WatchAccess::Read));
        assert_eq!(access(&[0x48, 0x83, 0x3f, 0], &there), Some(WatchAccess::Read));
        assert_eq!(access(&[0xff, 0x37], &there), Some(WatchAccess::Read));
        assert_eq!(access(&[0x50], &[(Register::RSP, 0x1000)]), Some(WatchAccess::Write));
        // mov (%rdi),%rax; mov (%rdi),%rdi, which overwrites its address register; movzwl
        // (%rdi),%eax
        let loaded = [(Register::RDI, 0x1000), (Register::RAX, 77)];
        assert_eq!(after(&[0x48, 0x8b, 0x07], &loaded), Some((77, false)));
        assert_eq!(after(&[0x48, 0x8b, 0x3f], &loaded), None);
        assert_eq!(after(&[0x0f, 0xb7, 0x07], &loaded), Some((77, true)));
    }

    #[test]
    fn the_return_address_is_found_where_no_frame_is_set_up() {
        let depth =
            |code: &[u8]| CodeBefore::read(code, 0x4000_0000 + code.len() as u64).return_address;
        let (push_rbp, mov_rbp) = ([0x55], [0x48, 0x89, 0xe5]);
        assert_eq!(depth(&[]), Some(0));
        assert_eq!(depth(&push_rbp), Some(8));
        assert_eq!(depth(&[&push_rbp[..], &mov_rbp].concat()), None);
        // push %rbx; sub $0x20,%rsp; add $0x20,%rsp; pop %rbx; ret; nop
        let code = [0x53, 0x48, 0x83, 0xec, 0x20, 0x48, 0x83, 0xc4, 0x20, 0x5b, 0xc3, 0x90];
        assert_eq!(depth(&code[..1]), Some(8));
        assert_eq!(depth(&code[..5]), Some(0x28));
        assert_eq!(depth(&code[..10]), Some(0));
        assert_eq!(depth(&code), Some(0x28));
        // push %rbp; mov %rsp,%rbp; pop %rbp
        assert_eq!(depth(&[0x55, 0x48, 0x89, 0xe5, 0x5d]), Some(0));
        // Invalid instructions have no depth.
        assert_eq!(depth(&[0x06, 0x90]), None);
    }

    #[test]
    fn a_return_address_follows_a_call() {
        // call .+0x10 (from 0x1000 on), call *%rax, call *8(%rbx)
        assert_eq!(ends_with_call(&[0x90, 0x90, 0xe8, 0x10, 0, 0, 0], 0x1005), Some(Some(0x1015)));
        assert_eq!(ends_with_call(&[0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0], 0x1000), Some(None));
        assert_eq!(ends_with_call(&[0x90, 0x90, 0x90, 0x90, 0xff, 0x53, 8], 0x1000), Some(None));
        assert_eq!(ends_with_call(&[0x90; 7], 0x1000), None);
    }
}
