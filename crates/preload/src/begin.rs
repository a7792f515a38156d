//! Start of the recorder at the first call: finds the next allocator functions, reads the settings
//! from the environment, and performs the handshake with the collector.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use pagewise_heaplog::tables::{LENGTH, MAGIC, allocator, attached, greeting, header, trouble};

use crate::aux_hooks::{self, Other};
use crate::guard;
use crate::inline;
use crate::kernel::{self, OwnedFile};
use crate::modules;
use crate::named;
use crate::next_alloc::{self, MallocOwner};
use crate::shared::{self, head};
use crate::stubs::{self, EntryFunction, FUNCTIONS, Own, set_own};
use crate::{attach, live, log, mappings, pools, rows, sampling, thread_cache, threads, tree};

/// Stage of the recorder's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum StartStage {
    /// No function of the recorder was called yet.
    Cold = 0,
    /// The first call is being served.
    Begins = 1,
    /// Calls are recorded.
    Records = 2,
    /// Calls are not recorded. Only a collector that attaches changes this stage.
    Off = 3,
}

static STAGE: AtomicU8 = AtomicU8::new(StartStage::Cold as u8);
/// Pointer to a word that `fork` sets to 0 in the child; null before a recording.
static ALIVE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// 1 if children of `fork` are recorded.
static FOLLOW: AtomicU8 = AtomicU8::new(0);
/// 1 if the allocator is the C library's.
static IS_GLIBC: AtomicU8 = AtomicU8::new(0);
/// [`STARTED`] or [`ATTACHED`] if functions must be hooked before any call is recorded, because the
/// program does not call the exported functions; otherwise 0.
static TO_HOOK: AtomicU8 = AtomicU8::new(0);
/// 1 if the collector hooked functions. A child that is not recorded restores these functions.
static WAS_ATTACHED: AtomicU8 = AtomicU8::new(0);
/// Value of [`TO_HOOK`]: this process hooks the functions before it has other threads.
const STARTED: u8 = 1;
/// Value of [`TO_HOOK`]: the collector hooks the functions.
const ATTACHED: u8 = 2;
/// 1 if the recording began in a running program, which may have any number of threads.
static IS_RUNNING: AtomicU8 = AtomicU8::new(0);
/// Settings from the environment, which children of `fork` read again.
static SETTINGS: SettingsText = SettingsText(std::cell::UnsafeCell::new([0; MAX_SETTINGS_BYTES]));
const MAX_SETTINGS_BYTES: usize = 256;

struct SettingsText(std::cell::UnsafeCell<[u8; MAX_SETTINGS_BYTES]>);
// SAFETY: the text is written once, before other threads run, and only read afterwards.
unsafe impl Sync for SettingsText {}

pub(crate) fn stage() -> StartStage {
    match STAGE.load(Ordering::Acquire) {
        0 => StartStage::Cold,
        1 => StartStage::Begins,
        2 => StartStage::Records,
        _ => StartStage::Off,
    }
}

fn set_stage(stage: StartStage) {
    STAGE.store(stage as u8, Ordering::Release);
}

/// True if calls are recorded in this process. In a child of `fork`, the first call decides whether
/// the child is recorded.
#[cold]
pub(crate) fn is_recording() -> bool {
    if stage() != StartStage::Records {
        return false;
    }
    let alive = ALIVE.load(Ordering::Relaxed);
    // SAFETY: the memory of the word is unmapped only when no thread is in the recorder.
    if unsafe { &*alive }.load(Ordering::Relaxed) == 1 {
        return true;
    }
    if guard::is_on() {
        // Guarded objects and tables of the child are copies of the parent's; other recorder memory
        // is zero-filled.
        threads::reset();
        rows::reset();
        tree::reset();
        guard::forked();
        // SAFETY: the memory of the word is unmapped only when no thread is in the recorder.
        unsafe { &*alive }.store(1, Ordering::Relaxed);
        return true;
    }
    if FOLLOW.load(Ordering::Relaxed) == 0 {
        leave_child();
        return false;
    }
    // After `fork` this is the only thread, and the recorder's own memory is zero-filled.
    set_stage(StartStage::Begins);
    reset_tables();
    // SAFETY: no thread writes the settings after this stage.
    let settings = unsafe { &*SETTINGS.0.get() };
    if record(settings).is_none() {
        leave_child();
        return false;
    }
    true
}

