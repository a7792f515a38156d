//! Signals of accesses to guarded memory, and the program's own handlers of these signals.
//!
//! Our handler is called first. The action that the program sets (`sigaction`, `signal`) is stored
//! here. Its handler is called for faults outside of guarded memory, with the flags and the mask
//! that the program requested. The signals are never blocked, because the kernel kills a process
//! that faults while the signal is blocked.

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

/// The `struct sigaction`, as words, that the program has set for each of [`SIGNALS`].
static WANTED: [[AtomicU64; WORDS]; 2] = [const { [const { AtomicU64::new(0) }; WORDS] }; 2];
static LOCK: Lock = Lock::new();

/// Functions of the C library.
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
    // SAFETY: the words are those of a `sigaction`, or zeros, which are a valid `sigaction` with
    // the default action.
    unsafe { std::mem::transmute::<[u64; WORDS], libc::sigaction>(words) }
}

fn want(index: usize, action: &libc::sigaction) {
    let words = std::ptr::from_ref(action).cast::<u64>();
    for (number, to) in WANTED[index].iter().enumerate() {
        // SAFETY: the struct has at least `number + 1` words.
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
    // SAFETY: the caller passes pointers to actions, or NULL, as `sigaction` requires.
    unsafe { function(signal, action, old) }
}

/// Installs our handler. If the program has set a handler, ours gets its flags without
/// `SA_RESETHAND`. The mask is that of the program without [`SIGNALS`].
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
    // SAFETY: `ours` is a valid action, and `handler` has the type of a signal handler.
    unsafe { really(SIGNALS[index], &raw const ours, std::ptr::null_mut()) }
}

/// Removes [`SIGNALS`] from a signal set.
fn unblock(mask: &mut libc::sigset_t) {
    for signal in SIGNALS {
        // SAFETY: `mask` is a valid signal set, and the signal numbers are valid.
        unsafe { libc::sigdelset(mask, signal) };
    }
}

/// Looks up the functions of the C library in advance: their first call may be in a signal handler,
/// where no lookup is possible.
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

