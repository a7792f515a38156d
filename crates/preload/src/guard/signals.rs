//! The signals of an access to guarded memory, and the program's own handlers of these.
//!
//! Our handler is called first. The action that the program sets (`sigaction`, `signal`) is stored
//! here, and its handler is called for faults outside of guarded memory, with the flags and the
//! mask that the program requested. The signals are never blocked, since the kernel kills a program
//! that faults while they are blocked.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::tell::{self, ObjectAccess};
use super::{is_on, pool};
use crate::kernel;
use crate::lock::Lock;
use crate::stacks::CallPoint;

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
const WORDS: usize = size_of::<libc::sigaction>() / 8;

/// Signal action that the program set for each of [`SIGNALS`]: a `struct sigaction` in words.
static WANTED: [[AtomicU64; WORDS]; 2] = [const { [const { AtomicU64::new(0) }; WORDS] }; 2];
static LOCK: Lock = Lock::new();

/// The C library's functions.
static SIGACTION: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static SIGNAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static SIGPROCMASK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static PTHREAD_SIGMASK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

type SigAction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
type SetMask = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

fn behind(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    crate::aux_hooks::behind(cache, name)
}

fn index(signal: c_int) -> Option<usize> {
    SIGNALS.iter().position(|&ours| ours == signal)
}

fn wanted(index: usize) -> libc::sigaction {
    let mut words = [0_u64; WORDS];
    for (to, from) in words.iter_mut().zip(&WANTED[index]) {
        *to = from.load(Relaxed);
    }
    // SAFETY: they were those of such a struct, or zeros, which is one with the default action.
    unsafe { std::mem::transmute::<[u64; WORDS], libc::sigaction>(words) }
}

fn want(index: usize, action: &libc::sigaction) {
    let words = std::ptr::from_ref(action).cast::<u64>();
    for (number, to) in WANTED[index].iter().enumerate() {
        // SAFETY: the struct has that many words.
        to.store(unsafe { words.wrapping_add(number).read() }, Relaxed);
    }
}

unsafe fn really(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let function = behind(&SIGACTION, c"sigaction");
    if function.is_null() {
        return -1;
    }
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, SigAction>(function) };
    // SAFETY: the program's pointers are to actions or NULL, as its own call requires.
    unsafe { function(signal, action, old) }
}