/// True if the collector hooked functions.
pub(crate) fn was_attached() -> bool {
    WAS_ATTACHED.load(Ordering::Relaxed) != 0
}

/// Ends the recording in a child of `fork`. Called by the child's only thread.
fn leave_child() {
    turn_off();
    if was_attached() {
        // If the code cannot be made writable, the inline hooks stay and call the program's
        // functions.
        let _ = inline::unpatch();
        let _ = named::unpatch();
    }
}

/// Ends the recording for the reason `why`, which is written to the tables.
pub(crate) fn give_up(why: u64) {
    if is_recording() {
        head(header::TROUBLE).store(why, Ordering::Relaxed);
        turn_off();
    }
}

/// Clears [`ALIVE`], whose memory is about to be unmapped. Called after the recording has ended.
pub(crate) fn forget_alive() {
    ALIVE.store(std::ptr::null_mut(), Ordering::Relaxed);
}

pub(crate) fn turn_off() {
    stubs::aim(next_alloc::targets());
    set_stage(StartStage::Off);
}

/// Runs when the library is loaded, so that a program without allocations also connects to the
/// collector.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: unsafe extern "C" fn() = begin;

/// Starts the recorder: at the first call of an exported function, or when the library is loaded.
pub(crate) unsafe extern "C" fn begin() {
    let first = STAGE.compare_exchange(
        StartStage::Cold as u8,
        StartStage::Begins as u8,
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
    if first.is_err() {
        return;
    }
    // The lookup of functions may itself allocate, so calls go to the boot allocator during the
    // lookup.
    stubs::aim(next_alloc::boot_targets());
    let whose = next_alloc::resolve();
    guard::find();
    let is_glibc = whose == MallocOwner::Glibc && next_alloc::has_headers();
    IS_GLIBC.store(u8::from(is_glibc), Ordering::Relaxed);
    TO_HOOK.store(if whose == MallocOwner::Theirs { STARTED } else { 0 }, Ordering::Relaxed);
    // SAFETY: the exchange above admits one thread only.
    let settings = unsafe { &mut *SETTINGS.0.get() };
    if environment(settings).is_none() || record(settings).is_none() {
        turn_off();
    }
}

/// Begins to record in a running program. Returns [`attached::YES`] or the code of the failure.
pub(crate) fn attach(words: &[u8]) -> u64 {
    // SAFETY: calls are not recorded yet, so no other thread accesses the settings.
    let settings = unsafe { &mut *SETTINGS.0.get() };
    let Some(room) = settings.get_mut(..words.len()).filter(|room| room.len() < MAX_SETTINGS_BYTES)
    else {
        return attached::FAILED;
    };
    room.copy_from_slice(words);
    settings[words.len()..].fill(0);
    set_stage(StartStage::Begins);
    IS_RUNNING.store(1, Ordering::Relaxed);
    // A program that was started with this library calls the exported functions already.
    if !next_alloc::calls_us() {
        let is_glibc = next_alloc::find_running() && next_alloc::has_headers();
        if is_glibc {
            thread_cache::learn();
        }
        IS_GLIBC.store(u8::from(is_glibc), Ordering::Relaxed);
        TO_HOOK.store(ATTACHED, Ordering::Relaxed);
        WAS_ATTACHED.store(1, Ordering::Relaxed);
    }
    if record(settings).is_none() {
        turn_off();
        let is_late = shared::trouble() == Some(trouble::LATE);
        return if is_late { attached::LATE } else { attached::FAILED };
    }
    attached::YES
}

/// Reads the recorder's variable from the initial environment of the process: the `environ` of the
/// C library may not be initialized yet.
fn environment(into: &mut [u8; MAX_SETTINGS_BYTES]) -> Option<()> {
    let file = OwnedFile::open(c"/proc/self/environ").ok()?;
    let name = greeting::VARIABLE.as_bytes();
    let mut bytes = [0_u8; 512];
    // Number of matching characters of the name; `None` while another variable is skipped.
    let mut matched = Some(0);
    let mut length = None;
    loop {
        let count = file.read(&mut bytes).ok()?;
        if count == 0 {
            return length.map(drop);
        }
        for &byte in bytes.get(..count)? {
            match (length, matched) {
                (Some(_), _) if byte == 0 => return Some(()),
                (Some(at), _) => {
                    *into.get_mut(at).filter(|_| at + 1 < MAX_SETTINGS_BYTES)? = byte;
                    length = Some(at + 1);
                }
                (None, _) if byte == 0 => matched = Some(0),
                (None, Some(at)) if at == name.len() && byte == b'=' => length = Some(0),
                (None, Some(at)) if name.get(at) == Some(&byte) => matched = Some(at + 1),
                (None, _) => matched = None,
            }
        }
    }
}

/// Settings of a recording or of guarding.
struct RecorderSettings<'s> {
    /// Mean number of bytes between samples; 0 to record every call.
    every: u64,
    /// Minimum size in bytes of blocks that are logged; 0 for no log.
    least: u64,
    /// True to record mappings too.
    maps: bool,
    guard: guard::GuardConfig,
    /// Path of the collector's socket.
    socket: &'s [u8],
}

