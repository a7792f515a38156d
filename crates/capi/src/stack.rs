//! `pagewise/stack.h`: the functions of the header, with the slow paths of its inline functions.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use pagewise_alloc::source::SystemOrBuffer;
use pagewise_alloc::stack::thread::{LinkedStack, t_stack};
use pagewise_alloc::stack::{FrameLink, LinkedPolicy, Stack};

use crate::common::{functions, layout, layouts, pointer};
use crate::failure::or_abort;

/// Type of a `pw_stack`. The fields of `pw_stack` and of `LinkedStack` have the same offsets:
/// `pagewise/stack.h` and the crate `pagewise_alloc` assert the same numbers.
type CStack = LinkedStack;

/// Returns the stack behind a pointer.
///
/// # Safety
/// `pointer` is a `pw_stack` that is all zero or was created by `pw_stack_init_in`. One thread uses
/// it, and it is not moved while a frame is open.
unsafe fn stack<'a>(pointer: *const CStack) -> &'a CStack {
    // SAFETY: the caller passes a valid stack, whose fields are cells.
    unsafe { &*pointer }
}

/// See `pagewise/stack.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_stack_init_in(stack: *mut CStack, buffer: *mut c_void, size: usize) {
    // The address of an empty buffer may be NULL, which would select memory of the system.
    let start = NonNull::new(buffer.cast()).unwrap_or(NonNull::dangling());
    // SAFETY: the header requires that the buffer is writable and that only the stack uses it.
    let memory = unsafe { SystemOrBuffer::buffer(start, size) };
    // SAFETY: the header requires a writable address.
    unsafe { stack.write(Stack::<_, LinkedPolicy>::with_policy(memory, false)) };
}

/// See `pagewise/stack.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_stack_wipe(stack: *mut CStack) {
    // SAFETY: the header requires a valid stack that no other thread uses at the same time.
    or_abort(|| unsafe { &mut *stack }.wipe());
}

functions! {
    see "stack.h", stack(*mut CStack);
    guard pw_stack_guard,
    trim pw_stack_trim,
    held pw_stack_held,
    set_name pw_stack_set_name,
    check pw_stack_check,
}

/// See `pagewise/stack.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_stack_reserve(pointer: *mut CStack, size: usize) -> c_int {
    // SAFETY: the header requires a valid stack.
    unsafe { stack(pointer) }.reserve(size).into()
}

/// See `pagewise/stack.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_stack_alloc_slow(
    pointer_to: *mut CStack,
    size: usize,
    align: usize,
) -> *mut c_void {
    let layout = layout(size, align);
    // SAFETY: the header requires a valid stack.
    pointer(layout.and_then(|layout| unsafe { stack(pointer_to) }.allocate(layout)))
}

/// See `pagewise/stack.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_stack_realloc_slow(
    pointer_to: *mut CStack,
    block: *mut c_void,
    old: usize,
    size: usize,
    align: usize,
) -> *mut c_void {
    let Some([old, new]) = layouts(old, size, align) else { return ptr::null_mut() };
    // SAFETY: the header requires a valid stack.
    let stack = unsafe { stack(pointer_to) };
    pointer(match NonNull::new(block.cast()) {
        None => stack.allocate(new),
        // SAFETY: the header requires a block of this stack with this size.
        Some(block) => unsafe { stack.resize(block, old, new) },
    })
}

/// See `pagewise/stack.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_stack_pop_slow(pointer: *mut CStack, frame: *const FrameLink) {
    // SAFETY: the header requires a valid stack.
    let stack = unsafe { stack(pointer) };
    // SAFETY: the header requires a frame of this stack.
    let frame = unsafe { &*frame };
    // SAFETY: the header requires that blocks of the frame are not used any more.
    or_abort(|| unsafe { stack.pop_slow(frame) });
}

/// See `pagewise/stack.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_t_stack_find() -> *mut CStack {
    t_stack().as_ptr()
}
