//! The functions of C and of Rust must write the same bytes into a stack, and use the same stack of
//! a thread.

use std::alloc::Layout;
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::ptr::NonNull;

use pagewise::stack as api;
use pagewise_alloc::source::SystemOrBuffer;
use pagewise_alloc::stack::thread::LinkedStack;
use pagewise_alloc::stack::{FrameLink, LinkedPolicy, Scope};
use pagewise_alloc::t_scope;

use crate::loaded::LoadedC;

/// `struct library` of `ctests/same/stack.c`.
#[repr(C)]
struct StackLibrary {
    alloc: unsafe extern "C" fn(*mut LinkedStack, usize, usize) -> *mut c_void,
    realloc:
        unsafe extern "C" fn(*mut LinkedStack, *mut c_void, usize, usize, usize) -> *mut c_void,
    pop: unsafe extern "C" fn(*mut LinkedStack, *const FrameLink),
    find: extern "C" fn() -> *mut LinkedStack,
}

/// `struct step` of `ctests/same/stack.c`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct StackStep {
    kind: usize,
    size: usize,
    align: usize,
    fill: usize,
}

const ALLOCATE: usize = 0;
const ALLOCATE_ARRAY: usize = 1;
const RESIZE: usize = 2;
const PUSH: usize = 3;
const POP: usize = 4;

fn load() -> Option<LoadedC> {
    let library = StackLibrary {
        alloc: api::pw_stack_alloc_slow,
        realloc: api::pw_stack_realloc_slow,
        pop: api::pw_stack_pop_slow,
        find: api::pw_t_stack_find,
    };
    LoadedC::load("stack.c", &library)
}

/// Returns random steps, with frames that are larger than a block.
fn program(mut seed: u64) -> Vec<StackStep> {
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let (mut steps, mut depth) = (Vec::new(), 0);
    for fill in 1..4000 {
        let largest = if random(40) == 0 { 30_000 } else { 300 };
        let (size, align, fill) = (random(largest), 1 << random(6), fill & 0xff);
        let kind = match random(100) {
            0..40 => ALLOCATE,
            40..60 => ALLOCATE_ARRAY,
            60..75 if !matches!(steps.last(), Some(StackStep { kind: PUSH | POP, .. }) | None) => {
                RESIZE
            }
            75..88 if depth < 40 => PUSH,
            88.. if depth > 0 => POP,
            _ => ALLOCATE,
        };
        depth = depth + usize::from(kind == PUSH) - usize::from(kind == POP);
        steps.push(StackStep { kind, size, align, fill });
    }
    steps
}

/// Executes the steps as `run` of the program in C does.
fn run_in_rust<'a>(
    scope: &mut Scope<'_, SystemOrBuffer, LinkedPolicy>,
    mut steps: &'a [StackStep],
) -> &'a [StackStep] {
    let mut last = (NonNull::dangling(), Layout::new::<u8>());
    while let Some((step, rest)) = steps.split_first() {
        let whole = step.size / step.align * step.align;
        let layout = |size| Layout::from_size_align(size, step.align).unwrap();
        steps = rest;
        last = match step.kind {
            ALLOCATE => (scope.allocate(layout(step.size)).unwrap(), layout(step.size)),
            ALLOCATE_ARRAY => (scope.allocate(layout(whole)).unwrap(), layout(whole)),
            RESIZE => {
                let new = Layout::from_size_align(step.size, last.1.align()).unwrap();
                // SAFETY: the block is of this scope, and no other code uses it.
                (unsafe { scope.resize(last.0, last.1, new) }.unwrap(), new)
            }
            PUSH => {
                steps = scope.scope(|inner| run_in_rust(inner, rest));
                continue;
            }
            _ => return rest,
        };
        // SAFETY: the block has this size.
        unsafe { last.0.write_bytes(u8::try_from(step.fill).unwrap(), last.1.size()) };
    }
    steps
}

/// Number of bytes of the buffer that both programs use.
const BUFFER: usize = 4 << 20;

#[test]
fn c_and_rust_leave_the_same_bytes() {
    let Some(in_c) = load() else { return };
    // SAFETY: the loaded file defines `run_all` with this type.
    let run_all: unsafe extern "C" fn(*mut LinkedStack, *const StackStep, usize) -> i32 =
        unsafe { in_c.function(c"run_all") };
    let mut buffer = vec![0_u8; BUFFER];
    for seed in 0..8 {
        let steps = program(seed);
        let start = NonNull::from(&mut buffer[..]).cast::<u8>();
        let new = || {
            // SAFETY: the buffer is used by one stack after the other.
            let memory = unsafe { SystemOrBuffer::buffer(start, BUFFER) };
            LinkedStack::with_policy(memory, false)
        };
        // SAFETY: the buffer is not in use.
        unsafe { start.write_bytes(0, BUFFER) };
        let mut stack = new();
        // SAFETY: the stack has the layout of `pw_stack`, and the length is that of `steps`.
        assert_eq!(unsafe { run_all(&raw mut stack, steps.as_ptr(), steps.len()) }, 1);
        stack.check();
        // SAFETY: the buffer has this size, and is not written at the same time.
        let by_c = unsafe { std::slice::from_raw_parts(start.as_ptr(), BUFFER) }.to_vec();
        drop(stack);
        // SAFETY: the buffer has this size, and is not in use.
        unsafe { start.write_bytes(0, BUFFER) };
        let mut stack = new();
        stack.scope(|scope| {
            run_in_rust(scope, &steps);
            // SAFETY: the buffer has this size, and is not written at the same time.
            let by_rust = unsafe { std::slice::from_raw_parts(start.as_ptr(), BUFFER) };
            let differs = by_c.iter().zip(by_rust).position(|(c, rust)| c != rust);
            assert_eq!(differs, None, "seed {seed}");
        });
        assert!(by_c.iter().filter(|byte| **byte != 0).count() > 100_000);
    }
}

thread_local! {
    static WITHIN: Cell<usize> = const { Cell::new(0) };
}

extern "C" fn allocates_in_rust(_: *mut c_void) {
    WITHIN.set(t_scope(|scope| std::ptr::from_mut(scope.alloc(0_u64)).addr()));
}

#[test]
fn scopes_of_c_and_of_rust_are_on_one_stack_of_the_thread() {
    let Some(in_c) = load() else { return };
    // SAFETY: the loaded file defines `allocated_by_c` with this type.
    let allocated_by_c: extern "C" fn() -> *mut c_char =
        unsafe { in_c.function(c"allocated_by_c") };
    // SAFETY: the function of the loaded file has this type.
    let in_a_frame_of_c: extern "C" fn(extern "C" fn(*mut c_void), *mut c_void) -> *mut c_char =
        unsafe { in_c.function(c"in_a_frame_of_c") };
    let [first, second] = t_scope(|_| [(); 2].map(|()| allocated_by_c().addr()));
    t_scope(|scope| {
        let place = || std::ptr::from_mut(scope.alloc(0_u64)).addr();
        assert_eq!([place(), place()], [first, second], "what C allocated was popped");
        let in_frame = in_a_frame_of_c(allocates_in_rust, std::ptr::null_mut()).addr();
        assert!(WITHIN.get() > in_frame && in_frame > second);
        assert_eq!(place(), in_frame, "C popped its frame");
    });
}