/// Parses the settings. The options for children and pools take effect at once.
fn parse(settings: &[u8; MAX_SETTINGS_BYTES]) -> Option<RecorderSettings<'_>> {
    let length = settings.iter().position(|&byte| byte == 0)?;
    let (mut every, mut least, mut maps) = (0, 0, false);
    let mut socket = None;
    let mut guard = guard::GuardConfig::default();
    let mut rest = settings.get(..length)?;
    while !rest.is_empty() {
        // The path of the socket is the last setting and may contain commas.
        let end = if rest.starts_with(b"socket=") {
            rest.len()
        } else {
            rest.iter().position(|&byte| byte == b',')?
        };
        let (word, behind) = rest.split_at(end);
        rest = behind.get(1..).unwrap_or(&[]);
        let split = word.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (word.get(..split)?, word.get(split + 1..)?);
        match name {
            b"every" => every = number(value)?,
            b"log" => least = number(value)?,
            b"follow" => FOLLOW.store(u8::from(number(value)? != 0), Ordering::Relaxed),
            b"maps" => maps = number(value)? != 0,
            b"pools" => pools::switch(number(value)? != 0),
            b"guard" => guard.rate = number(value)?,
            b"most" => guard.most = number(value)?,
            b"then" => guard.goes_on = value == b"continue",
            b"means" => guard.means = Some(guard::means(value)?),
            b"side" => guard.side = guard::side(value)?,
            b"socket" => socket = Some(value),
            _ => {}
        }
    }
    Some(RecorderSettings { every, least, maps, guard, socket: socket? })
}

/// Connects to the collector, and begins to record if the collector accepts.
fn record(settings: &[u8; MAX_SETTINGS_BYTES]) -> Option<()> {
    let settings = parse(settings)?;
    mappings::switch(settings.maps);
    if settings.guard.rate != 0 {
        return begin_to_guard(&settings.guard, settings.socket);
    }
    let connection = OwnedFile::connect(settings.socket).ok()?;
    let Some((tables, base)) = tables() else {
        // A file of length 0 informs the collector that memory is exhausted.
        let nothing = OwnedFile::unnamed(c"pagewise-heap", 0).ok()?;
        connection.send(&hello(), &nothing).ok()?;
        return None;
    };
    shared::install(base);
    let is_glibc = IS_GLIBC.load(Ordering::Relaxed) != 0;
    describe_process(settings.every, is_glibc);
    let prepared = prepare();
    if prepared.is_none() {
        set_head(header::TROUBLE, trouble::MEMORY);
    }
    let how = TO_HOOK.load(Ordering::Relaxed);
    let functions = next_alloc::found();
    request_hooks(how, &functions, settings.maps)?;
    let is_running = IS_RUNNING.swap(0, Ordering::Relaxed) != 0;
    attach::tell(is_running);
    head(header::MAGIC).store(MAGIC, Ordering::Release);
    let is_accepted = is_accepted(&connection, &tables)?;
    prepared?;
    if !is_accepted {
        return None;
    }
    if how != 0 {
        next_alloc::replace(inline::install_hooks(&functions)?);
    }
    let was_named = named::are_some();
    let is_named = prepare_named(how, is_glibc, &functions)?;
    let targets = switch_on(&settings, is_glibc && !is_named, is_named)?;
    set_stage(StartStage::Records);
    stubs::aim(targets);
    // In a child of `fork` the inline hooks exist already. In a program that was running before,
    // the collector writes them.
    if TO_HOOK.swap(0, Ordering::Relaxed) == STARTED {
        inline::patch()?;
    }
    if !is_running && !was_named {
        named::patch()?;
    }
    Some(())
}

