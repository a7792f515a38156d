//! What an instruction of x86-64 stored where, by the registers after it; and where functions have their return address.
//!
//! A data breakpoint is told of behind the instruction, so the code is read from the start of its function on, where an
//! instruction surely begins.

use iced_x86::{
    Decoder, DecoderOptions, Formatter, GasFormatter, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register,
};
use pagewise_model::watched::Access;

/// That which counts down where something is copied: cx.
pub(crate) const COUNTER: u64 = if cfg!(target_arch = "x86_64") { 1 << 2 } else { 0 };

/// Registers after an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers([u64; 17]);

/// By place in the sample, as the unwinder has them carried.
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

impl Registers {
    /// Of a sample; `None` where it has not all of them.
    pub(crate) fn of(registers: impl Iterator<Item = u64>) -> Option<Registers> {
        let mut all = [0; 17];
        let mut registers = registers.fuse();
        for register in &mut all {
            *register = registers.next()?;
        }
        Some(Registers(all))
    }

    pub(crate) fn stack_pointer(&self) -> u64 {
        self.0[SP]
    }

    /// What a register holds, as wide as it is.
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

/// As many bytes of ones.
fn ones(bytes: usize) -> u64 {
    match bytes {
        0..8 => (1 << (8 * bytes)) - 1,
        _ => u64::MAX,
    }
}

/// What an instruction makes of what was in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// This, whatever was there.
    Set(u64),
    Add(u64),
    Sub(u64),
    And(u64),
    Or(u64),
    Xor(u64),
    Negate,
    Not,
}

impl Change {
    fn apply(self, old: u64) -> u64 {
        match self {
            Change::Set(value) => value,
            Change::Add(by) => old.wrapping_add(by),
            Change::Sub(by) => old.wrapping_sub(by),
            Change::And(with) => old & with,
            Change::Or(with) => old | with,
            Change::Xor(with) => old ^ with,
            Change::Negate => old.wrapping_neg(),
            Change::Not => !old,
        }
    }
}

/// What an instruction did to memory that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) access: Access,
    /// What became of the bytes at an address, so many up to 8; none where that is not known.
    pub(crate) change: Option<(u64, usize, Change)>,
}

impl Effect {
    /// What the watched bytes hold after it, where `old` is what they held, and whether that mattered.
    pub(crate) fn after(
        &self,
        start: u64,
        old: Option<&[u8]>,
        length: usize,
    ) -> Option<(Vec<u8>, bool)> {
        let (address, size, change) = self.change?;
        let end = start + length as u64;
        let covers = address <= start && address + size as u64 >= end;
        let is_set = matches!(change, Change::Set(_));
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
                // Bytes that are not watched are not known, and carry into those that are.
                None if !is_set => return None,
                None => {}
            }
        }
        let after = change.apply(u64::from_le_bytes(before)).to_le_bytes();
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
pub(crate) struct Code {
    instruction: Option<Instruction>,
    /// How many bytes above the stack pointer the return address is, where the function has set up no frame.
    pub(crate) return_address: Option<u64>,
}

impl Code {
    /// From the bytes of a function up to `ip`.
    pub(crate) fn read(code: &[u8], ip: u64) -> Code {
        let start = ip.wrapping_sub(code.len() as u64);
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let (mut last, mut depth, mut deepest) = (None, 0_i64, 0_i64);
        // Whether there is a frame here, and whether there is one in the body of the function.
        let (mut in_frame, mut has_frame) = (false, false);
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                // What follows may begin anywhere.
                return Code::default();
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
                // What comes behind is reached from the body.
                Mnemonic::Ret | Mnemonic::Jmp => (in_frame, depth) = (has_frame, deepest),
                _ => {}
            }
            deepest = deepest.max(depth);
            last = Some(instruction);
        }
        let return_address = u64::try_from(depth).ok().filter(|_| !in_frame);
        Code { instruction: last.filter(|it| it.next_ip() == ip), return_address }
    }

    /// As `objdump` writes it.
    pub(crate) fn text(&self) -> Option<String> {
        let mut text = String::new();
        GasFormatter::new().format(self.instruction.as_ref()?, &mut text);
        Some(text)
    }

    /// What it did, if it is what used the memory from `start` on.
    pub(crate) fn effect(
        &self,
        registers: &Registers,
        start: u64,
        length: usize,
    ) -> Option<Effect> {
        let instruction = self.instruction.as_ref()?;
        // Registers are those after it, addresses are made of those before it: of the stack pointer that is known.
        let moved = i64::from(instruction.stack_pointer_increment());
        let get = |register: Register| match register {
            Register::RSP => Some(registers.stack_pointer().wrapping_sub(moved.cast_unsigned())),
            register => registers.get(register),
        };
        let end = start + length as u64;
        let mut infos = InstructionInfoFactory::new();
        let used = infos.info(instruction).used_memory();
        let mut found: Option<Access> = None;
        let mut place = None;
        for memory in used {
            let Some(address) = memory.virtual_address(0, |register, _, _| get(register)) else {
                continue;
            };
            let size = memory.memory_size().size();
            if address >= end || address.saturating_add(size as u64) <= start {
                continue;
            }
            let writes = matches!(
                memory.access(),
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            );
            if writes || found.is_none() {
                found = Some(if writes { Access::Write } else { Access::Read });
                place = writes.then_some((address, size));
            }
        }
        let access = found?;
        // A plain load has what was there in its register.
        if access == Access::Read
            && matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx)
            && instruction.op1_kind() == OpKind::Memory
            && let Some(value) = registers.get(instruction.op0_register())
            && let Some(address) = instruction
                .virtual_address(1, 0, |it, _, _| loaded_from(instruction, registers, it))
        {
            let size = instruction.memory_size().size().min(8);
            let change = Some((address, size, Change::Set(value & ones(size))));
            return Some(Effect { access, change });
        }
        let change = place.filter(|(_, size)| *size <= 8).and_then(|(address, size)| {
            let change = change(instruction, registers)?;
            Some((address, size, change))
        });
        Some(Effect { access, change })
    }
}

