//! The stack of each thread: for memory that a function needs until it returns, and for memory that
//! it returns to its caller.
//!
//! By convention a function that allocates in its caller's frame is called `t_..` and takes the
//! scope:
//!
//! ```
//! use pagewise_alloc::{TScope, t_scope};
//!
//! fn t_greeting<'s>(scope: &TScope<'s>, whom: &str) -> &'s str {
//!     scope.alloc_fmt(format_args!("Hello {whom}"))
//! }
//!
//! let length = t_scope(|scope| t_greeting(scope, "world").len());
//! assert_eq!(length, 11);
//! ```
//!
//! C functions of the thread use the same stack, by `t_scope;` and `pw_t_new` of
//! `pagewise/stack.h`: frames of both may be nested. Popping another frame than the innermost is
//! detected at once, and panics.

extern crate std;

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::thread_local;

use super::{LinkedPolicy, Scope, Stack};
use crate::source::SystemOrBuffer;

/// A stack of a thread, or of C.
pub type LinkedStack = Stack<SystemOrBuffer, LinkedPolicy>;

/// A frame of the thread's stack.
///
/// Only the innermost frame may be used: if an inner function has pushed another one, a use of this
/// one panics, since its allocation would be popped too early.
///
/// ```should_panic
/// # use pagewise_alloc::t_scope;
/// t_scope(|outer| t_scope(|_| _ = outer.alloc(7)));
/// ```
pub type TScope<'s> = Scope<'s, SystemOrBuffer, LinkedPolicy>;

thread_local! {
    /// It has no destructor, so that an access does not check if one is registered.
    static STACK: ManuallyDrop<LinkedStack> = const {
        ManuallyDrop::new(Stack::with_policy(SystemOrBuffer::system(), cfg!(debug_assertions)))
    };

    static END: ThreadStackEnd = const { ThreadStackEnd };
}

/// Ends the stack with its thread.
#[derive(Debug)]
struct ThreadStackEnd;

impl Drop for ThreadStackEnd {
    fn drop(&mut self) {
        // Destructors of other thread-local variables may still use the stack of a thread that ends
        // inside a frame.
        STACK.with(|stack| {
            if stack.frame.get().is_null() {
                stack.destroy();
            }
        });
    }
}

/// Pushes a frame on the thread's stack, runs `body` with it, and pops it, also when `body` panics.
///
/// ```
/// use pagewise_alloc::t_scope;
///
/// let sum: u64 = t_scope(|scope| scope.alloc_slice_with(1000, |at| at as u64).iter().sum());
/// assert_eq!(sum, 499_500);
/// ```
///
/// Popped memory cannot be used:
///
/// ```compile_fail
/// # use pagewise_alloc::t_scope;
/// let gone = t_scope(|scope| scope.alloc(7));
/// ```
///
/// # Panics
/// Panics if C code pushed a frame inside and did not pop it.
#[inline]
pub fn t_scope<R>(body: impl for<'s> FnOnce(&mut TScope<'s>) -> R) -> R {
    STACK.with(|stack| in_register(stack).enter_scope(body))
}

/// The same reference, whose origin the compiler does not know: it keeps the address in a register,
/// instead of accessing each field by an offset from the thread pointer. Processors forward a store
/// to a load without delay if both use the same base register.
#[inline(always)]
fn in_register<T>(reference: &T) -> &T {
    #[allow(unused_mut, reason = "elsewhere nothing is done to it")]
    let mut address: *const T = reference;
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    // SAFETY: the assembly is empty, so the address is unchanged.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) address, options(pure, readonly, nostack, preserves_flags));
    }
    // SAFETY: the address is still that of `reference`, which is borrowed for as long.
    unsafe { &*address }
}

/// The stack of this thread, for C. It stays where it is while the thread runs.
pub fn t_stack() -> NonNull<LinkedStack> {
    STACK.with(|stack| NonNull::from(&**stack))
}

/// Registers the destruction of the thread's stacks at thread exit, when the first of them gets
/// memory. Memory that later destructors of the thread allocate is freed with the process.
#[cold]
pub(super) fn end_with_thread() {
    let _ = END.try_with(|_| ());
}