/// Sends the tables to the collector. Returns true if the collector records this process, and
/// `None` if it does not answer or no longer waits for this process.
fn is_accepted(connection: &OwnedFile, tables: &OwnedFile) -> Option<bool> {
    connection.send(&hello(), tables).ok()?;
    let mut answer = [0_u8];
    if !matches!(connection.read(&mut answer), Ok(1)) {
        set_head(header::TROUBLE, trouble::LATE);
        return None;
    }
    Some(answer == [greeting::YES])
}

/// Prepares the recording of allocators with their own function names. Returns true if the process
/// has such allocators, and `None` if memory is exhausted.
fn prepare_named(how: u8, is_glibc: bool, functions: &[*mut (); FUNCTIONS]) -> Option<bool> {
    let was_named = named::are_some();
    named::prepare_trampolines()?;
    let is_named = named::are_some();
    if is_named {
        set_head(header::ALLOCATOR, allocator::SEVERAL);
        IS_GLIBC.store(0, Ordering::Relaxed);
        // In a child of `fork` the functions are wrapped already.
        if how == 0 && !is_glibc && !was_named {
            next_alloc::replace(inline::surround(functions));
        }
    }
    Some(is_named)
}

/// Empties all tables of the recorder.
pub(crate) fn reset_tables() {
    threads::reset();
    rows::reset();
    tree::reset();
    live::reset();
    log::reset();
    mappings::reset();
    pools::reset();
}

fn set_head(number: usize, value: u64) {
    head(number).store(value, Ordering::Relaxed);
}

/// Writes the properties of the process and of the recording into the header.
fn describe_process(every: u64, is_glibc: bool) {
    set_head(header::PID, u64::from(kernel::process()));
    set_head(header::BEGAN, kernel::clock(libc::CLOCK_REALTIME));
    set_head(header::BEGAN_MONOTONIC, kernel::clock(libc::CLOCK_MONOTONIC));
    set_head(header::EVERY_BYTES, every);
    set_head(header::LIFETIMES_EVERY, if every == 0 { u64::from(threads::TIMED_EVERY) } else { 0 });
    // Both epochs, that of snapshots (high half) and that of peaks (low half), begin with 1. A new
    // record contains 0 for both, which shows that it has no copies of its counts yet.
    set_head(header::EPOCHS, 1 << 32 | 1);
    let provider = match is_glibc {
        true => allocator::GLIBC,
        false if next_alloc::is_theirs() => allocator::PROGRAM,
        false => allocator::LIBRARY,
    };
    set_head(header::ALLOCATOR, provider);
    set_head(header::OWN_NEW, u64::from(!is_glibc && next_alloc::has_own_new()));
}

/// Writes the functions that the collector must hook into the tables.
fn request_hooks(how: u8, functions: &[*mut (); FUNCTIONS], maps: bool) -> Option<()> {
    match how {
        ATTACHED => {
            let others = aux_hooks::find_running();
            mappings::pass_over(
                [Other::Mmap, Other::PthreadCreate, Other::Dlclose].map(|it| others[it as usize]),
            );
            inline::ask(functions, Some(&others), maps)?;
        }
        STARTED => inline::ask(functions, None, false)?,
        _ => inline::tell(0),
    }
    named::ask();
    Some(())
}

/// Switches the recording on and returns the targets of the stubs, which the caller must set.
/// Returns `None` if memory is exhausted.
fn switch_on(
    settings: &RecorderSettings<'_>,
    is_usual: bool,
    is_named: bool,
) -> Option<[*mut (); FUNCTIONS]> {
    let every = settings.every;
    if live::begin(is_usual).is_none() {
        set_head(header::TROUBLE, trouble::MEMORY);
        return None;
    }
    sampling::begin(every);
    // With sampling, the log would lack most blocks, so it stays off.
    log::begin(if every == 0 { settings.least } else { 0 });
    let alive = ALIVE.load(Ordering::Relaxed);
    // SAFETY: the memory of the word is unmapped only when no thread is in the recorder.
    unsafe { &*alive }.store(1, Ordering::Relaxed);
    let mut targets = stubs::every(is_usual && every == 0 && !log::is_on());
    if every != 0 {
        let has = |function: EntryFunction| !next_alloc::targets()[function as usize].is_null();
        let mut aim = |function: EntryFunction, stub: unsafe extern "C" fn()| {
            if has(function) {
                targets[function as usize] = stub as *mut ();
            }
        };
        aim(EntryFunction::Malloc, stubs::sampled_malloc);
        aim(EntryFunction::Calloc, stubs::sampled_calloc);
        if !next_alloc::may_be_boot() {
            aim(EntryFunction::Free, stubs::sampled_free);
            aim(EntryFunction::Realloc, stubs::sampled_realloc);
        }
        set_own::<{ Own::Left as usize }>(0);
    }
    if is_named {
        targets = named::gated(targets, next_alloc::targets());
    }
    Some(targets)
}

