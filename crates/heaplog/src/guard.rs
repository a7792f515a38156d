//! Messages of a guard in a program to its listener: words on a Unix socket.
//!
//! A guard connects anew for each message, sends it, and waits for one byte
//! ([`crate::tables::greeting::YES`]) before it goes on. A message contains all that it refers to,
//! so that it can be read after the program has ended. Words have 8 bytes in the machine's byte
//! order. Each message begins with the words of [`word`] up to [`word::TIME`].
//!
//! A message of [`kind::BUG`] has modules after its first [`word::BUG_WORDS`] words: each has five
//! words ([`module`]), its path and its build ID, both padded to whole words. Then come the frames
//! of the three call stacks, one stack after the other, the innermost call first. Each frame has
//! two words: the address, with [`crate::tables::INTERRUPTED`] if it is an interrupted instruction
//! and not a return address, and the module's number plus 1 (0 for none).

/// The first word: `pwguard` and the version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"pwguard\x03");
/// Words in a message, at most.
pub const MAX_MESSAGE_WORDS: usize = 8 << 10;
/// Frames of one call stack, at most.
pub const MAX_STACK_FRAMES: usize = 256;
/// Modules of one message, at most.
pub const MAX_MODULES: usize = 64;

/// Purpose of a message.
pub mod kind {
    /// A process begins to be guarded.
    pub const HELLO: u64 = 1;
    /// The process has a memory error.
    pub const BUG: u64 = 2;
    /// A process ends normally.
    pub const END: u64 = 3;
    /// The message carries a descriptor (`SCM_RIGHTS`), to be held until the process ends.
    pub const HOLD: u64 = 4;
}

/// Numbers of words.
pub mod word {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// [`super::kind`].
    pub const KIND: usize = 1;
    /// Number of words of the message.
    pub const LENGTH: usize = 2;
    /// The process.
    pub const PID: usize = 3;
    /// When, in nanoseconds since 1970.
    pub const TIME: usize = 4;

    /// In [`super::kind::HELLO`]: the parent.
    pub const PARENT: usize = 5;
    /// Method of making pages inaccessible: [`super::means`].
    pub const MEANS: usize = 6;
    /// Number of words of such a message.
    pub const HELLO_WORDS: usize = 7;

    /// Words of [`super::kind::HOLD`].
    pub const HOLD_WORDS: usize = 5;

    /// In [`super::kind::END`]: number of guarded objects.
    pub const GUARDED: usize = 5;
    /// Objects that were not guarded, because the guard's memory was full.
    pub const LEFT_OUT: usize = 6;
    /// Maximum bytes of memory in guarded objects at a time.
    pub const PEAK_BYTES: usize = 7;
    /// Number of words of such a message.
    pub const END_WORDS: usize = 8;

    /// In [`super::kind::BUG`]: the thread.
    pub const TID: usize = 5;
    /// Its name, 16 bytes that end with a zero.
    pub const NAME: usize = 6;
    /// [`super::bug`].
    pub const BUG: usize = 8;
    /// [`super::access`].
    pub const ACCESS: usize = 9;
    /// First byte that must not be accessed.
    pub const ADDRESS: usize = 10;
    /// The object's address; 0 without an object.
    pub const OBJECT: usize = 11;
    /// Its size.
    pub const SIZE: usize = 12;
    /// The thread that allocated it.
    pub const ALLOCATED_BY: usize = 13;
    /// The thread that freed it; 0 if it was not freed.
    pub const FREED_BY: usize = 14;
    /// Number of modules that follow.
    pub const MODULES: usize = 15;
    /// Number of frames of the stack of the access.
    pub const FRAMES: usize = 16;
    /// Number of frames of the stack of the allocation.
    pub const ALLOCATION_FRAMES: usize = 17;
    /// Number of frames of the stack of the free.
    pub const FREE_FRAMES: usize = 18;
    /// 1 if the program continues.
    pub const GOES_ON: usize = 19;
    /// Kind of the function that allocated the object: [`super::made_by`].
    pub const MADE_BY: usize = 20;
    /// In [`super::bug::MISMATCH`]: the family that freed it.
    pub const FREED_AS: usize = 21;
    /// Size that was passed to `operator delete`; all bits set without one.
    pub const FREED_SIZE: usize = 22;
    /// Words before modules.
    pub const BUG_WORDS: usize = 23;
}

/// Numbers of the words of a module.
pub mod module {
    /// Its first address.
    pub const START: usize = 0;
    /// Its end address (exclusive).
    pub const END: usize = 1;
    /// Difference between an address and the file's own.
    pub const BIAS: usize = 2;
    /// The length of its path; empty for the program itself.
    pub const PATH_LENGTH: usize = 3;
    /// The length of its build ID.
    pub const BUILD_ID_LENGTH: usize = 4;
    /// Number of these words.
    pub const WORDS: usize = 5;
}

/// Methods of making pages inaccessible.
pub mod means {
    /// By marks in the page tables (`MADV_GUARD_INSTALL`).
    pub const MARKS: u64 = 1;
    /// Mappings (`mprotect`); the number of mappings of a process is limited.
    pub const MAPPINGS: u64 = 2;
    /// By taking pages away (`UFFDIO_MOVE`) from objects of less than a page; others by marks or
    /// mappings.
    pub const MOVES: u64 = 3;
}

/// Kinds of memory errors.
pub mod bug {
    /// An access behind an object's end.
    pub const OVERFLOW: u64 = 1;
    /// An access before an object's beginning.
    pub const UNDERFLOW: u64 = 2;
    /// An access to an object that was freed.
    pub const USE_AFTER_FREE: u64 = 3;
    /// An object was freed again.
    pub const DOUBLE_FREE: u64 = 4;
    /// Free of an address that is not an object.
    pub const INVALID_FREE: u64 = 5;
    /// An access to guarded memory where no object ever was.
    pub const WILD: u64 = 6;
    /// An object is freed by a function that does not match the one that allocated it, or with
    /// another size.
    pub const MISMATCH: u64 = 7;
    /// An access to memory that is not guarded, which ends the program by SIGSEGV.
    pub const FAULT: u64 = 8;
    /// An access that ends the program by SIGBUS.
    pub const BUS_FAULT: u64 = 9;
}

/// Kinds of functions that make objects, with those that free them.
pub mod made_by {
    /// `malloc` and the other C functions, and `free`.
    pub const MALLOC: u32 = 0;
    /// `operator new` and `operator delete`.
    pub const NEW: u32 = 1;
    /// `operator new[]` and `operator delete[]`.
    pub const NEW_ARRAY: u32 = 2;
    /// Not known: the C++ library has called `malloc`.
    pub const ANY: u32 = 3;
}

/// Kinds of accesses.
pub mod access {
    /// It was read.
    pub const READ: u64 = 1;
    /// It was written.
    pub const WRITE: u64 = 2;
    /// It was executed.
    pub const EXECUTE: u64 = 3;
    /// It was freed, by `free` or `realloc`.
    pub const FREE: u64 = 4;
    /// It had been written at some time before it was freed: the first stack is that of the free.
    pub const WRITTEN_BEFORE_FREE: u64 = 5;
    /// It was written at some time before the program's end; the stack of the write is unknown.
    pub const WRITTEN_BEFORE_END: u64 = 6;
}