/// Installs our handlers, and stores the program's actions.
pub(crate) fn begin() -> Option<()> {
    OWN_STACK.store(kernel::memory(STACK).ok()?.addr(), Relaxed);
    for (index, signal) in SIGNALS.into_iter().enumerate() {
        let mut old = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a null action only reads the current action, which is written to `old`.
        if unsafe { really(signal, std::ptr::null(), old.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: all-zero bytes are a valid `sigaction`, and the call has written to `old`.
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

/// Sets the default action of a signal, even if the program has set another one.
pub(crate) fn default(signal: c_int) {
    // SAFETY: all-zero bytes are a valid `sigaction` with the default action.
    let action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the action is a local variable, which outlives the call.
    unsafe { really(signal, &raw const action, std::ptr::null_mut()) };
}

/// Number of bytes of our own stack for reports: the program's stack may be as small as the kernel
/// permits.
const STACK: usize = 128 << 10;
/// Lowest address of the stack for reports, which is used under the lock [`REPORTING`]. The stack
/// is a mapping of its own, because static memory of the library would stay mapped after the end of
/// a recording.
static OWN_STACK: AtomicUsize = AtomicUsize::new(0);
static REPORTING: Lock = Lock::new();
/// ID of the thread that runs on the stack for reports; 0 for none.
static REPORTER: AtomicUsize = AtomicUsize::new(0);

struct Fault {
    address: usize,
    at: CallPoint,
    access: ObjectAccess,
    /// The signal that ends the program; 0 if the address is in guarded memory.
    ends_by: c_int,
    /// True if the program can continue after the access.
    goes_on: bool,
}

unsafe extern "C" fn report(fault: *mut Fault) {
    // SAFETY: the handler below passes a pointer to its local variable, which outlives the call.
    let fault = unsafe { &mut *fault };
    match fault.ends_by {
        0 => fault.goes_on = tell::access(fault.address, fault.at, fault.access),
        signal => tell::fault(signal, fault.address, fault.at, fault.access),
    }
}

/// Returns the kind of access of a page fault, and the registers at the faulting instruction.
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
    // SAFETY: the kernel passes a valid pointer.
    let said = unsafe { &*info };
    let code = said.si_code;
    // SAFETY: every `siginfo_t` has the bytes of this field. The field is used only if the kernel
    // sent the signal for a fault.
    let address = unsafe { said.si_addr() }.addr();
    let is_guarded = pool::contains(address);
    // For other memory, the program's own handler is called if there is one: it may expect the
    // signal.
    let ends = || {
        index(signal)
            .is_some_and(|it| matches!(wanted(it).sa_sigaction, libc::SIG_DFL | libc::SIG_IGN))
    };
    if code > 0 && (is_guarded || ends()) {
        if is_guarded && signal == libc::SIGBUS && pool::comes_again(address) {
            return;
        }
        // SAFETY: the kernel passes a valid pointer to the context.
        let (access, at) = access_of(unsafe { &*context.cast::<libc::ucontext_t>() });
        let ends_by = if is_guarded { 0 } else { signal };
        let mut fault = Fault { address, at, access, ends_by, goes_on: false };
        let me = kernel::thread() as usize;
        if REPORTER.load(Relaxed) != me {
            let _held = REPORTING.hold();
            REPORTER.store(me, Relaxed);
            let top = OWN_STACK.load(Relaxed) + STACK;
            // SAFETY: no other thread uses the stack while the lock is held, and the called
            // function returns.
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
            // After a fault, the same instruction faults again, and the signal then ends the
            // program. A signal that was sent is not repeated, so it is raised again here.
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
            // SAFETY: the program has set this handler. A handler with fewer parameters ignores the
            // other arguments.
            let function = unsafe { std::mem::transmute::<*const c_void, Handler>(function) };
            // SAFETY: the arguments are those that the kernel passed to this handler.
            unsafe { function(signal, info, context) };
        }
    }
}

/// Sets or reads the action of a signal.
///
/// # Safety
/// The requirements of the C library's function.
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
        // SAFETY: the pointer is not null, so it points to an action, as `sigaction` requires.
        let mut open = unsafe { action.read() };
        unblock(&mut open.sa_mask);
        // SAFETY: `open` is a valid action, and the program passed an address for the old action,
        // or NULL.
        return unsafe { really(signal, &raw const open, old) };
    };
    let _held = LOCK.hold();
    let before = wanted(index);
    let mut result = 0;
    if !action.is_null() {
        // SAFETY: the pointer is not null, so it points to an action, as `sigaction` requires.
        let action = unsafe { action.read() };
        want(index, &action);
        result = set(index);
    }
    if !old.is_null() {
        // SAFETY: the pointer is not null, so the old action may be written to it.
        unsafe { old.write(before) };
    }
    result
}

/// Sets the action of a signal.
///
/// # Safety
/// The requirements of the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn signal(
    signal: c_int,
    to: libc::sighandler_t,
) -> libc::sighandler_t {
    if is_on() && index(signal).is_some() {
        // SAFETY: all-zero bytes are a valid `sigaction` with the default action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: all-zero bytes are a valid `sigaction`.
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
    // SAFETY: the callers pass a symbol of this type, or null, which was excluded.
    let function = unsafe { std::mem::transmute::<*mut c_void, SetMask>(function) };
    if !is_on() || mask.is_null() || how == libc::SIG_UNBLOCK {
        // SAFETY: the program passed these arguments.
        return unsafe { function(how, mask, old) };
    }
    // SAFETY: the pointer is not null, so it points to a signal set, as the function requires.
    let mut open = unsafe { mask.read() };
    unblock(&mut open);
    // SAFETY: `open` is a valid signal set, and the program passed an address for the old set, or
    // NULL.
    unsafe { function(how, &raw const open, old) }
}

/// Changes the blocked signals.
///
/// # Safety
/// The requirements of the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigprocmask(
    how: c_int,
    mask: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the program passed these arguments, and the symbol has the type that `set_mask`
    // calls.
    unsafe { set_mask(behind(&SIGPROCMASK, c"sigprocmask"), how, mask, old) }
}

/// Changes the blocked signals of a thread.
///
/// # Safety
/// The requirements of the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    mask: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the program passed these arguments, and the symbol has the type that `set_mask`
    // calls.
    unsafe { set_mask(behind(&PTHREAD_SIGMASK, c"pthread_sigmask"), how, mask, old) }
}