/// Begins to guard if the collector accepts this process. The tables are in private memory.
fn begin_to_guard(wanted: &guard::GuardConfig, socket: &[u8]) -> Option<()> {
    // Guarding needs the exported functions, which a program with its own `malloc` does not call.
    if TO_HOOK.load(Ordering::Relaxed) != 0 {
        return None;
    }
    shared::install(kernel::private(LENGTH).ok()?);
    ALIVE.store(kernel::memory(size_of::<AtomicU64>()).ok()?.cast(), Ordering::Relaxed);
    threads::begin()?;
    tree::begin();
    let is_glibc = IS_GLIBC.load(Ordering::Relaxed) != 0;
    let targets = guard::begin(wanted, socket, is_glibc)?;
    let alive = ALIVE.load(Ordering::Relaxed);
    // SAFETY: the memory of the word is unmapped only when no thread is in the recorder.
    unsafe { &*alive }.store(1, Ordering::Relaxed);
    set_own::<{ Own::Left as usize }>(0);
    set_stage(StartStage::Records);
    stubs::aim(targets);
    Some(())
}

/// Creates the file of the tables and maps it. Returns the file and the address of the mapping.
fn tables() -> Option<(OwnedFile, *mut u8)> {
    // A process that exceeds its file size limit is killed.
    if kernel::longest_file() < LENGTH as u64 {
        return None;
    }
    let tables = OwnedFile::unnamed(c"pagewise-heap", LENGTH).ok()?;
    let base = kernel::map(&tables, LENGTH).ok()?;
    Some((tables, base))
}

/// Returns the first message that a recorder sends.
fn hello() -> [u8; 16] {
    let mut hello = [0_u8; 16];
    let (magic, numbers) = hello.split_at_mut(8);
    magic.copy_from_slice(&greeting::HELLO);
    for (to, from) in numbers.chunks_exact_mut(4).zip([kernel::process(), kernel::parent()]) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    hello
}

fn prepare() -> Option<()> {
    ALIVE.store(kernel::memory(size_of::<AtomicU64>()).ok()?.cast(), Ordering::Relaxed);
    threads::begin()?;
    tree::begin();
    let malloc = next_alloc::MALLOC.load(Ordering::Relaxed).addr() as u64;
    let name = modules::find(malloc).and_then(|object| modules::path(&object));
    let name = name.unwrap_or(b"");
    let at = shared::string(name)?;
    head(header::ALLOCATOR_NAME).store(at | (name.len() as u64) << 32, Ordering::Relaxed);
    Some(())
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Usable size of a block in bytes; 0 if the allocator is not glibc's.
#[inline(always)]
pub(crate) fn room(address: u64) -> u64 {
    if IS_GLIBC.load(Ordering::Relaxed) != 0 { next_alloc::glibc_room(address) } else { 0 }
}

/// Length in bytes of the mapping of a block, if glibc created a mapping for this block only.
pub(crate) fn mapped(address: u64) -> Option<u64> {
    if IS_GLIBC.load(Ordering::Relaxed) != 0 { next_alloc::glibc_mapped(address) } else { None }
}

/// Performs `realloc` of a block that the boot allocator has returned.
pub(crate) fn from_boot(old: *mut c_void, size: usize) -> *mut c_void {
    let new = next_alloc::malloc(size);
    if !new.is_null() {
        let length = next_alloc::boot_size(old).min(size);
        // SAFETY: both blocks have at least `length` bytes, and no other thread knows the new
        // block.
        unsafe { std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), length) };
    }
    new
}