/// Installs our handler with the flags and the mask that the program requested for its own.
fn set(index: usize) -> c_int {
    let mut ours = wanted(index);
    let is_function = !matches!(ours.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    ours.sa_flags = if is_function {
        ours.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO
    } else {
        libc::SA_SIGINFO | libc::SA_ONSTACK
    };
    ours.sa_sigaction = handler as *const () as usize;
    unblock(&mut ours.sa_mask);
    // SAFETY: the handler is one.
    unsafe { really(SIGNALS[index], &raw const ours, std::ptr::null_mut()) }
}

/// Removes the signals from a set.
fn unblock(mask: &mut libc::sigset_t) {
    for signal in SIGNALS {
        // SAFETY: the set is one, and the signals exist.
        unsafe { libc::sigdelset(mask, signal) };
    }
}

/// Looks up the C library's functions in advance: they may be called first in a signal handler,
/// where a look-up is not possible.
pub(crate) fn find() {
    for (cache, name) in [
        (&SIGACTION, c"sigaction"),
        (&SIGNAL, c"signal"),
        (&SIGPROCMASK, c"sigprocmask"),
        (&PTHREAD_SIGMASK, c"pthread_sigmask"),
    ] {
        behind(cache, name);
    }
}

/// Installs our handlers in front of the program's.
pub(crate) fn begin() -> Option<()> {
    OWN_STACK.store(kernel::memory(STACK).ok()?.addr(), Relaxed);
    for (index, signal) in SIGNALS.into_iter().enumerate() {
        let mut old = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: it writes what is there.
        if unsafe { really(signal, std::ptr::null(), old.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: all zeros is a value, and the call wrote over it.
        want(index, unsafe { old.assume_init_ref() });
        if set(index) != 0 {
            return None;
        }
    }
    Some(())
}

/// Resets the lock in a child of `fork`.
pub(crate) fn forked() {
    LOCK.reset();
}

/// Sets the default action of a signal, whatever the program requested.
pub(crate) fn default(signal: c_int) {
    // SAFETY: all zeros is the default action.
    let action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the action lies here.
    unsafe { really(signal, &raw const action, std::ptr::null_mut()) };
}

/// Bytes of our own stack for handlers: the program's may be as small as the kernel allows.
const STACK: usize = 128 << 10;
/// Lowest address of that stack, which is used under [`REPORTING`]. It is a mapping of its own,
/// since static memory of a library stays mapped after the end of a recording.
static OWN_STACK: AtomicUsize = AtomicUsize::new(0);
static REPORTING: Lock = Lock::new();
/// The thread that is on that stack.
static REPORTER: AtomicUsize = AtomicUsize::new(0);

struct Fault {
    address: usize,
    at: CallPoint,
    access: ObjectAccess,
    /// The signal that ends the program; 0 if the address is of guarded memory.
    ends_by: c_int,
    /// True if the program can continue after the access.
    goes_on: bool,
}

unsafe extern "C" fn report(fault: *mut Fault) {
    // SAFETY: the handler below passes its own, which outlives the call.
    let fault = unsafe { &mut *fault };
    match fault.ends_by {
        0 => fault.goes_on = tell::access(fault.address, fault.at, fault.access),
        signal => tell::fault(signal, fault.address, fault.at, fault.access),
    }
}

/// The kind of access of a page fault, and the registers of the instruction.
fn access_of(context: &libc::ucontext_t) -> (ObjectAccess, CallPoint) {
    let register = |number: c_int| {
        usize::try_from(number)
            .ok()
            .and_then(|number| context.uc_mcontext.gregs.get(number))
            .map_or(0, |value| value.cast_unsigned())
    };
    // Error code of a page fault on x86: bit 1 is a write, bit 4 an instruction fetch.
    let error = register(libc::REG_ERR);
    let access = match (error & 2 != 0, error & 16 != 0) {
        (true, _) => ObjectAccess::Write,
        (false, true) => ObjectAccess::Execute,
        (false, false) => ObjectAccess::Read,
    };
    let at = CallPoint {
        code: register(libc::REG_RIP),
        stack: register(libc::REG_RSP),
        frame: register(libc::REG_RBP),
    };
    (access, at)
}

unsafe extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both.
    let said = unsafe { &*info };
    let code = said.si_code;
    // SAFETY: there is one, which means something where the kernel sent the signal for a fault.
    let address = unsafe { said.si_addr() }.addr();
    let is_guarded = pool::contains(address);
    // For other memory the program's own handler is called, which may expect the signal.
    let ends = || {
        index(signal)
            .is_some_and(|it| matches!(wanted(it).sa_sigaction, libc::SIG_DFL | libc::SIG_IGN))
    };
    if code > 0 && (is_guarded || ends()) {
        if is_guarded && signal == libc::SIGBUS && pool::comes_again(address) {
            return;
        }
        // SAFETY: the kernel passes the context.
        let (access, at) = access_of(unsafe { &*context.cast::<libc::ucontext_t>() });
        let ends_by = if is_guarded { 0 } else { signal };
        let mut fault = Fault { address, at, access, ends_by, goes_on: false };
        let me = kernel::thread() as usize;
        if REPORTER.load(Relaxed) != me {
            let _held = REPORTING.hold();
            REPORTER.store(me, Relaxed);
            let top = OWN_STACK.load(Relaxed) + STACK;
            // SAFETY: no other thread uses the stack while the lock is held; the function returns.
            unsafe {
                std::arch::asm!("mov r12, rsp", "mov rsp, {top}", "call {report}", "mov rsp, r12",
                    top = in(reg) top, report = sym report, in("rdi") &raw mut fault, out("r12") _,
                    clobber_abi("C"));
            }
            REPORTER.store(0, Relaxed);
        }
        if fault.goes_on {
            return;
        }
    }
    // SAFETY: the arguments are those that the kernel passed to this handler.
    unsafe { pass_on(signal, code, info, context) };
}

/// Performs the program's action for a signal.
unsafe fn pass_on(signal: c_int, code: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(index) = index(signal) else { return };
    let action = wanted(index);
    match action.sa_sigaction {
        // A fault cannot be ignored.
        libc::SIG_IGN if code <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // A fault comes again at the same instruction, and then ends the program; a signal that
            // was sent does not.
            default(signal);
            if code <= 0 {
                kernel::raise(signal);
            }
        }
        function => {
            if action.sa_flags & libc::SA_RESETHAND != 0 {
                WANTED[index][0].store(libc::SIG_DFL as u64, Relaxed);
            }
            type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            let function: *const c_void = std::ptr::with_exposed_provenance(function);
            // SAFETY: the program has set it; one of fewer arguments takes no notice of the others.
            let function = unsafe { std::mem::transmute::<*const c_void, Handler>(function) };
            // SAFETY: the arguments are those that the kernel passed to this handler.
            unsafe { function(signal, info, context) };
        }
    }
}

/// Sets or reads the action of a signal.
///
/// # Safety
/// That of the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !is_on() {
        // SAFETY: the program passed these arguments.
        return unsafe { really(signal, action, old) };
    }
    let Some(index) = index(signal) else {
        if action.is_null() {
            // SAFETY: the program passed these arguments.
            return unsafe { really(signal, action, old) };
        }
        // SAFETY: it is not null, and so is one.
        let mut open = unsafe { action.read() };
        unblock(&mut open.sa_mask);
        // SAFETY: `open` is an action, and the program passed an address for the old one, or NULL.
        return unsafe { really(signal, &raw const open, old) };
    };
    let _held = LOCK.hold();
    let before = wanted(index);
    let mut result = 0;
    if !action.is_null() {
        // SAFETY: it is not null, and so is one.
        let action = unsafe { action.read() };
        want(index, &action);
        result = set(index);
    }
    if !old.is_null() {
        // SAFETY: the program passed an address for an action, which is not NULL.
        unsafe { old.write(before) };
    }
    result
}

