//! Messages from a guard to its listener, as words on a Unix socket. A guard is the recorder
//! library inside a program, in the mode that detects memory errors. The listener is the pagewise
//! process that started the program.
//!
//! A guard connects anew for each message, sends it, and waits for one byte
//! ([`crate::tables::greeting::YES`]) before it continues. A message contains all data that it
//! refers to, so that it can be decoded after the program has ended. Words have 8 bytes in the
//! machine's byte order. Each message begins with the words of [`word`] up to [`word::TIME`].
//!
//! A message of [`kind::BUG`] has modules after its first [`word::BUG_WORDS`] words: each has five
//! words ([`module`]), its path and its build ID, both padded to whole words. The frames of the
//! three call stacks follow, one stack after the other, the innermost call first. Each frame has
//! two words: the address, with [`crate::tables::INTERRUPTED`] if it is an interrupted instruction
//! and not a return address, and the module's number plus 1 (0 for none).

/// First word of a message: `pwguard` and the version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"pwguard\x03");
/// Maximum number of words in a message.
pub const MAX_MESSAGE_WORDS: usize = 8 << 10;
/// Maximum number of frames of one call stack.
pub const MAX_STACK_FRAMES: usize = 256;
/// Maximum number of modules in one message.
pub const MAX_MODULES: usize = 64;

/// Purpose of a message.
pub mod kind {
    /// A process begins to be guarded.
    pub const HELLO: u64 = 1;
    /// The process has a memory error.
    pub const BUG: u64 = 2;
    /// A process ends normally.
    pub const END: u64 = 3;
    /// The message carries a descriptor (`SCM_RIGHTS`), which the listener keeps open until the
    /// process ends.
    pub const HOLD: u64 = 4;
}

/// Indices of words in a message.
pub mod word {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// [`super::kind`].
    pub const KIND: usize = 1;
    /// Number of words of the message.
    pub const LENGTH: usize = 2;
    /// PID of the process.
    pub const PID: usize = 3;
    /// Time of the message, in nanoseconds since 1970.
    pub const TIME: usize = 4;

    /// In [`super::kind::HELLO`]: PID of the parent.
    pub const PARENT: usize = 5;
    /// Method of making pages inaccessible: [`super::means`].
    pub const MEANS: usize = 6;
    /// Number of words of a [`super::kind::HELLO`] message.
    pub const HELLO_WORDS: usize = 7;

    /// Number of words of a [`super::kind::HOLD`] message.
    pub const HOLD_WORDS: usize = 5;

    /// In [`super::kind::END`]: number of guarded objects.
    pub const GUARDED: usize = 5;
    /// Number of objects that were not guarded, because the guard's memory was full.
    pub const LEFT_OUT: usize = 6;
    /// Maximum number of bytes of memory in guarded objects at a time.
    pub const PEAK_BYTES: usize = 7;
    /// Number of words of a [`super::kind::END`] message.
    pub const END_WORDS: usize = 8;

    /// In [`super::kind::BUG`]: TID of the thread.
    pub const TID: usize = 5;
    /// Name of the thread: 16 bytes that end with a zero.
    pub const NAME: usize = 6;
    /// Kind of the memory error: [`super::bug`].
    pub const BUG: usize = 8;
    /// Kind of the access: [`super::access`].
    pub const ACCESS: usize = 9;
    /// Address of the first invalid byte of the access.
    pub const ADDRESS: usize = 10;
    /// Address of the object; 0 without an object.
    pub const OBJECT: usize = 11;
    /// Size of the object in bytes.
    pub const SIZE: usize = 12;
    /// TID of the thread that allocated the object.
    pub const ALLOCATED_BY: usize = 13;
    /// TID of the thread that freed the object; 0 if it was not freed.
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
    /// In [`super::bug::MISMATCH`]: the function family that freed the object.
    pub const FREED_AS: usize = 21;
    /// Size that was passed to `operator delete`; all bits are set if none was passed.
    pub const FREED_SIZE: usize = 22;
    /// Number of words before the modules.
    pub const BUG_WORDS: usize = 23;
}

/// Indices of the words of a module.
pub mod module {
    /// First address of the module.
    pub const START: usize = 0;
    /// End address of the module (exclusive).
    pub const END: usize = 1;
    /// Difference between an address in memory and the address in the file.
    pub const BIAS: usize = 2;
    /// Number of bytes of the path; 0 if the module is the program itself.
    pub const PATH_LENGTH: usize = 3;
    /// Number of bytes of the build ID.
    pub const BUILD_ID_LENGTH: usize = 4;
    /// Number of words of a module.
    pub const WORDS: usize = 5;
}

/// Methods of making pages inaccessible.
pub mod means {
    /// Markers in the page tables (`MADV_GUARD_INSTALL`).
    pub const MARKS: u64 = 1;
    /// Access permissions of mappings (`mprotect`); the number of mappings of a process is limited.
    pub const MAPPINGS: u64 = 2;
    /// Removal of pages (`UFFDIO_MOVE`) for objects smaller than a page; markers or mappings for
    /// other objects.
    pub const MOVES: u64 = 3;
}

/// Kinds of memory errors.
pub mod bug {
    /// An access beyond an object's end.
    pub const OVERFLOW: u64 = 1;
    /// An access before an object's beginning.
    pub const UNDERFLOW: u64 = 2;
    /// An access to an object that was freed.
    pub const USE_AFTER_FREE: u64 = 3;
    /// An object was freed twice.
    pub const DOUBLE_FREE: u64 = 4;
    /// Free of an address that is not an object.
    pub const INVALID_FREE: u64 = 5;
    /// An access to guarded memory that never contained an object.
    pub const WILD: u64 = 6;
    /// An object was freed by a function that does not match its allocation function, or with a
    /// size that differs from the allocated size.
    pub const MISMATCH: u64 = 7;
    /// An access to memory that is not guarded, which ends the program by SIGSEGV.
    pub const FAULT: u64 = 8;
    /// An access that ends the program by SIGBUS.
    pub const BUS_FAULT: u64 = 9;
}

/// Families of functions that allocate and free objects.
pub mod made_by {
    /// `malloc` and other C functions; freed by `free`.
    pub const MALLOC: u32 = 0;
    /// `operator new`; freed by `operator delete`.
    pub const NEW: u32 = 1;
    /// `operator new[]`; freed by `operator delete[]`.
    pub const NEW_ARRAY: u32 = 2;
    /// Unknown, because the C++ library has called `malloc`.
    pub const ANY: u32 = 3;
}

/// Kinds of accesses.
pub mod access {
    /// The memory was read.
    pub const READ: u64 = 1;
    /// The memory was written.
    pub const WRITE: u64 = 2;
    /// The memory was executed.
    pub const EXECUTE: u64 = 3;
    /// The address was freed, by `free` or `realloc`.
    pub const FREE: u64 = 4;
    /// The address was written at some time before the object was freed; the first call stack of
    /// the message is that of the free.
    pub const WRITTEN_BEFORE_FREE: u64 = 5;
    /// Memory was written at some time before the program's end; the stack of the write is unknown.
    pub const WRITTEN_BEFORE_END: u64 = 6;
}
