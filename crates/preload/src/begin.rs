//! The first call: the functions behind are found, the environment says what to do, and a collector is greeted.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use pagewise_heaplog::tables::{LENGTH, MAGIC, allocator, attached, greeting, header, trouble};

use crate::enter::{self, Function, Own, set_own};
use crate::guard;
use crate::inline;
use crate::kernel::{self, File};
use crate::modules;
use crate::named;
use crate::others::{self, Other};
use crate::real::{self, Whose};
use crate::shared::{self, head};
use crate::{attach, live, log, mappings, pools, rows, sampling, thread_cache, threads, tree};

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Nobody has called yet.
    Cold = 0,
    /// The first call is being served.
    Begins = 1,
    /// Calls are recorded.
    Records = 2,
    /// They are not, and will not be.
    Off = 3,
}

static STAGE: AtomicU8 = AtomicU8::new(Stage::Cold as u8);
/// A word that is 0 in a child of `fork`.
static ALIVE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// Whether children record themselves.
static FOLLOW: AtomicU8 = AtomicU8::new(0);
/// Whether the allocator is the C library's.
static IS_GLIBC: AtomicU8 = AtomicU8::new(0);
/// Whether functions are to be hooked before any is recorded: the program does not call ours.
static TO_HOOK: AtomicU8 = AtomicU8::new(0);
/// Whether functions were hooked by who looks on, who takes that back in no child that is not recorded.
static WAS_ATTACHED: AtomicU8 = AtomicU8::new(0);
/// By us: nobody else runs yet.
const STARTED: u8 = 1;
/// By who looks on.
const ATTACHED: u8 = 2;
/// Whether the program runs already, with any number of threads.
static IS_RUNNING: AtomicU8 = AtomicU8::new(0);
/// What the environment said, for children.
static SETTINGS: Settings = Settings(std::cell::UnsafeCell::new([0; MOST]));
const MOST: usize = 256;

struct Settings(std::cell::UnsafeCell<[u8; MOST]>);
// SAFETY: it is written once, before anybody else runs, and only read afterwards.
unsafe impl Sync for Settings {}

pub(crate) fn stage() -> Stage {
    match STAGE.load(Ordering::Acquire) {
        0 => Stage::Cold,
        1 => Stage::Begins,
        2 => Stage::Records,
        _ => Stage::Off,
    }
}

fn set_stage(stage: Stage) {
    STAGE.store(stage as u8, Ordering::Release);
}

/// Whether calls are recorded in this process: in a child of `fork` that is decided now.
#[cold]
pub(crate) fn is_recording() -> bool {
    if stage() != Stage::Records {
        return false;
    }
    let alive = ALIVE.load(Ordering::Relaxed);
    // SAFETY: the word is in memory that is never unmapped.
    if unsafe { &*alive }.load(Ordering::Relaxed) == 1 {
        return true;
    }
    if guard::is_on() {
        // All that is guarded is as it was in the parent, and so are the tables.
        threads::reset();
        rows::reset();
        tree::reset();
        guard::forked();
        // SAFETY: the word is in memory that is never unmapped.
        unsafe { &*alive }.store(1, Ordering::Relaxed);
        return true;
    }
    if FOLLOW.load(Ordering::Relaxed) == 0 {
        leave_child();
        return false;
    }
    // Who forked is alone here, and all of our own memory is zeros.
    set_stage(Stage::Begins);
    threads::reset();
    rows::reset();
    tree::reset();
    live::reset();
    log::reset();
    mappings::reset();
    pools::reset();
    // SAFETY: nobody writes it any more.
    let settings = unsafe { &*SETTINGS.0.get() };
    if record(settings).is_none() {
        leave_child();
        return false;
    }
    true
}

/// Whether functions were hooked by who looks on.
pub(crate) fn was_attached() -> bool {
    WAS_ATTACHED.load(Ordering::Relaxed) != 0
}

/// Records nothing in a child of `fork`, which is alone in it yet.
fn leave_child() {
    turn_off();
    if was_attached() {
        // Where that is refused the jumps lead back.
        let _ = inline::unpatch();
        let _ = named::unpatch();
    }
}

/// Records nothing more, for a reason that is told.
pub(crate) fn give_up(why: u64) {
    if is_recording() {
        head(header::TROUBLE).store(why, Ordering::Relaxed);
        turn_off();
    }
}

/// The word by which children of `fork` are noticed is about to be unmapped: nothing is recorded any more.
pub(crate) fn forget_alive() {
    ALIVE.store(std::ptr::null_mut(), Ordering::Relaxed);
}

pub(crate) fn turn_off() {
    enter::aim(real::targets());
    set_stage(Stage::Off);
}