/// Sets the action of a signal.
///
/// # Safety
/// That of the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn signal(
    signal: c_int,
    to: libc::sighandler_t,
) -> libc::sighandler_t {
    if is_on() && index(signal).is_some() {
        // SAFETY: all zeros is the default action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: zeros are a valid `sigaction`.
        let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = to;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: both actions are variables of this function.
        let result = unsafe { sigaction(signal, &raw const action, &raw mut old) };
        return if result == 0 { old.sa_sigaction } else { libc::SIG_ERR };
    }
    let function = behind(&SIGNAL, c"signal");
    if function.is_null() {
        return libc::SIG_ERR;
    }
    // SAFETY: the symbol of this name has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, Signal>(function) };
    // SAFETY: the program passed these arguments.
    unsafe { function(signal, to) }
}

unsafe fn set_mask(
    function: *mut c_void,
    how: c_int,
    mask: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    if function.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the symbols for which this is called have this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, SetMask>(function) };
    if !is_on() || mask.is_null() || how == libc::SIG_UNBLOCK {
        // SAFETY: the program passed these arguments.
        return unsafe { function(how, mask, old) };
    }
    // SAFETY: it is not null, and so is one.
    let mut open = unsafe { mask.read() };
    unblock(&mut open);
    // SAFETY: `open` is a set of signals, and the program passed an address for the old one, or
    // NULL.
    unsafe { function(how, &raw const open, old) }
}

/// Changes the blocked signals.
///
/// # Safety
/// That of the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigprocmask(
    how: c_int,
    mask: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the program passed these arguments, and the symbol is of the type that `set_mask`
    // calls.
    unsafe { set_mask(behind(&SIGPROCMASK, c"sigprocmask"), how, mask, old) }
}

/// Changes the blocked signals of a thread.
///
/// # Safety
/// That of the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    mask: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the program passed these arguments, and the symbol is of the type that `set_mask`
    // calls.
    unsafe { set_mask(behind(&PTHREAD_SIGMASK, c"pthread_sigmask"), how, mask, old) }
}