/// A register that a load has not overwritten.
fn loaded_from(load: &Instruction, registers: &Registers, register: Register) -> Option<u64> {
    let is_gone = load.op0_register().full_register() == register.full_register();
    if is_gone { None } else { registers.get(register) }
}

/// By how much an instruction moves the stack pointer down.
fn deeper(instruction: &Instruction) -> i64 {
    let moved = i64::from(instruction.stack_pointer_increment());
    let by_number = || instruction.immediate(1).cast_signed();
    let is_number = instruction.op0_register() == Register::RSP
        && !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory);
    match instruction.mnemonic() {
        Mnemonic::Sub if is_number => by_number(),
        Mnemonic::Add if is_number => -by_number(),
        // What a call pushes is gone when it returns.
        Mnemonic::Call | Mnemonic::Ret => 0,
        _ => -moved,
    }
}

/// What an instruction makes of its memory.
fn change(instruction: &Instruction, registers: &Registers) -> Option<Change> {
    if instruction.op0_kind() != OpKind::Memory {
        return None;
    }
    let operand = || match instruction.op1_kind() {
        OpKind::Register => registers.get(instruction.op1_register()),
        OpKind::Memory => None,
        _ => Some(instruction.immediate(1)),
    };
    Some(match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movnti => Change::Set(operand()?),
        Mnemonic::Add => Change::Add(operand()?),
        Mnemonic::Sub => Change::Sub(operand()?),
        Mnemonic::And => Change::And(operand()?),
        Mnemonic::Or => Change::Or(operand()?),
        Mnemonic::Xor => Change::Xor(operand()?),
        Mnemonic::Inc => Change::Add(1),
        Mnemonic::Dec => Change::Sub(1),
        Mnemonic::Neg => Change::Negate,
        Mnemonic::Not => Change::Not,
        _ => return None,
    })
}

/// Whether what ends here may be a call; a direct one also says where it goes from `address`, where it returns to.
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
    fn registers(values: &[(Register, u64)]) -> Registers {
        let mut all = Registers::default();
        for (register, value) in values {
            all.0[ORDER.iter().position(|it| it == register).unwrap()] = *value;
        }
        all
    }

    /// What the last instruction of some code did to 8 bytes at 0x1000 that held 5.
    fn after(code: &[u8], values: &[(Register, u64)]) -> Option<(u64, bool)> {
        let code = Code::read(code, 0x4000_0000 + code.len() as u64);
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
        // Elsewhere, and by a register that is not known: mov %rax,%fs:(%rdi).
        assert_eq!(after(&[0x48, 0x89, 0x07], &[(RDI, 0x2000), (RAX, 77)]), None);
        assert_eq!(after(&[0x64, 0x48, 0x89, 0x07], &[at(RDI), (RAX, 77)]), None);
    }

    #[test]
    fn what_reads_is_told_from_what_writes() {
        let access = |code: &[u8], values: &[(Register, u64)]| {
            let code = Code::read(code, 0x4000_0000 + code.len() as u64);
            code.effect(&registers(values), 0x1000, 8).map(|effect| effect.access)
        };
        // mov (%rdi),%rax; cmpq $0,(%rdi); push (%rdi); push %rax
        let there = [(Register::RDI, 0x1000), (Register::RSP, 0x5000)];
        assert_eq!(access(&[0x48, 0x8b, 0x07], &there), Some(Access::Read));
        assert_eq!(access(&[0x48, 0x83, 0x3f, 0], &there), Some(Access::Read));
        assert_eq!(access(&[0xff, 0x37], &there), Some(Access::Read));
        assert_eq!(access(&[0x50], &[(Register::RSP, 0x1000)]), Some(Access::Write));
        // mov (%rdi),%rax; mov (%rdi),%rdi, which overwrites where it was read from; movzwl (%rdi),%eax
        let loaded = [(Register::RDI, 0x1000), (Register::RAX, 77)];
        assert_eq!(after(&[0x48, 0x8b, 0x07], &loaded), Some((77, false)));
        assert_eq!(after(&[0x48, 0x8b, 0x3f], &loaded), None);
        assert_eq!(after(&[0x0f, 0xb7, 0x07], &loaded), Some((77, true)));
    }

    #[test]
    fn the_return_address_is_found_where_no_frame_is_set_up() {
        let depth = |code: &[u8]| Code::read(code, 0x4000_0000 + code.len() as u64).return_address;
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
        // What is no instruction says nothing.
        assert_eq!(depth(&[0x06, 0x90]), None);
    }

    #[test]
    fn what_can_return_somewhere_is_a_call_before_it() {
        // call .+0x10 (from 0x1000 on), call *%rax, call *8(%rbx)
        assert_eq!(ends_with_call(&[0x90, 0x90, 0xe8, 0x10, 0, 0, 0], 0x1005), Some(Some(0x1015)));
        assert_eq!(ends_with_call(&[0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0], 0x1000), Some(None));
        assert_eq!(ends_with_call(&[0x90, 0x90, 0x90, 0x90, 0xff, 0x53, 8], 0x1000), Some(None));
        assert_eq!(ends_with_call(&[0x90; 7], 0x1000), None);
    }
}