/// Runs when the library is loaded: a program that allocates nothing is greeted, too.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: unsafe extern "C" fn() = begin;

/// Serves the first call.
pub(crate) unsafe extern "C" fn begin() {
    let first = STAGE.compare_exchange(
        Stage::Cold as u8,
        Stage::Begins as u8,
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
    if first.is_err() {
        return;
    }
    // Looking for functions may itself allocate.
    enter::aim(real::boot_targets());
    let whose = real::resolve();
    guard::find();
    let is_glibc = whose == Whose::Glibc && real::has_headers();
    IS_GLIBC.store(u8::from(is_glibc), Ordering::Relaxed);
    TO_HOOK.store(if whose == Whose::Theirs { STARTED } else { 0 }, Ordering::Relaxed);
    // SAFETY: nobody else runs here, by the exchange above.
    let settings = unsafe { &mut *SETTINGS.0.get() };
    if environment(settings).is_none() || record(settings).is_none() {
        turn_off();
    }
}

/// Begins in a program that runs already.
pub(crate) fn attach(words: &[u8]) -> u64 {
    // SAFETY: nobody else reads it or writes it: calls are not recorded yet.
    let settings = unsafe { &mut *SETTINGS.0.get() };
    let Some(room) = settings.get_mut(..words.len()).filter(|room| room.len() < MOST) else {
        return attached::FAILED;
    };
    room.copy_from_slice(words);
    settings[words.len()..].fill(0);
    set_stage(Stage::Begins);
    IS_RUNNING.store(1, Ordering::Relaxed);
    // A program that was begun with this library calls it already, and was let alone.
    if !real::calls_us() {
        let is_glibc = real::find_running() && real::has_headers();
        if is_glibc {
            thread_cache::learn();
        }
        IS_GLIBC.store(u8::from(is_glibc), Ordering::Relaxed);
        TO_HOOK.store(ATTACHED, Ordering::Relaxed);
        WAS_ATTACHED.store(1, Ordering::Relaxed);
    }
    if record(settings).is_none() {
        turn_off();
        return attached::FAILED;
    }
    attached::YES
}

/// What the variable says, as the process was started with it: the C library may not be ready to be asked.
fn environment(into: &mut [u8; MOST]) -> Option<()> {
    let file = File::open(c"/proc/self/environ").ok()?;
    let name = greeting::VARIABLE.as_bytes();
    let mut bytes = [0_u8; 512];
    // How much of the name has matched; none where another variable is passed over.
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
                    *into.get_mut(at).filter(|_| at + 1 < MOST)? = byte;
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

/// Greets the collector, and begins to record if it says so.
fn record(settings: &[u8; MOST]) -> Option<()> {
    let length = settings.iter().position(|&byte| byte == 0)?;
    let (mut every, mut least) = (0, 0);
    let mut maps = false;
    let mut socket = None;
    let mut guard = guard::Wanted::default();
    let mut rest = settings.get(..length)?;
    while !rest.is_empty() {
        // The socket's path comes last, and may have commas.
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
    mappings::switch(maps);
    if guard.rate != 0 {
        return begin_to_guard(&guard, socket?);
    }
    let connection = File::connect(socket?).ok()?;
    let Some((tables, base)) = tables() else {
        // A file of no length says why.
        let nothing = File::unnamed(c"pagewise-heap", 0).ok()?;
        connection.send(&hello(), &nothing).ok()?;
        return None;
    };
    shared::install(base);
    let set = |number, value| head(number).store(value, Ordering::Relaxed);
    set(header::PID, u64::from(kernel::process()));
    set(header::BEGAN, kernel::clock(libc::CLOCK_REALTIME));
    set(header::BEGAN_MONOTONIC, kernel::clock(libc::CLOCK_MONOTONIC));
    set(header::EVERY_BYTES, every);
    set(header::LIFETIMES_EVERY, if every == 0 { u64::from(threads::TIMED_EVERY) } else { 0 });
    // No record is of the epochs that are now.
    set(header::EPOCHS, 1 << 32 | 1);
    let is_glibc = IS_GLIBC.load(Ordering::Relaxed) != 0;
    let whose = match is_glibc {
        true => allocator::GLIBC,
        false if real::is_theirs() => allocator::PROGRAM,
        false => allocator::LIBRARY,
    };
    set(header::ALLOCATOR, whose);
    set(header::OWN_NEW, u64::from(!is_glibc && real::has_own_new()));
    let prepared = prepare();
    if prepared.is_none() {
        set(header::TROUBLE, trouble::MEMORY);
    }
    let how = TO_HOOK.load(Ordering::Relaxed);
    let functions = real::found();
    match how {
        ATTACHED => {
            let others = others::find_running();
            mappings::pass_over(
                [Other::Mmap, Other::PthreadCreate, Other::Dlclose].map(|it| others[it as usize]),
            );
            inline::ask(&functions, Some(&others), maps)?;
        }
        STARTED => inline::ask(&functions, None, false)?,
        _ => inline::tell(0),
    }
    named::ask();
    let is_running = IS_RUNNING.swap(0, Ordering::Relaxed) != 0;
    attach::tell(is_running);
    head(header::MAGIC).store(MAGIC, Ordering::Release);
    connection.send(&hello(), &tables).ok()?;
    let mut answer = [0_u8];
    connection.read(&mut answer).ok()?;
    prepared?;
    if answer != [greeting::YES] {
        return None;
    }
    if how != 0 {
        real::replace(inline::take(&functions)?);
    }
    let was_named = named::are_some();
    named::take()?;
    let is_named = named::are_some();
    let is_usual = is_glibc && !is_named;
    if is_named {
        set(header::ALLOCATOR, allocator::SEVERAL);
        IS_GLIBC.store(0, Ordering::Relaxed);
        // In a child of `fork` they are.
        if how == 0 && !is_glibc && !was_named {
            real::replace(inline::surround(&functions));
        }
    }
    if live::begin(is_usual).is_none() {
        set(header::TROUBLE, trouble::MEMORY);
        return None;
    }
    sampling::begin(every);
    // Of samples nobody could tell where blocks are.
    log::begin(if every == 0 { least } else { 0 });
    let alive = ALIVE.load(Ordering::Relaxed);
    // SAFETY: the word is in memory that is never unmapped.
    unsafe { &*alive }.store(1, Ordering::Relaxed);
    let mut targets = enter::every(is_usual && every == 0 && !log::is_on());
    if every != 0 {
        let has = |function: Function| !real::targets()[function as usize].is_null();
        let mut aim = |function: Function, stub: unsafe extern "C" fn()| {
            if has(function) {
                targets[function as usize] = stub as *mut ();
            }
        };
        aim(Function::Malloc, enter::sampled_malloc);
        aim(Function::Calloc, enter::sampled_calloc);
        if !real::may_be_boot() {
            aim(Function::Free, enter::sampled_free);
            aim(Function::Realloc, enter::sampled_realloc);
        }
        set_own::<{ Own::Left as usize }>(0);
    }
    if is_named {
        targets = named::gated(targets, real::targets());
    }
    set_stage(Stage::Records);
    enter::aim(targets);
    // In children of `fork` the jumps are there, and where the program ran already, who looks on puts them there.
    if TO_HOOK.swap(0, Ordering::Relaxed) == STARTED {
        inline::patch()?;
    }
    if !is_running && !was_named {
        named::patch()?;
    }
    Some(())
}

/// Begins to guard, if who listens says so. The tables are this process's own.
fn begin_to_guard(wanted: &guard::Wanted, socket: &[u8]) -> Option<()> {
    // A malloc of the program's own is not called by way of us.
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
    // SAFETY: the word is in memory that is never unmapped.
    unsafe { &*alive }.store(1, Ordering::Relaxed);
    set_own::<{ Own::Left as usize }>(0);
    set_stage(Stage::Records);
    enter::aim(targets);
    Some(())
}

/// The tables' file, and where it is mapped.
fn tables() -> Option<(File, *mut u8)> {
    // Who makes a file longer than it may is killed.
    if kernel::longest_file() < LENGTH as u64 {
        return None;
    }
    let tables = File::unnamed(c"pagewise-heap", LENGTH).ok()?;
    let base = kernel::map(&tables, LENGTH).ok()?;
    Some((tables, base))
}

/// What a recorder says first.
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
    let malloc = real::MALLOC.load(Ordering::Relaxed).addr() as u64;
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

/// What the allocator gave for a block.
#[inline(always)]
pub(crate) fn room(address: u64) -> u64 {
    if IS_GLIBC.load(Ordering::Relaxed) != 0 { real::glibc_room(address) } else { 0 }
}

/// How long a block's mapping is, if it has one of its own.
pub(crate) fn mapped(address: u64) -> Option<u64> {
    if IS_GLIBC.load(Ordering::Relaxed) != 0 { real::glibc_mapped(address) } else { None }
}

/// `realloc` of a block that was handed out before anything was known.
pub(crate) fn from_boot(old: *mut c_void, size: usize) -> *mut c_void {
    let new = real::malloc(size);
    if !new.is_null() {
        let length = real::boot_size(old).min(size);
        // SAFETY: both blocks have as many bytes, and the new one is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), length) };
    }
    new
}
